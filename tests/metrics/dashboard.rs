//! The dashboard and the alert rules that come with hostler: they are what Grafana and Prometheus take, and every query finds
//! data in a real Prometheus.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{DELIVERIES, published, send_hundred, serving};
use crate::support::hostler::{SECOND, until};
use crate::support::prometheus::Prometheus;
use crate::support::servers::installed;

/// Queues are looked at every 30 s, and how fast they empty is known from the second look on.
const TWO_LOOKS: std::time::Duration = std::time::Duration::from_secs(90);

fn config(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

fn dashboard() -> Value {
    serde_json::from_str(&std::fs::read_to_string(config("grafana-dashboard.json")).unwrap()).unwrap()
}

/// The queries of all panels, each with the title of its panel, and Grafana's variables filled in.
fn titled_queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets =
        panels.flat_map(|panel| panel["targets"].as_array().unwrap().iter().map(move |target| (panel, target)));
    let filled = |(panel, target): (&Value, &Value)| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$consumer", ".*").replace("$__rate_interval", "30s");
        (panel["title"].as_str().unwrap().to_owned(), query)
    };
    targets.map(filled).collect()
}

fn queries() -> Vec<String> {
    titled_queries().into_iter().map(|(_, query)| query).collect()
}

/// The metrics that a query names.
fn metrics(query: &str) -> BTreeSet<&str> {
    let words = query.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
    let is_metric = |word: &&str| {
        let is_label = ["hostler_consumer", "hostler_outcome", "messaging_operation_name"].contains(word);
        (word.starts_with("hostler_") || word.starts_with("messaging_")) && !is_label
    };
    words.filter(is_metric).collect()
}

#[test]
fn every_query_finds_data() {
    let (world, address) = serving();
    let host = world.started();
    let prometheus = Prometheus::scraping(address);
    // A rate is what is added to a series that was there before.
    send_hundred(&world);
    host.settled(DELIVERIES);
    until("a first scrape of them", 10 * SECOND, || {
        (prometheus.query("sum(messaging_process_duration_seconds_count)") == [DELIVERIES as f64]).then_some(())
    });
    send_hundred(&world);
    host.settled(2 * DELIVERIES);
    let mut without = queries();
    assert!(without.len() >= 12, "{without:?}");
    let looked = std::time::Instant::now();
    until("data for every query", TWO_LOOKS, || {
        without.retain(|query| {
            let values = prometheus.query(query);
            values.is_empty() || !values.iter().all(|value| value.is_finite())
        });
        assert!(looked.elapsed() < TWO_LOOKS - 5 * SECOND, "no data: {without:#?}");
        without.is_empty().then_some(())
    });
    let rules = std::fs::read_to_string(config("alert-rules.yaml")).unwrap();
    let named = metrics(&rules);
    assert!(named.len() >= 6, "{named:?}");
    for metric in named {
        assert!(!prometheus.query(metric).is_empty(), "the alert rules name {metric}, which there is not");
    }
}

#[test]
fn the_dashboard_is_one_by_the_types_that_grafana_publishes() {
    let (folder, schema) = published::dashboard();
    let complaints = |dashboard: &Value| {
        let line = folder.path().join("dashboard.json");
        std::fs::write(&line, dashboard.to_string()).unwrap();
        published::complaints(&schema, &line)
    };
    assert_eq!(complaints(&dashboard()), "");
    // Each of these has to be seen, down to the options of a panel.
    let wrong: [(&str, Value, &str); 6] = [
        ("/panels/0/type", "graph".into(), "'timeseries' was expected"),
        ("/panels/0/options/legend/placement", "left".into(), "'left' is not one of"),
        ("/panels/0/fieldConfig/defaults/custom/lineWidth", "1".into(), "'1' is not of type 'number'"),
        ("/panels/0/targets/0", json!({ "refId": "A", "query": "up" }), "'expr' is a required property"),
        ("/panels/0/datasource", "prometheus".into(), "is not of type 'object'"),
        ("/templating/list/1/refresh", 7.into(), "7 is not one of"),
    ];
    for (place, value, complaint) in wrong {
        let mut broken = dashboard();
        *broken.pointer_mut(place).unwrap() = value;
        let complaints = complaints(&broken);
        assert!(complaints.contains(complaint), "{place}: {complaints:?}");
    }
}

/// `promtool` with these arguments, and this file; it has to be content.
fn promtool(args: &[&str], file: &Path) {
    let mut promtool = Command::new(installed("prometheus").join("usr/bin/promtool"));
    let output = promtool.args(args).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_rules_are_rules() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &config("alert-rules.yaml"));
}

#[test]
fn what_several_tasks_see_of_a_queue_is_put_together() {
    // Each of two tasks says how long the queue takes at its own rate: together they need half of that.
    let series = |metric: &str, consumer: &str, task: &str, value: u32| {
        let series = format!("{metric}{{hostler_consumer='{consumer}', instance='{task}'}}");
        json!({ "series": series, "values": format!("{value}x30") })
    };
    let input: Vec<Value> = [("fast", 2_400), ("slow", 7_200)]
        .into_iter()
        .flat_map(|(consumer, drain)| ["a", "b"].map(|task| (consumer, drain, task)))
        .flat_map(|(consumer, drain, task)| {
            [("hostler_time_to_drain_seconds", drain), ("hostler_queue_visible", 500), ("hostler_slots", 16)]
                .map(|(metric, value)| series(metric, consumer, task, value))
        })
        .collect();
    let queries = titled_queries();
    let shows = |title: &str, fast: u32, slow: u32| {
        let (_, query) = queries.iter().find(|(of, _)| of == title).unwrap();
        let samples = [("fast", fast), ("slow", slow)]
            .map(|(consumer, value)| json!({ "labels": format!("{{hostler_consumer='{consumer}'}}"), "value": value }));
        json!({ "expr": query, "eval_time": "20m", "exp_samples": samples })
    };
    let alert = json!({
        "exp_labels": { "severity": "warning", "hostler_consumer": "slow" },
        "exp_annotations": {
            "summary": "what waits for slow takes 1h 0m 0s at its present rate",
            "description": "More tasks, or more slots if the busy ones are all there are.",
        },
    });
    let test = json!({
        "rule_files": [config("alert-rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": input,
            "alert_rule_test": [{ "eval_time": "20m", "alertname": "HostlerBacklogGrows", "exp_alerts": [alert] }],
            "promql_expr_test": [shows("Time to drain", 1_200, 3_600), shows("Backlog per task", 250, 250)],
        }],
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.yaml");
    std::fs::write(&file, test.to_string()).unwrap();
    promtool(&["test", "rules"], &file);
}
