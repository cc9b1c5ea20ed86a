//! Guests that do their worst, beside a consumer that wants to get on: each is contained, named in the log, and costs its
//! neighbour no more than a fifth of its throughput.

#[cfg(test)]
mod audit;
mod composed;
mod fresh;
#[cfg(test)]
mod grants;
#[cfg(test)]
mod hardening;
#[cfg(test)]
mod hung;
mod limits;
#[cfg(test)]
mod listings;
#[cfg(test)]
mod neighbour;
#[cfg(test)]
mod no_pool;
#[cfg(test)]
mod overshoot;
#[cfg(test)]
mod process_limits;
mod upload;

use std::fs;

use serde_json::Value;

use crate::http::HOSTILE;
use crate::support::guests::{command, component};
use crate::support::hostler::{Host, PATIENCE, World, until};

/// An attempt of a guest, and the log line about it.
struct Attempt {
    word: &'static str,
    body: String,
    /// Further keys of its consumer.
    grants: &'static str,
    outcome: &'static str,
    /// In the reason, or in a warning before.
    named: &'static str,
}

fn attempt(word: &'static str, body: &str, outcome: &'static str, named: &'static str) -> Attempt {
    Attempt { word, body: body.to_owned(), grants: "", outcome, named }
}

fn attempts() -> Vec<Attempt> {
    vec![
        attempt("loop", "now", "timed-out", "processing timeout"),
        attempt("sleep", "now", "timed-out", "processing timeout"),
        attempt("clock", "now", "timed-out", "processing timeout"),
        attempt("random", "now", "timed-out", "processing timeout"),
        attempt("flood", "now", "timed-out", "processing timeout"),
        attempt("memory", "now", "trapped", "out of memory: limits.memory"),
        attempt("stack", "now", "trapped", "out of bounds memory access"),
        attempt("panic", "no such customer", "trapped", "panicked at src/lib.rs"),
        attempt("panic", "no such customer", "trapped", ": no such customer\""),
        attempt("lines", "100000", "ack", "output beyond limits.output"),
        attempt("short", "32768", "ack", "32668 more lines of output"),
        Attempt { grants: "hooks = 'hooks.wasm'", ..attempt("ack", "now", "ack", "it took longer than 2 s") },
        Attempt { grants: "allow.send = ['hostile']", ..attempt("fork", "hostile", "timed-out", "processing timeout") },
        attempt("fork", "neighbour", "failed", "allow.send"),
        // Where nothing is granted, the guest's own library knows that no folder could hold this, and asks no further.
        attempt("read", "/etc/passwd", "failed", "looked for folders; none is granted"),
        attempt("read", "../../etc/passwd", "failed", "allow.dirs"),
        Attempt { grants: GRANT, ..attempt("read", "/granted/../../etc/passwd", "failed", "allow.dirs") },
        Attempt { grants: GRANT, ..attempt("files", "100", "timed-out", "processing timeout") },
        Attempt { grants: GRANT, ..attempt("list", "now", "timed-out", "processing timeout") },
        attempt(INSTANCES, "now", "timed-out", "processing timeout"),
        Attempt { grants: GRANT, ..attempt("read", "/granted/out", "failed", "allow.dirs") },
        Attempt { grants: GRANT, ..attempt("write", "/granted/new", "failed", "allow.dirs") },
        Attempt { grants: GRANT, ..attempt("tamper", "/granted/..", "failed", "9 of 9 denied") },
        attempt("polls", "200000", "trapped", "a list of 200000 entries was passed"),
        attempt("fields", "100000", "trapped", "a list of 100000 entries was passed"),
        Attempt {
            grants: "allow.send = ['neighbour']",
            ..attempt("attributes", "100000", "failed", "a list of 100000 entries was passed")
        },
        attempt("tcp", "127.0.0.1:80", "failed", "allow.tcp"),
        attempt("udp", "now", "failed", "no UDP"),
        attempt("name", "localhost", "failed", ""),
        attempt("get", "http://169.254.170.2/v2/credentials", "failed", "allow.http"),
        attempt("get", "http://localhost/", "failed", "allow.http"),
    ]
}

/// The attempt that is a component of many instances, which wait.
const INSTANCES: &str = "instances";

const GRANT: &str = "allow.dirs = [{ host = 'granted', guest = '/granted' }]";

