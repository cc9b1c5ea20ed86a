//! Nobody out there holds up a message: collectors that are down, slow or failing, and a standard output that nobody reads.

use std::fs;
use std::process::Command;
use std::time::Instant;

use super::{redirected, start_with, world};
use crate::support::hostler::{Host, PATIENCE, SECOND, World, until};
use crate::support::prometheus::free_address;
use crate::support::web::{Reply, Web};

/// Number of messages that must be settled.
const MESSAGES: usize = 400;

/// All pass while the host tries to export as often as it can, and then it ends in time.
fn passes_unhindered(world: &World, mut host: Host) {
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    world.send("work", vec!["a"; MESSAGES]);
    let lines = host.settled(MESSAGES);
    // Even a slow machine runs a handler that does nothing in less than a second.
    let slow = lines.iter().filter(|line| line["duration_ms"].as_f64().unwrap() > 1_000.0).count();
    assert_eq!(slow, 0);
    let asked = Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(asked.elapsed() < 4 * SECOND, "{:?}", asked.elapsed());
}

/// Every 5 ms, with half a second for a request.
const EAGER: [(&str, &str); 2] = [("OTEL_METRIC_EXPORT_INTERVAL", "5"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "500")];

#[test]
fn a_collector_that_is_down_slow_or_failing_holds_up_nothing() {
    let silent = Web::start(|_, _| Reply::Silence);
    let failing = Web::start(|_, _| Reply::status(503));
    let endless = Web::start(|_, _| Reply::Endless);
    let nobody = free_address().to_string();
    for (address, protocol) in [
        (&nobody, "http/protobuf"),
        (&nobody, "grpc"),
        (&silent.address, "http/protobuf"),
        (&silent.address, "grpc"),
        (&failing.address, "http/protobuf"),
        (&endless.address, "http/protobuf"),
    ] {
        let world = world(&format!("telemetry.otlp_endpoint = 'http://{address}'"));
        let [interval, timeout] = EAGER;
        let host = start_with(&world, &[interval, timeout, ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)]);
        passes_unhindered(&world, host);
    }
    assert!(!failing.requests("/v1/metrics").is_empty());
}

#[test]
fn why_nothing_is_exported_is_in_the_log() {
    let nobody = free_address();
    let world = world(&format!("telemetry.otlp_endpoint = 'http://{nobody}'"));
    let [interval, timeout] = EAGER;
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=not-for-the-log");
    let host = start_with(&world, &[interval, timeout, headers, ("RUST_LOG", "trace")]);
    let line = host.wait_for(PATIENCE, |line| line["message"] == "metrics are not exported");
    assert!(line["error"].as_str().unwrap().contains("onnection refused"), "{line}");
    assert!(host.lines().iter().all(|line| !line.to_string().contains("not-for-the-log")));
}

#[test]
fn a_failing_collector_is_told_of_once_and_takes_no_memory() {
    let failing = Web::start(|_, _| Reply::status(500));
    let world = world(&format!("telemetry.otlp_endpoint = 'http://{}'", failing.address));
    let host = start_with(&world, &EAGER);
    let told = |line: &serde_json::Value| line["message"] == "metrics are not exported";
    host.wait_for(PATIENCE, told);
    let asked = |count: usize| {
        until("it is asked again", PATIENCE, || (failing.requests("/v1/metrics").len() >= count).then_some(()));
    };
    asked(20);
    let before = resident(host.pid);
    asked(120);
    let after = resident(host.pid);
    assert!(after < before + 8 * 1024, "{before} KiB became {after} KiB");
    assert_eq!(host.lines().iter().filter(|line| told(line)).count(), 1);
}

/// The memory that a process has in RAM, in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_standard_output_that_nobody_reads_holds_up_nothing() {
    let world = world("telemetry.emf = true");
    let fifo = world.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Somebody holds it open, and never reads.
    let _held = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let host = Host::start(redirected(&world, ">fifo", &[("OTEL_METRIC_EXPORT_INTERVAL", "1")]));
    // The pipe is full.
    host.wait_for(PATIENCE, |line| line["message"].as_str().is_some_and(|text| text.contains("or not read")));
    passes_unhindered(&world, host);
}

#[test]
fn without_a_way_out_there_is_no_registry() {
    let threads = |host: &Host| -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", host.pid)).unwrap();
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
    };
    let named = |host: &Host| threads(host).iter().any(|name| name.starts_with("hostler-metrics"));
    assert!(!named(&world("").started()));
    assert!(named(&world("telemetry.emf = true").started()));
}
