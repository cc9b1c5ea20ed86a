//! The dashboard and the alert rules that come with hostler: every query finds data in a real Prometheus.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{DELIVERIES, send_hundred, serving};
use crate::support::hostler::{SECOND, until};
use crate::support::prometheus::Prometheus;
use crate::support::servers::installed;

/// Queues are looked at every 30 s, and how fast they empty is known from the second look on.
const TWO_LOOKS: std::time::Duration = std::time::Duration::from_secs(90);

fn config(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

/// The queries of all panels, with Grafana's variables filled in.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(config("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
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
fn the_rules_are_rules() {
    let mut promtool = Command::new(installed("prometheus").join("usr/bin/promtool"));
    let output = promtool.args(["check", "rules", "--lint=all", "--lint-fatal"]).arg(config("alert-rules.yaml"));
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
