//! Handlers by contracts of others: `wasi:messaging` and `wasmcloud:messaging`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::invoke::{answer, answer_of, consumer};
use crate::support::guests::component;
use crate::support::hostler::{Depth, Host, PATIENCE, World};

/// The guests that do what the first letter of their body says.
fn adapters() -> [PathBuf; 2] {
    ["messaging-does", "wasmcloud-does"].map(component)
}

fn expect(answer: &Value, outcome: &str, reason: &str) {
    assert_eq!(answer["outcome"], outcome, "{answer}");
    assert!(answer["reason"].as_str().unwrap_or_default().contains(reason), "{answer} does not say {reason:?}");
}

/// Output of `invoke --json` for a handler that a config with these lines names.
fn answer_with(handler: &str, lines: &str, body: &str) -> Value {
    answer(&consumer(&component(handler), lines), "one", &["--body", body])
}

#[test]
fn ok_acks_an_error_fails_and_a_trap_traps() {
    for guest in adapters() {
        expect(&answer_of(&guest, "a"), "ack", "");
        expect(&answer_of(&guest, "e"), "failed", "the database is away");
        expect(&answer_of(&guest, "t"), "trapped", "unreachable");
    }
}

#[test]
fn a_send_that_is_not_granted_is_an_error_that_the_guest_sees() {
    let denied = "allow.send of this consumer does not name `out`";
    let of = |handler, lines, reason: &str| expect(&answer_with(handler, lines, "s"), "failed", reason);
    of("messaging-does", "", &format!("permission denied: {denied}"));
    of("wasmcloud-does", "", denied);
    let no_queue = "this run of the handler has no queue to send to";
    of("messaging-does", "allow.send = ['out']", &format!("connection: {no_queue}"));
    of("wasmcloud-does", "allow.send = ['out']", no_queue);

    let lines = "allow.send = ['out']";
    expect(&answer_with("messaging-does", lines, "d"), "failed", "connection: the client is disconnected");
}

#[test]
fn request_and_reply_are_errors_that_the_guest_sees() {
    let not_offered = "this host does not offer wasi:messaging/request-reply";
    for (letter, function) in [("q", "request"), ("r", "reply")] {
        let answer = answer_with("messaging-does", "", letter);
        expect(&answer, "failed", &format!("`{function}`: {not_offered}"));
    }
    expect(&answer_with("wasmcloud-does", "", "q"), "failed", "`request` to `out`: this host offers no request");
    expect(&answer_with("wasmcloud-does", "", "r"), "failed", "no reply");
}

#[test]
fn people_are_told_the_kind_and_what_it_imports() {
    for (guest, kind, imports) in [
        ("messaging-does", "wasi:messaging/incoming-handler", "wasi:messaging/producer@0.2.0-draft"),
        ("wasmcloud-does", "wasmcloud:messaging/handler", "wasmcloud:messaging/consumer@0.2.0"),
    ] {
        let world = consumer(&component(guest), "");
        world.provision();
        for command in [&["check"][..], &["invoke", "one", "--body", "a"]] {
            let said = world.output(command);
            assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
            assert!(said.stdout.contains(&format!("component ({kind})\n")), "{said:?}");
            assert!(said.stdout.contains(&format!("  imports {imports}\n")), "{said:?}");
        }
    }
}

#[test]
fn hooks_apart_serve_them() {
    let lines = format!("hooks = '{}'", component("hooks-inside").display());
    for guest in ["messaging-does", "wasmcloud-does"] {
        for (body, outcome) in [("a", "ack"), ("e", "failed"), ("t", "trapped")] {
            assert_eq!(answer_with(guest, &lines, body)["stderr"], format!("{outcome}2"), "{guest} {body}");
        }
    }
}

#[test]
fn another_draft_or_version_is_refused_with_what_does_not_fit() {
    for (guest, faults) in [
        ("messaging-early-topic", &["[method]message.topic", "its imports do not fit"][..]),
        ("messaging-early-handler", &["it has the function `get-topics`"]),
        ("messaging-early-error", &["its `handle` is of another type: "]),
        ("messaging-early-guest", &["it exports `wasi:messaging/messaging-guest@0.2.0-draft`, which"]),
        ("wasmcloud-later", &["it exports `wasmcloud:messaging/handler@0.3.0`, which", "wasmcloud:messaging@0.2.0"]),
    ] {
        let file = component(guest);
        let said = World::new("").output(&["invoke", file.to_str().unwrap(), "--body", ""]);
        assert_eq!((said.code, said.stdout.as_str()), (65, ""), "{said:?}");
        for fault in faults {
            assert!(said.stderr.contains(fault), "{guest}: {said:?}");
        }
        assert!(said.stderr.contains("\n  cure: build it against "), "{said:?}");
    }
}

