//! Metrics for CloudWatch on standard output.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::{DELIVERIES, published, redirected, send_hundred, world};
use crate::support::hostler::Host;

/// The lines that a host wrote from its start to its end, in which it processed the hundred.
fn lines(interval: &str) -> Vec<Value> {
    let world = world("telemetry.emf = true");
    send_hundred(&world);
    let mut host = Host::start(redirected(&world, ">metrics.jsonl", &[("OTEL_METRIC_EXPORT_INTERVAL", interval)]));
    host.settled(DELIVERIES);
    assert_eq!(host.stop(), 0);
    let file = world.path("metrics.jsonl");
    // AWS's own schema knows neither the limits of the service nor that nothing else may stand there; the other does.
    let strict = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/metrics/emf.schema.json");
    for schema in [published::emf(), strict.into()] {
        assert_eq!(published::complaints(&schema, &file), "", "{}", schema.display());
    }
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The metrics that a line declares, by name, with their units.
fn declared(line: &Value) -> BTreeMap<&str, &str> {
    let directives = line["_aws"]["CloudWatchMetrics"].as_array().unwrap();
    let metrics = directives.iter().flat_map(|directive| directive["Metrics"].as_array().unwrap());
    metrics.map(|metric| (metric["Name"].as_str().unwrap(), metric["Unit"].as_str().unwrap())).collect()
}

#[test]
fn the_end_of_a_drain_writes_a_line_that_fits_the_published_form() {
    let lines = lines("60000");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let declared = declared(line);
    // What is declared is there, and a number; what it is told apart by is there, and a text.
    for name in declared.keys() {
        assert!(line[*name].is_number(), "{name}");
    }
    let dimensions = &line["_aws"]["CloudWatchMetrics"][0]["Dimensions"];
    assert_eq!(*dimensions, serde_json::json!([["service", "consumer"]]));
    assert_eq!(
        (&line["service"], &line["consumer"], &line["channel"]),
        (&"hostler".into(), &"work".into(), &"work".into())
    );
    let expected = [
        ("hostler.messages.settled", 120.0, "Count"),
        ("hostler.messages.settled.ack", 90.0, "Count"),
        ("hostler.messages.settled.release", 20.0, "Count"),
        ("hostler.messages.settled.dead-letter", 10.0, "Count"),
        ("hostler.messages.settled.none", 0.0, "Count"),
        ("hostler.messages.late", 0.0, "Count"),
        ("hostler.processing_timeouts", 0.0, "Count"),
        ("hostler.slots", 4.0, "Count"),
        ("hostler.sandbox.memory.peak", 65_536.0, "Bytes"),
    ];
    for (name, value, unit) in expected {
        assert_eq!((line[name].as_f64(), declared.get(name)), (Some(value), Some(&unit)), "{name} in {line}");
    }
    for name in ["messaging.process.duration.p99", "messaging.process.duration.max", "hostler.message.queue_delay.avg"]
    {
        assert_eq!(declared.get(name), Some(&"Seconds"), "{name} in {line}");
    }
    let [avg, p99, max] =
        ["avg", "p99", "max"].map(|what| line[format!("messaging.process.duration.{what}")].as_f64().unwrap());
    assert!(0.0 < avg && avg <= max && p99 <= max, "{line}");
    assert_eq!(line["outcomes"], serde_json::json!({ "ack": 90, "failed": 30 }));
    assert_eq!(line["messaging.client.consumed.messages"], 120, "it is there for queries, and not billed");
    assert_eq!(line["state"], "EXITING");
}

#[test]
fn lines_add_up_to_all_that_happened() {
    let lines = lines("20");
    assert!(lines.len() > 1);
    for (name, sum) in [("hostler.messages.settled", 120.0), ("hostler.messages.settled.dead-letter", 10.0)] {
        assert_eq!(lines.iter().map(|line| line[name].as_f64().unwrap()).sum::<f64>(), sum, "{name}");
    }
}