/// A host with a neighbour and a hostile consumer. The folder that it grants has a link that leads out of it; its hooks, if it
/// has any, loop.
fn world(attempt: &Attempt) -> World {
    let world = World::new(&config(attempt));
    std::os::unix::fs::symlink(component("hook-state-loops"), world.path("hooks.wasm")).unwrap();
    fs::create_dir(world.path("granted")).unwrap();
    fs::write(world.path("granted/file"), "").unwrap();
    for more in 0..if attempt.word == "list" { 5_000 } else { 0 } {
        fs::write(world.path("granted").join(more.to_string()), "").unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", world.path("granted/out")).unwrap();
    world
}

fn config(attempt: &Attempt) -> String {
    format!(
        "[consumers.neighbour]\nchannel = 'neighbour'\nhandler = '{}'\nconcurrency = 16\n\
         [consumers.hostile]\nchannel = 'hostile'\nhandler = '{}'\nconcurrency = {}\nprocessing_timeout = '{}'\n\
         limits.memory = '32MiB'\nretry.requeues = 1\nretry.requeue_delay = '0s'\nretry.delays = 0\n{}",
        command("main-exits").display(),
        if attempt.word == INSTANCES { limits::many_instances() } else { HOSTILE.clone() }.display(),
        if attempt.word == INSTANCES { 16 } else { 2 },
        // Who comes to an end gets the time for it, on a machine that is busy with other things too.
        if attempt.outcome == "ack" { "20s" } else { "1s" },
        attempt.grants,
    )
}

fn send(world: &World, attempt: &Attempt, count: usize) {
    let word = format!("do={}", attempt.word);
    let lines = format!("{}\n", attempt.body).repeat(count);
    let said = world.output_with(&["send", "hostile", "--lines", "-", "--attr", &word], lines);
    assert_eq!(said.code, 0, "{said:?}");
}

fn is_settled(line: &Value, consumer: &str) -> bool {
    line["message"] == "settled" && line["consumer"] == consumer
}

#[test]
fn every_attempt_is_contained_and_named() {
    for attempt in attempts() {
        let world = world(&attempt);
        send(&world, &attempt, 1);
        let host = world.started();
        let settled = host.wait_for(PATIENCE, |line| is_settled(line, "hostile"));
        let what = format!("{} {}", attempt.word, attempt.body);
        assert_eq!(settled["outcome"], attempt.outcome, "{what}: {settled}");
        // A hook may outlive the message.
        host.wait_for(PATIENCE, |line| line["level"] != "DEBUG" && line.to_string().contains(attempt.named));
        // And the host works on.
        world.send("neighbour", ["0"]);
        host.wait_for(PATIENCE, |line| is_settled(line, "neighbour"));
    }
}

/// A language's tables are out of a program's reach, so this one is written by hand.
#[test]
fn a_table_is_bounded_and_named() {
    let answer = crate::invoke::answer_of(&command("main-grows-table"), "");
    assert_eq!(answer["outcome"], "trapped", "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("its tables are full: 100000 elements at most"), "{answer}");
}

#[test]
fn a_guest_sees_no_variable_but_those_that_are_granted() {
    let world = world(&Attempt {
        grants: "reply_channel = 'out'\nallow.env = { GRANTED = 'yes' }",
        ..attempt("env", "", "", "")
    });
    let mut command = world.command(&["invoke", "hostile", "--json", "--attr", "do=env", "--body", "now"]);
    command.env("AWS_SECRET_ACCESS_KEY", "hunter2").env("ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4");
    let answer: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(String::from_utf8(crate::invoke::reply(&answer)).unwrap(), "GRANTED=yes\n");
}

/// The lines of every message that is settled come out, however much its guest writes and however slowly the log is read.
#[test]
fn no_output_displaces_the_line_of_a_settled_message() {
    displaces_no_settled_line(&attempt("short", "32768", "ack", ""));
}

#[test]
fn no_denials_displace_the_line_of_a_settled_message() {
    displaces_no_settled_line(&Attempt { grants: GRANT, ..attempt("denials", "now", "ack", "") });
}

fn displaces_no_settled_line(attempt: &Attempt) {
    const MESSAGES: usize = 200;
    let world = world(attempt);
    send(&world, attempt, MESSAGES);
    // Nobody reads until all are done with: what waits fills the backlog, but for the part that guests' output may not have.
    let (read, gate) = std::sync::mpsc::channel();
    let mut host = Host::start_unread(world.command(&["run"]), gate);
    until("the end of the messages", PATIENCE, || {
        let depth = world.depth("hostile");
        (depth.visible == 0 && depth.in_flight == 0).then_some(())
    });
    drop(read);
    assert_eq!(host.stop(), 0);
    let lines = host.lines();
    let settled = lines.iter().filter(|line| is_settled(line, "hostile")).count();
    assert_eq!(settled, MESSAGES);
    let dropped = lines.iter().find_map(|line| line["of_guests"].as_u64());
    assert!(dropped.is_some_and(|dropped| dropped > 0), "nothing tells of the lines that were dropped");
}
