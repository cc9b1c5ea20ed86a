//! Consumers with `job = "TYPE"`: WASM guests process the items of the job service.

use std::fs;

use serde_json::{Value, json};

use crate::support::guests::{command, component};
use crate::support::hostler::{Host, PATIENCE, until};
use crate::support::jobs::{Jobs, items};

/// Starts a service with short heartbeats, and a host whose consumer processes the items of type `t`.
fn with(handler: &str, keys: &str) -> (Jobs, Host) {
    let jobs = Jobs::start("[jobs]\nheartbeat = '1s'");
    let host = consuming(&jobs, handler, keys);
    (jobs, host)
}

fn consuming(jobs: &Jobs, handler: &str, keys: &str) -> Host {
    let handler = if handler.starts_with("main-") { command(handler) } else { component(handler) };
    jobs.world.config(&format!("[consumers.t]\njob = 't'\nhandler = '{}'\n{keys}", handler.display()));
    let mut command = jobs.world.command(&["run"]);
    // The service has the other one.
    command.env("HOSTLER_HOST__HEALTH_FILE", jobs.world.path("consumer.json"));
    command.env("HOSTLER_HOST__SHUTDOWN_GRACE", "3s");
    let host = Host::start(command);
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    host
}

/// Creates a sealed job of type `t`. Returns its id.
fn job(jobs: &Jobs, max_failures: u32, payloads: &[Value]) -> String {
    let items = items(payloads.iter().cloned());
    let job = json!({ "type": "t", "sealed": true, "max_failures_per_item": max_failures, "items": items });
    jobs.api.create(job)["id"].as_str().unwrap().to_owned()
}

/// Waits until an item is assigned, and the consumer has it. The service knows of the assignment first.
fn assigned(jobs: &Jobs, job: &str) {
    until("an assignment", PATIENCE, || (jobs.api.status(job)["assigned"] == 1).then_some(()));
    let health_file = jobs.world.path("consumer.json");
    until("the item is in flight", PATIENCE, || {
        fs::read_to_string(&health_file).ok()?.contains("\"in_flight\":1,").then_some(())
    });
}

fn item(jobs: &Jobs, job: &str) -> Value {
    jobs.api.items(&format!("job_id={job}")).remove(0)
}

#[test]
fn an_ack_is_the_result_null() {
    let (jobs, mut host) = with("acks", "");
    let job = job(&jobs, 0, &[json!(1), json!("two"), json!({ "three": 3 })]);
    assert_eq!(jobs.api.complete(&job)["succeeded"], 3);
    assert!(jobs.api.items(&format!("job_id={job}")).iter().all(|item| item["result"].is_null()));
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_reply_is_the_result() {
    let (jobs, mut host) = with("replies", "");
    let payloads = [json!({ "a": [1, 2.5, null] }), json!("text")];
    let replied = job(&jobs, 0, &payloads);
    jobs.api.complete(&replied);
    let results: Vec<_> =
        jobs.api.items(&format!("job_id={replied}")).iter().map(|item| item["result"].clone()).collect();
    assert_eq!(results, payloads);
    assert_eq!(host.stop(), 0);
    let mut host = consuming(&jobs, "main-echoes", "reply = 'stdout'");
    let echoed = job(&jobs, 0, &[json!({ "b": true })]);
    jobs.api.complete(&echoed);
    assert_eq!(item(&jobs, &echoed)["result"], json!({ "b": true }));
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_failure_is_tried_again_and_then_final() {
    let (jobs, mut host) = with("fails", "");
    let job = job(&jobs, 1, &[json!(1)]);
    assert_eq!(jobs.api.complete(&job)["failed"], 1);
    let item = item(&jobs, &job);
    let failures = item["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2);
    assert!(failures[0]["error"].to_string().contains("the database is away"), "{item}");
    let attempts: Vec<_> = host.settled(2).iter().map(|line| line["attempt"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [1, 2]);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_drain_gives_items_back_without_a_failure() {
    let (jobs, mut host) = with("loops", "");
    let job = job(&jobs, 0, &[json!(1)]);
    assigned(&jobs, &job);
    assert_eq!(host.stop(), 75);
    let status = jobs.api.status(&job);
    assert_eq!((&status["pending"], &status["assigned"], &status["failed"]), (&json!(1), &json!(0), &json!(0)));
    assert_eq!(item(&jobs, &job)["failures"], json!([]));
}

#[test]
fn a_deleted_job_stops_its_guests() {
    let (jobs, mut host) = with("loops", "");
    let job = job(&jobs, 0, &[json!(1)]);
    assigned(&jobs, &job);
    assert_eq!(jobs.api.call("DELETE", &format!("/job/{job}"), None).status, 204);
    let line = host.wait_for(PATIENCE, |line| line.get("outcome").is_some());
    assert_eq!(line["outcome"], "lease-lost");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_processing_timeout_is_a_failure() {
    let (jobs, mut host) = with("loops", "processing_timeout = '1s'");
    let job = job(&jobs, 0, &[json!(1)]);
    assert_eq!(jobs.api.complete(&job)["failed"], 1);
    let error = item(&jobs, &job)["failures"][0]["error"].to_string();
    assert!(error.contains("processing timeout"), "{error}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_host_that_is_killed_loses_nothing() {
    let (jobs, host) = with("loops", "");
    let job = job(&jobs, 1, &[json!(1)]);
    assigned(&jobs, &job);
    host.kill();
    until("three missed heartbeats", PATIENCE, || (item(&jobs, &job)["failures"] != json!([])).then_some(()));
    let mut host = consuming(&jobs, "acks", "");
    assert_eq!(jobs.api.complete(&job)["succeeded"], 1);
    assert_eq!(host.stop(), 0);
}
