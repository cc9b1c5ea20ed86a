//! The dashboard and the alert rules that come with hostler: they are what Grafana and Prometheus take, and every query finds
//! data in a real Prometheus.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

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

/// The queries of all panels, with Grafana's variables filled in.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let filled = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        query.replace("$consumer", ".*").replace("$__rate_interval", "30s")
    };
    targets.map(filled).collect()
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
        ("/panels/0/targets/0", serde_json::json!({ "refId": "A", "query": "up" }), "'expr' is a required property"),
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

#[test]
fn the_rules_are_rules() {
    let mut promtool = Command::new(installed("prometheus").join("usr/bin/promtool"));
    let output = promtool.args(["check", "rules", "--lint=all", "--lint-fatal"]).arg(config("alert-rules.yaml"));
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
