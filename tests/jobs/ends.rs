//! Starts and ends of the job service: drains, several instances, its health.

use std::thread;

use serde_json::json;

use crate::support::hostler::{Host, PATIENCE, SECOND, until};
use crate::support::jobs::{Api, Jobs, finished, items, listens};

#[test]
fn a_drain_answers_long_polls_and_ends() {
    let mut jobs = Jobs::start("");
    let claim = json!({ "types": ["t"], "worker_id": "w", "max": 1, "wait_seconds": 60 }).to_string();
    let poll = jobs.api.begin("POST", "/claim", &[], Some(&claim)).unwrap();
    // Connections are accepted in their order, so the poll has begun when later calls were answered.
    for _ in 0..5 {
        jobs.api.get("/job").of(200);
    }
    assert_eq!(jobs.host.stop(), 0);
    assert_eq!(finished(poll).unwrap().of(200), json!({ "assignments": [] }));
    let lines = jobs.host.lines();
    let at = |message: &str| lines.iter().position(|line| line["message"] == message).unwrap();
    assert!(at("draining") < at("drained"));
    assert!(jobs.api.try_call("GET", "/healthz", None).is_err(), "nobody listens");
}

#[test]
fn a_long_poll_is_woken_by_a_new_item() {
    let jobs = Jobs::start("");
    let (second, beside) = jobs.second();
    for api in [&jobs.api, &beside] {
        let api = api.clone();
        let poll = thread::spawn(move || api.claim("t", "w", 1, 30));
        jobs.api.create(json!({ "type": "t", "items": items([1]) }));
        assert_eq!(poll.join().unwrap().len(), 1);
    }
    drop(second);
}

#[test]
fn instances_share_a_database() {
    let jobs = Jobs::start("");
    let (mut second, beside) = jobs.second();
    let created = jobs.api.create(json!({ "type": "t", "sealed": true, "items": items([1]) }));
    let root = created["id"].as_str().unwrap();
    let assigned = beside.claim_one("t", "w");
    jobs.api.beat(&assigned).of(200);
    beside.succeed(&assigned, json!(1)).of(200);
    jobs.api.complete(root);
    assert_eq!(second.stop(), 0);
    assert_eq!(jobs.api.status(root)["complete"], true);
}

#[test]
fn the_health_check_sees_the_service() {
    let mut jobs = Jobs::start("");
    let verdict = until("a healthy service", PATIENCE, || {
        Some(jobs.world.verdict()).filter(|verdict| verdict["status"] == "healthy")
    });
    let service = &verdict["report"]["consumers"][0];
    assert_eq!(service["name"], "jobs");
    assert_eq!(jobs.host.stop(), 0);
    assert_eq!(jobs.world.output(&["check-consumer-health", "--start-period", "0s"]).code, 1);
}

#[test]
fn a_service_that_restarts_finds_everything_as_it_was() {
    let mut jobs = Jobs::start("");
    let created = jobs.api.create(json!({ "type": "t", "sealed": true, "items": items([1]) }));
    let assigned = jobs.api.claim_one("t", "w");
    assert_eq!(jobs.host.stop(), 0);
    let host = Host::start(jobs.world.command(&["jobs", "serve"]));
    let api = Api { address: listens(&host), token: None };
    api.beat(&assigned).of(200);
    api.succeed(&assigned, json!(1)).of(200);
    api.complete(created["id"].as_str().unwrap());
    drop(host);
}

#[test]
fn complete_trees_are_reaped_after_their_retention() {
    let jobs = Jobs::start("[jobs]\nretention = '1s'");
    let created = jobs.api.create(json!({ "type": "t", "sealed": true }));
    let path = format!("/job/{}/status", created["id"].as_str().unwrap());
    until("the end of the tree", PATIENCE + 60 * SECOND, || (jobs.api.get(&path).status == 404).then_some(()));
}
