//! `hostler run` on the embedded queue: the outcomes of messages, and their log lines.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::support::guests::command;
use crate::support::hostler::{Depth, Host, PATIENCE, World, until};

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

fn work(keys: &str) -> World {
    World::new(&format!("{WORK}{keys}"))
}

/// One field of each line, as text or number alike.
fn each(lines: &[Value], field: &str) -> Vec<Value> {
    lines.iter().map(|line| line[field].clone()).collect()
}

/// Time at which a line was written, in seconds of its day.
fn at(line: &Value) -> f64 {
    let time = line["timestamp"].as_str().unwrap().split(['T', 'Z']).nth(1).unwrap();
    time.split(':').fold(0.0, |seconds, part| seconds * 60.0 + part.parse::<f64>().unwrap())
}

/// Seconds from one line to a later one, across midnight too.
fn between(from: &Value, to: &Value) -> f64 {
    (at(to) - at(from)).rem_euclid(86_400.0)
}

#[test]
fn each_message_is_acked_and_has_one_line() {
    let world = work("");
    world.send("work", (0..20).map(|n| format!("ack {n}")));
    let mut host = world.start();
    let lines = host.settled(20);
    assert_eq!(host.stop(), 0);
    assert_eq!(host.settled(20).len(), 20);
    let ids: BTreeSet<_> = lines.iter().map(|line| line["message_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 20);
    for line in &lines {
        let fields: BTreeSet<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let named = "timestamp level target message consumer channel message_id attempt outcome disposition duration_ms queue_delay_ms reason";
        assert_eq!(fields, named.split(' ').collect());
        let known =
            json!({ "consumer": "work", "channel": "work", "attempt": 1, "outcome": "ack", "disposition": "ack" });
        known.as_object().unwrap().iter().for_each(|(field, value)| assert_eq!(line[field], *value, "{line}"));
        assert!(
            line["duration_ms"].as_f64().unwrap() > 0.0 && line["queue_delay_ms"].as_f64().unwrap() >= 0.0,
            "{line}"
        );
    }
    assert_eq!(world.depth("work"), Depth::default());
}

#[test]
fn neither_a_body_nor_a_granted_value_is_logged() {
    // No time, number or id has these letters.
    const MARK: &str = "zqxwvk";
    let keys = format!(
        "retry = {{ requeues = 1, requeue_delay = '10ms', delays = 0 }}
                allow.env = {{ TOKEN = 'granted-{MARK}' }}"
    );
    let world = work(&keys);
    world.send("work", ["a", "t", "m", "s", "x1", "x65", "x75"].map(|word| format!("{word} body-{MARK}")));
    let mut command = world.command(&["run"]);
    command.env("RUST_LOG", "trace");
    let mut host = Host::start(command);
    host.settled(11);
    assert_eq!(host.stop(), 0);
    let lines = host.lines();
    let leaked: Vec<_> = lines.iter().filter(|line| line.to_string().contains(MARK)).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
}

#[test]
fn what_a_guest_writes_is_logged_line_by_line() {
    let world = work("");
    world.send("work", ["s"]);
    let host = world.start();
    let settled = host.settled(1).remove(0);
    for stream in ["stdout", "stderr"] {
        let line = host.wait_for(PATIENCE, |line| line["stream"] == stream);
        assert_eq!(line["message"], format!("on {stream}"));
        assert_eq!(line["target"], "hostler::guest");
        assert_eq!((&line["consumer"], &line["message_id"]), (&settled["consumer"], &settled["message_id"]));
        assert_eq!(line.get("outcome"), None);
    }
}

#[test]
fn the_log_can_be_text() {
    let world = World::new(&format!("telemetry.log = 'text'\n{WORK}"));
    world.send("work", ["x65"]);
    let host = world.start();
    let line = host.wait_for(PATIENCE, |line| line.as_str().is_some_and(|text| text.contains("outcome=")));
    let text = line.as_str().unwrap();
    for part in ["consumer=\"work\"", "attempt=1", "outcome=\"dead-letter\"", "reason=\"bad row\"", "duration_ms="] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains('\x1b'), "no colours where there is no terminal: {text}");
}

#[test]
fn failures_are_requeued_then_delayed_then_dead_lettered() {
    let world =
        work("retry = { requeues = 2, requeue_delay = '300ms', delays = 2, delay = '100ms', max_delay = '1s' }");
    world.send("work", ["x1"]);
    let host = world.start();
    let lines = host.settled(5);
    assert_eq!(each(&lines, "attempt"), [1, 2, 3, 4, 5]);
    assert_eq!(each(&lines, "outcome"), ["failed"; 5]);
    assert_eq!(each(&lines, "disposition"), ["release", "release", "release", "release", "dead-letter"]);
    assert_eq!(each(&lines, "message_id"), vec![lines[0]["message_id"].clone(); 5]);
    assert_eq!(each(&lines[..2], "delay_seconds"), [0.3, 0.3]);
    for (attempt, most) in [(2, 0.1), (3, 0.2)] {
        assert!(lines[attempt]["delay_seconds"].as_f64().unwrap() <= most, "{lines:?}");
    }
    for pair in lines.windows(2) {
        let waited = between(&pair[0], &pair[1]);
        assert!(waited > pair[0]["delay_seconds"].as_f64().unwrap() - 0.01, "{pair:?}");
    }
    assert_eq!(lines[0]["reason"], "exit code 1: bad row");
    assert_eq!(lines[4]["reason"], "exit code 1: bad row (gave up after 5 attempts)");
    assert_eq!(world.depth("work"), Depth { dead_lettered: 1, ..Depth::default() });
}

#[test]
fn a_dead_letter_keeps_its_body_and_carries_its_story() {
    let world = work("[consumers.undertaker]\nchannel = 'work-dlq'\nhandler = 'guests/run-tell.wat'");
    let said = world.output(&["send", "work", "--body", "x65 row 7", "--attr", "tenant=acme"]);
    assert_eq!(said.code, 0, "{said:?}");
    let host = world.start();
    let lines = host.settled(2);
    assert_eq!(each(&lines, "disposition"), ["dead-letter", "ack"]);
    assert_eq!(lines[0]["reason"], "bad row");
    let told = |start: &str| {
        let line = host.wait_for(PATIENCE, |line| line["message"].as_str().is_some_and(|text| text.starts_with(start)));
        line["message"].as_str().unwrap()[start.len()..].to_owned()
    };
    let story = json!({ "hostler-attempts": "1", "hostler-dead-letter-reason": "bad row", "hostler-source": "work",
                        "tenant": "acme" });
    assert_eq!(serde_json::from_str::<Value>(&told("MESSAGE_ATTRIBUTES=")).unwrap(), story);
    assert_eq!(told("x65 "), "row 7");
}

#[test]
fn a_reply_goes_to_its_channel_with_the_id_of_what_it_answers() {
    let keys = "reply = 'stdout'\nreply_channel = 'answers'
                [consumers.answers]\nchannel = 'answers'\nhandler = 'guests/run-tell.wat'";
    let world = work(keys);
    world.send("work", ["echo me"]);
    let host = world.start();
    let lines = host.settled(2);
    let asked = lines.iter().find(|line| line["consumer"] == "work").unwrap();
    assert_eq!((&asked["outcome"], &asked["disposition"]), (&json!("reply"), &json!("ack")));
    let correlation = format!("MESSAGE_ATTRIBUTES={}", json!({ "correlation-id": asked["message_id"] }));
    host.wait_for(PATIENCE, |line| line["message"] == correlation);
    host.wait_for(PATIENCE, |line| line["message"] == "echo me" && line["consumer"] == "answers");
}

#[test]
fn without_a_dead_letter_queue_a_message_stays_in_its_queue() {
    let world = work("dead_letter = false\nretry = { requeues = 0, delays = 0, delay = '50ms', max_delay = '50ms' }");
    world.send("work", ["x65"]);
    let mut host = world.start();
    let lines = host.settled(6);
    assert_eq!(each(&lines[..6], "outcome"), ["dead-letter"; 6]);
    assert_eq!(each(&lines[..6], "disposition"), ["release"; 6]);
    assert_eq!(each(&lines[..6], "attempt"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(host.stop(), 0);
    let depth = world.depth("work");
    assert_eq!((depth.visible + depth.delayed, depth.in_flight, depth.dead_lettered), (1, 0, 0));
}

#[test]
fn a_rate_limit_holds() {
    let world = work("rate_limit = '20/s'");
    world.send("work", (0..60).map(|n| format!("ack {n}")));
    let host = world.start();
    let lines = host.settled(60);
    // A second's worth at once, then twenty a second.
    let took = between(&lines[0], &lines[59]);
    assert!((1.8..6.0).contains(&took), "{took} s");
    for first in &lines[20..] {
        let in_a_second = lines[20..].iter().filter(|line| (0.0..1.0).contains(&(at(line) - at(first)))).count();
        assert!(in_a_second <= 25, "{in_a_second} within a second");
    }
}

#[test]
fn a_message_beyond_the_delay_tolerance_is_late() {
    let world = work("delay_tolerance = '1s'");
    world.send("work", ["old"]);
    until("the message is old", PATIENCE, || (world.row("work")["oldest_age_seconds"].as_u64()? >= 2).then_some(()));
    let mut host = world.start();
    let old = host.settled(1).remove(0);
    assert_eq!(old["late"], true);
    assert!(old["queue_delay_ms"].as_f64().unwrap() >= 2_000.0, "{old}");
    world.send("work", ["new"]);
    assert_eq!(host.settled(2)[1].get("late"), None);
    assert_eq!(host.stop(), 0);
    assert_eq!(host.wait_for(PATIENCE, |line| line["message"] == "drained")["late"], 1);
}

#[test]
fn a_lease_is_kept_through_work_that_takes_much_longer() {
    let world = work("lease = '1s'");
    let mut hosts = [world.started(), world.started()];
    world.send("work", ["w3500"]);
    let depth = until("one of them has it", PATIENCE, || Some(world.depth("work")).filter(|depth| depth.visible == 0));
    assert_eq!(depth.in_flight, 1);
    // The other one would take it as soon as its lease ended.
    until("it is done", PATIENCE, || (world.depth("work") == Depth::default()).then_some(()));
    assert_eq!(hosts.each_mut().map(Host::stop), [0, 0]);
    let lines: Vec<_> = hosts.iter().flat_map(Host::lines).filter(|line| line.get("outcome").is_some()).collect();
    assert_eq!((each(&lines, "outcome"), each(&lines, "attempt")), (vec![json!("ack")], vec![json!(1)]));
    assert!(lines[0]["duration_ms"].as_f64().unwrap() >= 3_500.0);
}

/// One endless loop in a slot, work in the others, and short messages that must get through meanwhile.
fn a_loop_beside_others(timeout: &str, timeout_ms: f64, others: usize, work_ms: u32) {
    let keys = format!("concurrency = 16\nlease = '1s'\nprocessing_timeout = '{timeout}'\n");
    let world = work(&keys);
    let host = world.started();
    let long = (0..others).map(|_| format!("w{work_ms}"));
    world.send("work", std::iter::once("l".to_owned()).chain(long).chain((0..50).map(|n| format!("quick {n}"))));
    let lines = host.settled(others + 51);
    let (stopped, done): (Vec<_>, Vec<_>) = lines.iter().cloned().partition(|line| line["outcome"] == "timed-out");
    assert_eq!(stopped.len(), 1);
    assert_eq!(stopped[0]["disposition"], "dead-letter");
    let took = stopped[0]["duration_ms"].as_f64().unwrap();
    // A build without optimisation is allowed to be slow.
    let slack = if cfg!(debug_assertions) { 1_000.0 } else { 100.0 };
    assert!((timeout_ms..=timeout_ms + slack).contains(&took), "stopped after {took} ms");
    assert_eq!(each(&done, "outcome"), vec![json!("ack"); others + 50]);
    assert_eq!(each(&done, "attempt"), vec![json!(1); others + 50]);
    let quick = done.iter().take_while(|line| line["duration_ms"].as_f64().unwrap() < f64::from(work_ms)).count();
    assert!(quick >= 50, "only {quick} of 50 short messages got through beside the long ones");
}

#[test]
fn an_endless_loop_is_stopped_in_time_while_the_other_slots_work() {
    a_loop_beside_others("1s", 1_000.0, 14, 800);
}

#[test]
fn an_endless_loop_costs_no_other_message_its_lease() {
    a_loop_beside_others("4s", 4_000.0, 14, 3_000);
}

#[test]
fn a_processing_timeout_can_mean_another_attempt() {
    let keys = "processing_timeout = '1s'\non_processing_timeout = 'retry'
                retry = { requeues = 1, requeue_delay = '10ms', delays = 0 }";
    let world = work(keys);
    world.send("work", ["w30000"]);
    let host = world.start();
    let lines = host.settled(2);
    assert_eq!(each(&lines, "outcome"), ["timed-out"; 2]);
    assert_eq!(each(&lines, "disposition"), ["release", "dead-letter"]);
    assert_eq!(lines[1]["reason"], "processing timeout after 1.000 s (gave up after 2 attempts)");
}

#[test]
fn a_processing_timeout_can_end_the_host_which_drains_first() {
    let keys = "processing_timeout = '1s'\non_processing_timeout = 'exit'
                [consumers.other]\nchannel = 'other'\nhandler = 'guests/run-word.wat'";
    let world = work(keys);
    world.send("work", ["l"]);
    world.send("other", ["w2000"]);
    let mut host = world.start();
    assert_eq!(host.wait_exit(PATIENCE), 71);
    let lines = host.settled(2);
    assert_eq!(each(&lines, "outcome"), ["timed-out", "ack"], "what ran beside it was finished");
    assert_eq!(each(&lines, "disposition"), ["release", "ack"]);
    assert_eq!(world.depth("work").dead_lettered, 0);
}

#[test]
fn no_handler_takes_the_host_down() {
    let world = work("processing_timeout = '1s'\nlimits.memory = '2MiB'\nretry = { requeues = 0, delays = 0 }");
    world.send("work", ["t", "m", "x1", "x100", "l"]);
    let mut host = world.start();
    let lines = host.settled(5);
    let reasons: BTreeSet<_> = lines.iter().map(|line| line["reason"].as_str().unwrap()).collect();
    for part in ["unreachable", "limits.memory is 2.0 MiB", "exit code 1: ", "exit code 100: ", "processing timeout"] {
        assert!(reasons.iter().any(|reason| reason.contains(part)), "{part} in {reasons:?}");
    }
    world.send("work", ["ack"]);
    assert_eq!(host.settled(6)[5]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
    assert_eq!(world.depth("work"), Depth { dead_lettered: 5, ..Depth::default() });
}

#[test]
fn two_processes_share_a_queue() {
    let world = work("concurrency = 2");
    let mut hosts = [world.started(), world.started()];
    world.send("work", (0..200).map(|_| "w10"));
    until("all are done", PATIENCE, || (world.depth("work") == Depth::default()).then_some(()));
    assert_eq!(hosts.each_mut().map(Host::stop), [0, 0]);
    let ids = hosts.each_ref().map(|host| {
        let lines: Vec<_> = host.lines().into_iter().filter(|line| line.get("outcome").is_some()).collect();
        lines.iter().map(|line| line["message_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert!(ids.iter().all(|ids| !ids.is_empty()), "both took part");
    let distinct: BTreeSet<_> = ids.iter().flatten().collect();
    assert_eq!((distinct.len(), ids[0].len() + ids[1].len()), (200, 200));
}

#[test]
fn a_log_that_nobody_reads_tells_what_it_lost() {
    let handler = command("main-floods");
    let world = World::new(&format!(
        "[consumers.work]
         channel = 'work'
         handler = '{}'
         concurrency = 1
         limits.output = '16MiB'",
        handler.display()
    ));
    // Each has two lines of 5 MiB, which are cut to half of one: more than may wait.
    world.send("work", ["x"; 12]);
    let (read, gate) = channel();
    let mut host = Host::start_unread(world.command(&["run"]), gate);
    until("all are done", PATIENCE, || (world.depth("work") == Depth::default()).then_some(()));
    drop(read);
    let told = host.wait_for(PATIENCE, |line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("log lines were dropped"))
    });
    assert!(told["dropped"].as_u64().is_some_and(|dropped| dropped > 0) && told["level"] == "WARN", "{told}");
    let is_cut = |line: &Value| line["stream"] == "stdout" && line["message"].as_str().unwrap().ends_with(" … (cut)");
    assert!(host.lines().iter().any(is_cut));
    assert_eq!(host.stop(), 0);
}
