//! Ends of `hostler run` on SQS: started messages are not lost, and others do not wait for their leases.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::{WORK, settlements, text};
use crate::support::hostler::{Host, PATIENCE, SECOND, until};
use crate::support::proxy::Proxy;
use crate::support::servers::{Kind, Server};
use crate::support::sqs::Aws;

/// Number of messages that a host finished. All others have gone back unstarted.
fn acked(host: &Host) -> u64 {
    let (acked, others): (Vec<_>, Vec<_>) = settlements(host).into_iter().partition(|line| line["outcome"] == "ack");
    assert!(others.iter().all(went_back), "{others:?}");
    acked.len() as u64
}

fn went_back(line: &Value) -> bool {
    line["outcome"] == "shutdown" && line["disposition"] == "release" && line["duration_ms"] == 0.0
}

/// Ends a host in the middle of many messages; at once after that, the rest is visible.
fn a_busy_host(kind: Kind, name: &str, keys: &str) {
    const SENT: u64 = 120;
    let world = Aws::new(kind, &format!("{WORK}concurrency = 4\nlease = '60s'\n{keys}"));
    let mut host = world.started();
    thread::scope(|scope| {
        for group in ["a", "b", "c", "d", "e", "f"] {
            let (lines, world) = ("w200\n".repeat(SENT as usize / 6), &world);
            scope.spawn(move || {
                assert_eq!(world.output_with(&["send", "work", "--lines", "-", "--group", group], lines).code, 0);
            });
        }
    });
    host.settled(12);
    assert_eq!(host.stop(), 0);
    let done = acked(&host);
    assert!(done < SENT, "the signal came too late to prove anything");
    assert_eq!(world.counts(name), [SENT - done, 0, 0], "after {done} of {SENT}");

    let mut next = world.started();
    next.settled(12);
    assert_eq!(next.stop(), 0);
    let more = acked(&next);
    assert_eq!(world.counts(name), [SENT - done - more, 0, 0], "after {more} more");
}

#[test]
fn a_busy_host_leaves_the_rest_visible_localstack() {
    a_busy_host(Kind::LocalStack, "work", "");
}

#[test]
fn a_busy_host_leaves_the_rest_visible_ministack() {
    a_busy_host(Kind::Ministack, "work", "");
}

#[test]
fn a_busy_ordered_host_leaves_the_rest_visible() {
    a_busy_host(Kind::LocalStack, "work.fifo", "ordered = true");
}

/// A host in the middle of a long poll, and the proxy that it polls through.
fn polling(grace: Duration) -> (Aws, Host, Proxy) {
    let proxy = Proxy::before(&Server::shared(Kind::LocalStack).endpoint());
    let config = format!("host.shutdown_grace = '{}s'\n{WORK}lease = '60s'", grace.as_secs());
    let world = Aws::through(&proxy.endpoint(), Kind::LocalStack, &config);
    let host = world.started();
    until("it polls", PATIENCE, || proxy.calls().contains_key("ReceiveMessage").then_some(()));
    (world, host, proxy)
}

#[test]
fn a_host_in_a_long_poll_ends_within_its_grace() {
    let grace = 6 * SECOND;
    let (world, mut host, proxy) = polling(grace);
    let asked = Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(asked.elapsed() < grace, "{:?}", asked.elapsed());
    assert_eq!(proxy.calls()["ReceiveMessage"], 1);
    assert_eq!(world.counts("work"), [0, 0, 0]);
}

#[test]
fn what_a_poll_brings_after_the_signal_goes_back_at_once() {
    let (world, mut host, proxy) = polling(25 * SECOND);
    host.signal(Signal::TERM);
    host.wait_for(PATIENCE, |line| line["message"] == "draining");
    world.send("work", ["late"]);
    let sent = Instant::now();
    assert_eq!(host.wait_exit(PATIENCE), 0);
    assert!(sent.elapsed() < 5 * SECOND, "nothing is left to wait for, and it took {:?}", sent.elapsed());
    assert_eq!(acked(&host), 0);
    assert_eq!(world.counts("work"), [1, 0, 0]);
    assert_eq!(proxy.calls()["ReceiveMessage"], 1);
}

#[test]
fn work_beyond_the_grace_is_visible_at_once() {
    let world = Aws::new(Kind::LocalStack, &format!("host.shutdown_grace = '2s'\n{WORK}lease = '60s'"));
    let mut host = world.started();
    world.send("work", ["w50000", "l"]);
    until("they are in flight", PATIENCE, || (world.depth("work").in_flight == 2).then_some(()));
    host.signal(Signal::TERM);
    assert_eq!(host.wait_exit(PATIENCE), 75);
    let lines = settlements(&host);
    assert!(lines.iter().all(|line| line["outcome"] == "shutdown" && line["disposition"] == "release"), "{lines:?}");
    assert_eq!(world.counts("work"), [2, 0, 0]);
}

#[test]
fn what_its_dead_letter_queue_does_not_take_is_visible_once_the_grace_is_over() {
    const SENT: usize = 12;
    let grace = 5 * SECOND;
    let retry = "retry = { requeues = 0, delays = 0 }";
    let world = Aws::new(Kind::LocalStack, &format!("host.shutdown_grace = '5s'\n{WORK}lease = '60s'\n{retry}"));
    // A send would make the queue that is missing.
    assert_eq!(world.output(&["pause", "--all"]).code, 0);
    let mut host = world.started();
    world.send("work", vec!["x65"; SENT]);
    world.python("sqs.delete_queue(QueueUrl=url(prefix + 'work-dlq'))", &[]);
    assert_eq!(world.output(&["resume", "--all"]).code, 0);
    let mut refused = BTreeSet::new();
    host.wait_for(PATIENCE, |line| {
        if line["message"] == "settlement failed" {
            refused.insert(text(line, "message_id").to_owned());
        }
        refused.len() == SENT
    });
    let asked = Instant::now();
    assert_eq!(host.stop(), 75);
    assert!(asked.elapsed() < grace + SECOND, "{:?}", asked.elapsed());
    let lines = settlements(&host);
    let released = |line: &Value| line["outcome"] == "dead-letter" && line["disposition"] == "release";
    assert!(lines.len() == SENT && lines.iter().all(released), "{lines:?}");
    assert_eq!(world.counts("work"), [SENT as u64, 0, 0]);
}

#[test]
fn a_killed_host_loses_no_message() {
    const SENT: usize = 1_000;
    let config = "
        [consumers.jobs]
        channel = 'jobs'
        handler = 'guests/run-mark.wat'
        lease = '2s'
        retry.requeues = 20
        allow.dirs = [{ host = 'marks', guest = '/marks', mode = 'rw' }]
    ";
    let world = Aws::new(Kind::LocalStack, config);
    world.send("jobs", (0..SENT).map(|n| n.to_string()));
    let marks = || -> BTreeSet<usize> {
        let files = fs::read_dir(world.path("marks")).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap().parse().unwrap()).collect()
    };
    for _ in 0..3 {
        let host = world.started();
        host.settled(150);
        host.kill();
        let left: u64 = world.counts("jobs").iter().sum();
        assert!(left as usize + marks().len() >= SENT, "{left} are left, and {} were done", marks().len());
        assert!(left > 0, "killed with work to do");
    }
    let mut host = world.started();
    until("all are done", PATIENCE, || (marks().len() == SENT).then_some(()));
    until("the queue is empty", PATIENCE, || (world.counts("jobs") == [0, 0, 0]).then_some(()));
    assert_eq!(host.stop(), 0);
    assert_eq!(world.counts("jobs-dlq"), [0, 0, 0]);
}
