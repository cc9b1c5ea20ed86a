//! Guests that act on the job whose item they process, in consumers with `job` and in others.

use serde_json::{Value, json};

use crate::invoke::{answer_of, consumer, reply};
use crate::support::guests::component;
use crate::support::hostler::{Host, PATIENCE, until};
use crate::support::jobs::{Jobs, items};

/// A job service, and a consumer of jobs of the type `parent` with this guest. The heartbeat is short, because it carries the
/// progress.
fn running(guest: &str) -> (Jobs, Host) {
    let handler = component(guest);
    let mut jobs = Jobs::start(&format!(
        "jobs.heartbeat = '1s'\n[consumers.one]\njob = 'parent'\nhandler = '{}'\n",
        handler.display()
    ));
    // The service has the other one.
    jobs.world.set("HOSTLER_HOST__HEALTH_FILE", "consumer.json".to_owned());
    let host = jobs.world.started();
    (jobs, host)
}

/// Creates a job of the type `parent` with one item, and a child of the type `child`. Returns their ids.
fn family(jobs: &Jobs, max_failures: u32) -> (String, String) {
    let created = jobs.api.create(json!({
        "type": "parent", "max_failures_per_item": max_failures, "items": items([json!({ "page": 1 })]),
        "children": [{ "type": "child" }],
    }));
    let id = |at: usize| created["jobs"][at]["id"].as_str().unwrap().to_owned();
    (id(0), id(1))
}

/// Waits until the only item of a job is in this state, and returns it.
fn item(jobs: &Jobs, job: &str, state: &str) -> Value {
    let query = format!("job_id={job}&state={state}");
    until(state, PATIENCE, || jobs.api.items(&query).pop())
}

fn payloads(jobs: &Jobs, job: &str) -> Vec<Value> {
    jobs.api.items(&format!("job_id={job}")).into_iter().map(|item| item["payload"].clone()).collect()
}

#[test]
fn an_added_item_is_there_as_soon_as_the_item_has_succeeded() {
    let (jobs, mut host) = running("job-adds");
    let (parent, child) = family(&jobs, 0);
    assert_eq!(item(&jobs, &parent, "succeeded")["result"], json!({ "page": 1 }));
    assert_eq!(payloads(&jobs, &child), [json!({ "page": 1 })]);
    assert_eq!(host.stop(), 0);
}

#[test]
fn an_attempt_that_fails_adds_nothing_and_the_retry_adds_once() {
    let (jobs, mut host) = running("job-adds-and-fails");
    let (parent, child) = family(&jobs, 1);
    let done = item(&jobs, &parent, "succeeded");
    assert_eq!(done["failures"].as_array().unwrap().len(), 1, "{done}");
    assert_eq!(payloads(&jobs, &child).len(), 1);
    assert_eq!(host.stop(), 0);
}

#[test]
fn an_attempt_that_fails_for_good_adds_nothing() {
    let (jobs, mut host) = running("job-adds-and-fails");
    let (parent, child) = family(&jobs, 0);
    item(&jobs, &parent, "failed");
    assert_eq!(payloads(&jobs, &child), [] as [Value; 0]);
    assert_eq!(host.stop(), 0);
}

#[test]
fn an_attempt_adds_a_limited_number_of_items() {
    let (jobs, mut host) = running("job-adds-much");
    let (parent, child) = family(&jobs, 0);
    let failed = item(&jobs, &parent, "failed");
    let text = failed["failures"][0]["error"].to_string();
    assert!(text.contains("one attempt adds at most 10000 items, and these would make it 10001"), "{text}");
    assert_eq!(payloads(&jobs, &child), [] as [Value; 0]);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_seal_takes_effect_with_the_result() {
    let (jobs, mut host) = running("job-seals");
    let (parent, child) = family(&jobs, 0);
    item(&jobs, &parent, "succeeded");
    assert_eq!(jobs.api.status(&child)["sealed"], true);
    let refused = jobs.api.post(&format!("/job/{child}/items"), json!({ "items": items([1]) }));
    assert_eq!(refused.status, 409);
    assert_eq!(jobs.api.status(&parent)["sealed"], false, "only the child was named");
    assert_eq!(host.stop(), 0);
}

#[test]
fn the_progress_of_an_item_is_shown_while_it_is_processed() {
    let (jobs, mut host) = running("job-reports");
    let (parent, _) = family(&jobs, 0);
    let query = format!("job_id={parent}&state=assigned");
    let shown = until("progress", PATIENCE, || {
        jobs.api.items(&query).pop().map(|item| item["progress"].clone()).filter(|progress| !progress.is_null())
    });
    assert_eq!(shown, json!({ "fraction": 0.5, "text": "half" }));
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_guest_knows_its_job() {
    let (jobs, mut host) = running("job-tells");
    let (parent, _) = family(&jobs, 0);
    assert_eq!(item(&jobs, &parent, "succeeded")["result"], "parent");
    assert_eq!(host.stop(), 0);
}

const NO_JOB: &str =
    "the message is not an item of a job: name the job's type as `job` of the consumer, in place of `channel`";

#[test]
fn without_a_job_a_request_is_an_error() {
    for guest in ["job-adds", "job-adds-much", "job-seals"] {
        let answer = answer_of(&component(guest), "1");
        assert_eq!((&answer["outcome"], &answer["reason"]), (&json!("failed"), &json!(NO_JOB)), "{guest}");
    }
    assert_eq!(reply(&answer_of(&component("job-tells"), "")), b"null");
}

#[test]
fn on_a_plain_queue_a_request_is_an_error_and_a_line_in_the_log() {
    let world = consumer(&component("job-seals"), "retry = { requeues = 0, delays = 0 }");
    world.send("one", ["1"]);
    let mut host = world.started();
    let [settled] = host.settled(1).try_into().unwrap();
    assert!(settled["outcome"] == "failed" && settled["reason"].as_str().unwrap().starts_with(NO_JOB), "{settled}");
    let line = host.wait_for(PATIENCE, |line| line["denied"] == "acting on a job");
    assert_eq!(line["cure"], "name the job's type as the consumer's job, in place of channel");
    assert_eq!(host.stop(), 0);
}
