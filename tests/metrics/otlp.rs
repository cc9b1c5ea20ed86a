//! Metrics for a collector by OTLP, over HTTP and gRPC.

use std::collections::BTreeSet;

use hostler_telemetry::metrics::names::{ALL, Kind};
use serde_json::Value;

use super::{DELIVERIES, send_hundred, start_with, world};
use crate::support::collector::{Collector, Point, names_of, points};
use crate::support::hostler::{PATIENCE, until};

/// Variables that make a host export often. On a busy machine, a collector may answer the last export of a host too late, so
/// most tests wait for an earlier one.
const OFTEN: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "50");

/// Waits until the collector knows of all settled messages. Returns the request that says so.
fn all_settled(collector: &Collector) -> Value {
    until("an export of all messages", PATIENCE, || {
        let requests = collector.requests();
        requests.into_iter().rev().find(|request| {
            let points = points(request, "hostler.messages.settled");
            (count(&points, "ack"), count(&points, "dead-letter")) == (90.0, 10.0)
        })
    })
}

fn count(points: &[Point], disposition: &str) -> f64 {
    points.iter().filter(|point| point.has("hostler.disposition", disposition)).map(|point| point.value).sum()
}

#[test]
fn a_collector_gets_all_by_either_protocol_as_the_standard_variables_say() {
    for protocol in ["http/protobuf", "grpc"] {
        let collector = Collector::start();
        let endpoint = if protocol == "grpc" { collector.over_grpc() } else { collector.over_http() };
        let world = world(&format!("telemetry.otlp_endpoint = '{endpoint}'"));
        send_hundred(&world);
        let variables = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=acme"),
            ("OTEL_SERVICE_NAME", "thumbnailer"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
            OFTEN,
        ];
        let mut host = start_with(&world, &variables);
        host.settled(DELIVERIES);
        let last = &all_settled(&collector);
        assert_eq!(host.stop(), 0);
        assert_eq!(last["over"], if protocol == "grpc" { "grpc" } else { "http" });
        assert_eq!(last["headers"]["x-tenant"], "acme");
        if protocol != "grpc" {
            assert_eq!(last["path"], "/v1/metrics");
        }
        let settled = points(last, "hostler.messages.settled");
        assert_eq!((count(&settled, "ack"), count(&settled, "dead-letter")), (90.0, 10.0), "{last}");
        assert!(settled.iter().all(|point| point.kind == "sum" && point.temporality == 2));
        let process = points(last, "messaging.process.duration");
        assert_eq!(process.iter().map(|point| point.value).sum::<f64>(), 120.0);
        assert!(process.iter().all(|point| point.kind == "histogram" && point.has("messaging.system", "hostler")));
        assert_eq!(
            points(last, "hostler.slots").first().map(|point| (point.kind.as_str(), point.value)),
            Some(("gauge", 4.0))
        );
        for name in names_of(last) {
            let metric = ALL.iter().find(|metric| metric.name == name);
            let metric = metric.unwrap_or_else(|| panic!("{name} is not in the list of metrics"));
            let kind = if metric.kind == Kind::Counter { "sum" } else { metric.kind.name() };
            assert!(points(last, &name).iter().all(|point| point.kind == kind), "{name} is no {kind}");
        }
        let resource = last["request"]["resourceMetrics"][0]["resource"].to_string();
        for part in ["thumbnailer", "deployment.environment.name", "service.version"] {
            assert!(resource.contains(part), "{part} in {resource}");
        }
    }
}

/// The names in the first column of the page's tables.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../book/src/metrics.md");
    let first = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let attributes = ["hostler.consumer", "messaging.system", "messaging.destination.name"];
    first.filter(|name| !attributes.contains(name)).map(str::to_owned).collect()
}

#[test]
fn the_page_has_every_metric() {
    assert_eq!(documented(), ALL.iter().map(|metric| metric.name.to_owned()).collect());
}

#[test]
fn deltas_are_sent_where_they_are_preferred() {
    let collector = Collector::start();
    let world = world(&format!("telemetry.otlp_endpoint = '{}'", collector.over_http()));
    let variables =
        [("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"), ("OTEL_METRIC_EXPORT_INTERVAL", "50")];
    let mut host = start_with(&world, &variables);
    let exports = |count| until("exports", PATIENCE, || (collector.requests().len() >= count).then_some(()));
    exports(1);
    send_hundred(&world);
    host.settled(DELIVERIES);
    // Of which some tell of nothing new.
    exports(collector.requests().len() + 3);
    assert_eq!(host.stop(), 0);
    let requests = collector.requests();
    let all: Vec<Point> = requests.iter().flat_map(|request| points(request, "hostler.messages.settled")).collect();
    assert_eq!((count(&all, "ack"), count(&all, "release"), count(&all, "dead-letter")), (90.0, 20.0, 10.0));
    assert!(all.iter().all(|point| point.temporality == 1));
}

#[test]
fn an_endpoint_for_metrics_alone_wins_and_none_means_none() {
    let (collector, other) = (Collector::start(), Collector::start());
    let world = world(&format!("telemetry.otlp_endpoint = '{}'", other.over_http()));
    send_hundred(&world);
    let endpoint = format!("{}/elsewhere", collector.over_http());
    let mut host = start_with(&world, &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &endpoint), OFTEN]);
    all_settled(&collector);
    assert_eq!(host.stop(), 0);
    assert_eq!(collector.requests().last().unwrap()["path"], "/elsewhere");

    let mut host = start_with(&world, &[("OTEL_METRICS_EXPORTER", "none")]);
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    assert_eq!(host.stop(), 0);
    let metrics = other.requests().into_iter().filter(|request| !points(request, "hostler.up").is_empty());
    assert_eq!(metrics.count(), 0);
}

#[test]
fn a_collector_behind_tls_is_trusted_by_the_roots_of_the_system() {
    let collector = Collector::behind_tls();
    let port = collector.over_grpc().rsplit(':').next().unwrap().to_owned();
    let world = world(&format!("telemetry.otlp_endpoint = 'https://127.0.0.1:{port}'"));
    send_hundred(&world);
    let roots = collector.certificate();
    let variables = [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("SSL_CERT_FILE", roots.to_str().unwrap()), OFTEN];
    let mut host = start_with(&world, &variables);
    all_settled(&collector);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_protocol_that_is_not_spoken_is_passed_over_by_name() {
    let collector = Collector::start();
    let world = world(&format!("telemetry.otlp_endpoint = '{}'", collector.over_http()));
    send_hundred(&world);
    let mut host = start_with(&world, &[("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"), OFTEN]);
    all_settled(&collector);
    assert_eq!(host.stop(), 0);
    let expected = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: `http/json` is ignored: it must be one of http/protobuf, grpc";
    assert!(host.lines().iter().any(|line| line["level"] == "WARN" && line["message"] == expected));
    assert!(collector.requests().iter().all(|request| request["over"] == "http"));
}

/// Number of hosts to start until the collector answers the last export of one in time.
const HOSTS: usize = 10;

#[test]
fn a_host_exports_what_is_new_when_it_ends() {
    let collector = Collector::start();
    let world = world(&format!("telemetry.otlp_endpoint = '{}'", collector.over_http()));
    for _ in 0..HOSTS {
        send_hundred(&world);
        let mut host = start_with(&world, &[]);
        host.settled(DELIVERIES);
        assert_eq!(host.stop(), 0);
        let is_late = |line: &Value| line["message"] == "the last metrics were not exported";
        if !host.lines().iter().any(is_late) {
            all_settled(&collector);
            return;
        }
    }
    panic!("{HOSTS} hosts did not export their last metrics within the time limit");
}