#[test]
fn messages_that_a_guest_keeps_are_bounded_by_its_memory() {
    let hoards = |lines, body: &str| answer_with("messaging-hoards", lines, body);
    expect(&hoards("limits.memory = '8MiB'", "x"), "ack", "");
    expect(&hoards("limits.memory = '8MiB'", "xx"), "trapped", "more than limits.memory allows the host to hold");
    expect(&hoards("", &"x".repeat(20)), "ack", "");
    expect(&hoards("", &"x".repeat(40)), "trapped", "more than limits.memory allows the host to hold");
}

/// A world with this handler, and a consumer of each channel that it sends to, which tells what it was given.
fn sending(handler: &str, lines: &str) -> World {
    let tell = |channel| format!("[consumers.{channel}]\nchannel = '{channel}'\nhandler = 'guests/run-tell.wat'");
    let lines = format!("{lines}\nretry = {{ requeues = 0, delays = 0 }}\n{}\n{}", tell("out"), tell("answers"));
    consumer(&component(handler), &lines)
}

/// Report of a consumer about its one message: its attributes and its body.
fn told(host: &Host, consumer: &str, body: &str) -> Value {
    let is_told = |line: &Value| line["consumer"] == consumer && line["stream"] == "stdout";
    host.wait_for(PATIENCE, |line| is_told(line) && line["message"] == body);
    let attributes = host.wait_for(PATIENCE, |line| {
        is_told(line) && line["message"].as_str().is_some_and(|text| text.starts_with("MESSAGE_ATTRIBUTES="))
    });
    let text = attributes["message"].as_str().unwrap();
    serde_json::from_str(text.split_once('=').unwrap().1).unwrap()
}

#[test]
fn wasi_messaging_copies_and_forwards_a_message() {
    for (body, sent, attributes) in [
        ("s row 7", "s row 7", json!({ "content-type": "text/csv", "Zone": "ä", "from": "one" })),
        ("f row 7", "the", json!({ "content-type": "out" })),
    ] {
        let world = sending("messaging-does", "allow.send = ['out']");
        let attr = ["--attr", "Content-Type=text/csv", "--attr", "Zone=ä"];
        let attr = if body.starts_with('s') { ["--attr", "content-type=text/csv", attr[2], attr[3]] } else { attr };
        let said = world.output(&[&["send", "one", "--body", body][..], &attr].concat());
        assert_eq!(said.code, 0, "{said:?}");
        let mut host = world.started();
        assert_eq!(told(&host, "out", sent), attributes);
        let lines = host.settled(2);
        assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn denials_of_all_producers_are_logged_alike() {
    let mut logged = BTreeMap::new();
    for (guest, body) in [("sends", "out"), ("messaging-does", "s"), ("wasmcloud-does", "s")] {
        let world = sending(guest, "");
        world.send("one", [body]);
        let mut host = world.started();
        let [settled] = host.settled(1).try_into().unwrap();
        assert_eq!((&settled["outcome"], &settled["disposition"]), (&json!("failed"), &json!("dead-letter")));
        let line = host.wait_for(PATIENCE, |line| line["denied"] == "sending to out");
        assert_eq!((&line["level"], &line["consumer"]), (&json!("WARN"), &json!("one")));
        logged.insert(guest, (line["message"].clone(), line["cure"].clone()));
        assert_eq!(host.stop(), 0);
        assert_eq!(world.depth("out"), Depth::default());
    }
    let (message, cure) = (json!("denied to the handler"), json!("add \"out\" to the consumer's allow.send"));
    assert!(logged.values().all(|line| *line == (message.clone(), cure.clone())), "{logged:?}");
}

#[test]
fn wasmcloud_replies_where_the_consumer_s_replies_go() {
    // The reply channel needs no grant; any other does.
    let world = sending("wasmcloud-does", "reply_channel = 'answers'\nallow.send = ['out']");
    world.send("one", ["r echo", "s on"]);
    let mut host = world.started();
    let lines = host.settled(4);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    assert_eq!(told(&host, "out", "s on"), json!({ "reply-to": "answers" }));
    let correlation = told(&host, "answers", "r echo");
    let asked = correlation["correlation-id"].as_str().unwrap();
    assert_eq!(correlation, json!({ "correlation-id": asked }));
    assert!(lines.iter().any(|line| line["consumer"] == "one" && line["message_id"] == asked), "{lines:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn an_instance_is_used_again_with_the_message_at_hand() {
    let world = sending("wasmcloud-does", "concurrency = 1\nmessages_per_instance = 3\nreply_channel = 'answers'");
    world.send("one", ["r a", "r b", "r c"]);
    let mut host = world.started();
    let lines = host.settled(6);
    let ids = lines.iter().filter(|line| line["consumer"] == "one").map(|line| line["message_id"].as_str().unwrap());
    for id in ids {
        let correlation = format!("MESSAGE_ATTRIBUTES={}", json!({ "correlation-id": id }));
        host.wait_for(PATIENCE, |line| line["message"] == correlation);
    }
    assert_eq!(host.stop(), 0);
}
