//! Batches: `hostler run` with handlers that get several messages in one call.

use std::path::Path;

use serde_json::Value;

use crate::invoke::answer_of;
use crate::support::guests::{command, component};
use crate::support::hostler::{Depth, PATIENCE, World, until};

/// A consumer `work` with batches, whose released messages do not come again during a test.
fn batches(handler: &Path, keys: &str) -> World {
    World::new(&format!(
        "[consumers.work]
        channel = 'work'
        handler = '{}'
        batch.max = 10
        concurrency = 1
        retry = {{ requeues = 1, requeue_delay = '1h' }}
        {keys}",
        handler.display()
    ))
}

/// Outcome, attempt and size of the batch of each line, sorted.
fn endings(lines: &[Value]) -> Vec<(String, u64, u64)> {
    let number = |line: &Value, field: &str| line[field].as_u64().unwrap();
    let ending =
        |line: &Value| (line["outcome"].as_str().unwrap().to_owned(), number(line, "attempt"), number(line, "batch"));
    let mut endings: Vec<_> = lines.iter().map(ending).collect();
    endings.sort();
    endings
}

fn expected(outcomes: &[&str], batch: u64) -> Vec<(String, u64, u64)> {
    let mut endings: Vec<_> = outcomes.iter().map(|outcome| ((*outcome).to_owned(), 1, batch)).collect();
    endings.sort();
    endings
}

#[test]
fn each_message_of_a_batch_has_its_own_outcome_and_line() {
    let world = batches(&component("batch-word"), "batch.wait = '300ms'");
    world.send("work", ["a", "r", "e", "d", "a"].map(str::to_owned));
    let mut host = world.start();
    let lines = host.settled(5);
    assert_eq!(host.stop(), 0);
    assert_eq!(endings(&lines), expected(&["ack", "retry", "reply", "ack", "ack"], 5));
    assert_eq!(world.depth("work"), Depth { delayed: 1, ..Depth::default() });
}

#[test]
fn after_a_trap_the_others_run_singly_and_spend_no_attempt() {
    let world = batches(&component("batch-word"), "batch.wait = '300ms'");
    world.send("work", ["a", "d", "t", "a"].map(str::to_owned));
    let mut host = world.start();
    let lines = host.settled(4);
    assert_eq!(host.stop(), 0);
    assert_eq!(endings(&lines), expected(&["ack", "ack", "trapped", "ack"], 4));
    let told: Vec<_> = host.lines().into_iter().filter(|line| line["unanswered"] == 3).collect();
    assert!(matches!(&told[..], [line] if line["batch"] == 4 && line["level"] == "WARN"), "{told:?}");
}

#[test]
fn a_message_that_never_ends_times_out_alone() {
    let keys = "batch.wait = '300ms'\nprocessing_timeout = '1s'\non_processing_timeout = 'retry'";
    let world = batches(&component("batch-word"), keys);
    world.send("work", ["a", "l", "a"].map(str::to_owned));
    let mut host = world.start();
    let lines = host.settled(3);
    assert_eq!(host.stop(), 0);
    assert_eq!(endings(&lines), expected(&["ack", "timed-out", "ack"], 3));
}

#[test]
fn with_fail_and_for_a_wrong_count_all_without_an_answer_fail() {
    for (bodies, outcomes, keys) in [
        (["d", "t", "a"], ["ack", "trapped", "trapped"], "batch.on_trap = 'fail'"),
        (["d", "m", "a"], ["ack", "failed", "failed"], ""),
    ] {
        let world = batches(&component("batch-word"), &format!("batch.wait = '300ms'\n{keys}"));
        world.send("work", bodies.map(str::to_owned));
        let mut host = world.start();
        let lines = host.settled(3);
        assert_eq!(host.stop(), 0);
        assert_eq!(endings(&lines), expected(&outcomes, 3));
    }
}

#[test]
fn a_drain_gives_back_what_was_gathered() {
    let world = batches(&component("batch-word"), "batch.wait = '60s'");
    world.send("work", ["a", "a", "a"].map(str::to_owned));
    let mut host = world.start();
    until("taking the messages", PATIENCE, || (world.depth("work").in_flight == 3).then_some(()));
    assert_eq!(host.stop(), 0);
    assert_eq!(world.depth("work"), Depth { visible: 3, ..Depth::default() });
}

#[test]
fn a_command_answers_in_lines() {
    let world = batches(&command("main-acks-lines"), "batch.wait = '300ms'");
    world.send("work", ["one", "?", "\"two\""].map(str::to_owned));
    let mut host = world.start();
    let lines = host.settled(3);
    assert_eq!(host.stop(), 0);
    assert_eq!(endings(&lines), expected(&["ack", "failed", "ack"], 3));

    let world = batches(&command("main-acks-lines"), "batch.wait = '300ms'");
    world.send("work", ["one", "!", "two"].map(str::to_owned));
    let mut host = world.start();
    let lines = host.settled(3);
    assert_eq!(host.stop(), 0);
    assert_eq!(endings(&lines), expected(&["ack", "failed", "ack"], 3));
    let failed = lines.iter().find(|line| line["outcome"] == "failed").unwrap();
    assert!(failed["reason"].as_str().unwrap().contains("exit code 3"), "{failed}");
}

#[test]
fn a_batch_handler_can_be_invoked_with_one_message() {
    for (body, outcome) in [("a", "ack"), ("d", "ack"), ("t", "trapped"), ("m", "failed")] {
        assert_eq!(answer_of(&component("batch-word"), body)["outcome"], outcome);
    }
}

#[test]
fn a_handler_that_cannot_take_batches_is_refused() {
    for (guest, cure) in [("acks", "hostler:consumer/batch-handler"), ("batch-hooked", "drop the hook `message-start`")]
    {
        let said = batches(&component(guest), "").output(&["check"]);
        assert!(said.code == 65 && said.stderr.contains(cure), "{said:?}");
    }
}
