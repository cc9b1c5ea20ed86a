//! `requeue`: the command on the embedded queue, and the engine behind it on the fake.

mod engine;
mod service;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Stdio};

use rusqlite::Connection;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::support::hostler::{Depth, PATIENCE, World, pid, until};

/// A consumer `jobs` whose handler leaves a file named as the body for each message.
const MARKS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-mark.wat'
    allow.dirs = [{ host = 'marks', guest = '/marks', mode = 'rw' }]
";

/// With so many messages in the dead-letter queue; their bodies are numbers.
fn dead_letters(count: usize) -> World {
    let world = World::new(MARKS);
    world.send("jobs-dlq", (0..count).map(|n| n.to_string()));
    world
}

fn all(depth: Depth) -> u64 {
    depth.visible + depth.delayed + depth.in_flight
}

/// The bodies of the messages in `jobs`, consumed.
fn consumed(world: &World) -> BTreeSet<usize> {
    let mut host = world.start();
    until("all is consumed", PATIENCE, || (all(world.depth("jobs")) == 0).then_some(()));
    assert_eq!(host.stop(), 0);
    let files = fs::read_dir(world.path("marks")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap().parse().unwrap()).collect()
}

#[test]
fn dead_letters_go_back_to_where_they_came_from() {
    let world = dead_letters(25);
    let said = world.output(&["requeue", "--from", "jobs-dlq"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    assert_eq!(said.stdout, "25 messages moved from jobs-dlq to jobs\n");
    assert_eq!(world.depth("jobs"), Depth { visible: 25, ..Depth::default() });
    assert_eq!(consumed(&world), (0..25).collect());
    let said = world.output(&["requeue", "--from", "jobs-dlq"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "0 messages moved from jobs-dlq to jobs\n"));
}

#[test]
fn the_handler_sees_what_was_sent_and_the_first_id() {
    let world = World::new("[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/run-tell.wat'");
    let id = world.output(&["send", "jobs-dlq", "--body", "x", "--attr", "tenant=7"]).stdout;
    for (from, to) in [("jobs-dlq", "parked"), ("parked", "jobs")] {
        world.queue("parked");
        assert_eq!(world.output(&["send", to, "--body", "seed"]).code, 0);
        let said = world.output(&["requeue", "--from", from, "--to", to, "--filter", "attr:tenant=7", "--json"]);
        let counts: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!((said.code, &counts["moved"]), (0, &json!(1)), "{said:?}");
    }
    let host = world.start();
    host.settled(2);
    let attributes = json!({ "hostler-original-id": id.trim_end(), "tenant": "7" });
    assert!(host.lines().iter().any(|line| line["message"] == format!("MESSAGE_ATTRIBUTES={attributes}")));
}

#[test]
fn what_does_not_match_stays() {
    let world = dead_letters(25);
    let said = world.output(&["requeue", "--from", "jobs-dlq", "--filter", "body~1", "--filter", "younger:1h"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    assert_eq!(said.stdout, "12 messages moved from jobs-dlq to jobs, 13 left (did not match)\n");
    assert_eq!(world.depth("jobs-dlq"), Depth { visible: 13, ..Depth::default() });
    let said = world.output(&["requeue", "--from", "jobs-dlq", "--max", "3", "--json"]);
    let counts = json!({ "moved": 3, "left": 0, "failed": 0, "doubled": 0,
                         "not_looked_at": 10, "stopped": false, "dry_run": false });
    assert_eq!((said.code, said.stdout.trim_end()), (0, counts.to_string().as_str()));
}

#[test]
fn a_dry_run_lists_and_moves_nothing() {
    let world = dead_letters(25);
    let id = world.output(&["send", "jobs-dlq", "--body", "x", "--attr", "hostler-dead-letter-reason=no\nline"]).stdout;
    let said = world.output(&["requeue", "--from", "jobs-dlq", "--dry-run", "--filter", "reason~no"]);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!((said.code, lines.len()), (0, 2), "{said:?}");
    assert!(lines[0].starts_with(id.trim_end()) && lines[0].ends_with(r"no\nline"), "{said:?}");
    assert_eq!(lines[1], "1 message would move from jobs-dlq to jobs, 25 would stay (did not match)");
    let said = world.output(&["requeue", "--from", "jobs-dlq", "--dry-run", "--json"]);
    let counts = json!({ "moved": 26, "left": 0, "failed": 0, "doubled": 0,
                         "not_looked_at": 0, "stopped": false, "dry_run": true });
    assert_eq!((said.code, said.stdout.trim_end()), (0, counts.to_string().as_str()));
    assert_eq!((world.depth("jobs-dlq").visible, all(world.depth("jobs"))), (26, 0));
}

#[test]
fn of_a_fan_out_channel_that_queue_alone_gets_them() {
    let world = World::new(
        "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-tell.wat'
         [consumers.all]\nchannel = 'news.all'\nhandler = 'guests/run-tell.wat'",
    );
    world.send("mobile-dlq", ["a", "b"]);
    let said = world.output(&["requeue", "--from", "mobile-dlq", "--to", "news.mobile"]);
    assert_eq!(said.stdout, "2 messages moved from mobile-dlq to news.mobile\n", "{said:?}");
    assert_eq!((world.depth("mobile").visible, world.depth("all").visible), (2, 0));
}

#[test]
fn what_cannot_be_done_is_refused_with_a_cure() {
    let world = dead_letters(3);
    let cases: [(&[&str], i32, &str); 11] = [
        (&[], 2, "--from"),
        (&["--from", "jbos"], 69, "there is no queue `jbos-dlq`"),
        (&["--from", "jobs-dlq", "--to", "jobs-dlq"], 2, "the same queue"),
        (&["--from", "jobs-dlq", "--max", "0"], 2, "--max"),
        (&["--from", "jobs-dlq", "--rate", "fast"], 2, "--rate"),
        (&["--from", "jobs-dlq", "--filter", "tenant=7"], 2, "`tenant=7` is not a valid filter: write attr:NAME=VALUE"),
        (&["--from", "jobs-dlq", "--native", "--max", "1"], 2, "cannot be used with"),
        (&["--from", "jobs-dlq", "--native", "--dry-run"], 2, "cannot be used with"),
        (&["--from", "jobs-dlq", "--native"], 69, "only SQS has a move task of its own; leave --native out"),
        (&["--from", "jbos-dlq", "--to", "jobs"], 69, "there is no queue `jbos-dlq`"),
        (&["--from", "jobs-dlq", "--to", "jbos"], 69, "there is no queue `jbos`"),
    ];
    for (args, code, part) in cases {
        let said = world.output(&[&["requeue"], args].concat());
        assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{args:?}: {said:?}");
        assert!(said.stderr.contains(part), "{part} in {said:?}");
    }
    assert_eq!(world.depth("jobs-dlq").visible, 3);
}

/// As for `dlq`.
#[test]
fn a_channel_names_its_dead_letters() {
    let world = dead_letters(3);
    let said = world.output(&["requeue", "--from", "jobs", "--max", "2"]);
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (0, "2 messages moved from jobs-dlq to jobs, 1 not inspected\n"),
        "{said:?}"
    );
    // Who says where to means the queue itself.
    let said = world.output(&["requeue", "--from", "jobs", "--to", "jobs-dlq"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "2 messages moved from jobs to jobs-dlq\n"), "{said:?}");
}

#[test]
fn an_id_that_meets_no_message_is_a_failure() {
    let world = dead_letters(2);
    let id = world.output(&["send", "jobs-dlq", "--body", "x"]).stdout;
    let requeue = |args: &[&str]| world.output(&[&["requeue", "--from", "jobs-dlq"], args].concat());
    let more = [&["--id", "4711", "--json"][..], &["--id", "4711", "--max", "5"]];
    for args in [&["--id", "4711"][..], &["--id", "4711", "--dry-run"]].into_iter().chain(more) {
        let said = requeue(args);
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
        assert!(said.stderr.contains("no message in jobs-dlq has the id 4711"), "{args:?}: {said:?}");
    }
    let said = requeue(&["--id", id.trim_end(), "4711"]);
    assert_eq!((said.code, said.stdout.starts_with("1 message moved")), (1, true), "{said:?}");
    assert!(said.stderr.contains("1 of the 2 messages that --id names are in jobs-dlq"), "{said:?}");
    // What is beyond the maximum was not looked for.
    let letters: Value = serde_json::from_str(&world.output(&["dlq", "ls", "jobs", "--json"]).stdout).unwrap();
    assert_eq!(requeue(&["--id", "4711", letters[0]["id"].as_str().unwrap(), "--max", "1"]).code, 0);
    // A filter that nothing fits is no fault, but for one that names a message.
    assert_eq!(requeue(&["--filter", "reason~nothing like it"]).code, 0);
    let said = requeue(&["--filter", "id=4711", "--filter", "older:0s"]);
    assert!(said.code == 1 && said.stderr.contains("has the id 4711 and matches the filter"), "{said:?}");
    assert_eq!(world.depth("jobs-dlq").visible, 1);
}

#[test]
fn text_is_shown_as_it_is_on_one_line() {
    let world = World::new("[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/run-tell.wat'");
    let reason = "hostler-dead-letter-reason=can't find \"x\"\n\u{1b}[31min C:\\y";
    let id = world.output(&["send", "jobs-dlq", "--body", "it's", "--attr", reason]).stdout;
    let shown = r#"can't find "x"\n\u{1b}[31min C:\y"#;
    for args in [&["requeue", "--from", "jobs-dlq", "--dry-run"][..], &["dlq", "ls", "jobs"]] {
        let said = world.output(args);
        assert!(said.stdout.lines().any(|line| line.ends_with(shown)), "{args:?}: {said:?}");
    }
    let said = world.output(&["dlq", "show", "jobs", id.trim_end(), "--body"]);
    assert!(said.stdout.contains(&format!("{shown}\n")) && said.stdout.contains("  it's\n"), "{said:?}");
}

#[test]
fn what_could_not_be_removed_is_told_and_counted() {
    let world = dead_letters(1);
    let refusal = "CREATE TRIGGER stuck BEFORE DELETE ON entry
        WHEN OLD.queue = (SELECT id FROM queue WHERE name = 'jobs-dlq') BEGIN SELECT RAISE(ABORT, 'it is stuck'); END";
    Connection::open(world.path("queue.db")).unwrap().execute_batch(refusal).unwrap();
    let said = world.output(&["requeue", "--from", "jobs-dlq", "--json"]);
    let counts: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((said.code, &counts["moved"], &counts["doubled"]), (1, &json!(1), &json!(1)), "{said:?}");
    assert!(said.stderr.contains("hostler: warning: not removed") && said.stderr.contains("it is stuck"), "{said:?}");
    assert_eq!((all(world.depth("jobs-dlq")), all(world.depth("jobs"))), (1, 1));

    world.send("jobs-dlq", ["another"]);
    let said = world.output(&["dlq", "drop", "jobs", "--yes", "--filter", "body~another"]);
    assert!(said.code == 1 && said.stdout.starts_with("0 messages dropped from jobs-dlq, "), "{said:?}");
    assert!(said.stdout.contains("1 failed"), "{said:?}");
    assert!(said.stderr.contains("hostler: warning: not removed"), "{said:?}");
}

/// A requeue of everything in `jobs-dlq`, slowly, once it is in the middle of it.
fn in_the_middle(world: &World) -> Child {
    let mut command = world.command(&["requeue", "--from", "jobs-dlq", "--rate", "300"]);
    let requeue = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("some have moved", PATIENCE, || (world.depth("jobs").visible > 400).then_some(()));
    requeue
}

#[test]
fn a_signal_stops_it_between_two_batches_and_the_summary_says_so() {
    let world = dead_letters(2_000);
    let requeue = in_the_middle(&world);
    kill_process(pid(requeue.id()), Signal::INT).unwrap();
    let output = requeue.wait_with_output().unwrap();
    let (left, moved) = (world.depth("jobs-dlq"), world.depth("jobs"));
    assert!(left.visible > 0, "in the middle of it: {left:?}");
    assert_eq!((left.visible + moved.visible, left.in_flight), (2_000, 0), "{left:?} {moved:?}");
    let (left, moved) = (left.visible, moved.visible);
    let said = format!("stopped: {moved} messages moved from jobs-dlq to jobs, {left} not inspected\n");
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), said));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "hostler: finishing what is under way; Ctrl-C again ends at once\n");
}

#[test]
fn a_killed_requeue_loses_nothing_and_the_next_one_completes_it() {
    let world = dead_letters(2_000);
    let mut requeue = in_the_middle(&world);
    requeue.kill().unwrap();
    requeue.wait().unwrap();
    let (left, moved) = (world.depth("jobs-dlq"), world.depth("jobs"));
    assert!(left.visible > 0, "killed with work to do: {left:?}");
    assert!(all(left) + all(moved) >= 2_000, "{left:?} {moved:?}");

    // What the dead one had leased comes back when its lease ends.
    until("all of it is visible", 2 * PATIENCE, || (world.depth("jobs-dlq").in_flight == 0).then_some(()));
    let said = world.output(&["requeue", "--from", "jobs-dlq"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    assert_eq!(world.depth("jobs-dlq"), Depth::default());
    assert_eq!(world.depth("jobs"), Depth { visible: 2_000, ..Depth::default() }, "and none is there twice");
    assert!(consumed(&world) == (0..2_000).collect());
}
