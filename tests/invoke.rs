//! `hostler invoke`: its two outputs, its exit codes, where the body comes from, and a consumer by its name.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hostler_types::OutcomeKind;
use serde_json::{Value, json};

use crate::support::guests::{command, component};
use crate::support::hostler::{Said, World};

/// A folder with a consumer `one` of this handler; `lines` follow in its table.
pub fn consumer(handler: &Path, lines: &str) -> World {
    World::new(&format!("[consumers.one]\nchannel = 'one'\nhandler = '{}'\n{lines}", handler.display()))
}

/// Output of `invoke --json`. Its exit code must fit the outcome.
pub fn answer(world: &World, handler: &str, more: &[&str]) -> Value {
    let said = invoke(world, handler, &[&["--json"], more].concat());
    let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("no JSON: {said:?}"));
    let success = OutcomeKind::ALL.iter().any(|kind| kind.is_success() && answer["outcome"] == kind.name());
    assert_eq!(said.code, i32::from(!success), "{said:?}");
    answer
}

/// Output of `invoke --json` for a file.
pub fn answer_of(handler: &Path, body: &str) -> Value {
    answer(&World::new(""), handler.to_str().unwrap(), &["--body", body])
}

/// The reply in an answer.
pub fn reply(answer: &Value) -> Vec<u8> {
    let text = answer["reply_base64"].as_str().unwrap_or_else(|| panic!("no reply: {answer}"));
    STANDARD.decode(text).unwrap()
}

fn invoke(world: &World, handler: &str, more: &[&str]) -> Said {
    world.output(&[&["invoke", handler], more].concat())
}

#[test]
fn prints_an_outcome_for_people() {
    let said = |handler: &Path, body: &str| {
        let said = invoke(&World::new(""), handler.to_str().unwrap(), &["--body", body]);
        let (text, took) = said.stdout.rsplit_once("took      ").unwrap();
        let milliseconds: f64 = took.strip_suffix(" ms\n").unwrap().parse().unwrap();
        assert!(milliseconds > 0.0 && said.stderr.is_empty(), "{said:?}");
        (said.code, text.to_owned())
    };
    let of = |code, text: &str| (code, text.to_owned());
    let component_line =
        "handler   component (hostler:consumer/handler)\n            imports hostler:consumer/types@0.1.0";
    let command_line = "handler   WASI preview-1 command (_start)\n            imports wasi_snapshot_preview1";

    assert_eq!(said(&component("acks"), ""), of(0, &format!("{component_line}\noutcome   ack\n")));
    assert_eq!(said(&component("replies"), "hi"), of(0, &format!("{component_line}\noutcome   reply\nreply     hi\n")));
    assert_eq!(said(&component("delays"), ""), of(1, &format!("{component_line}\noutcome   delay\ndelay     7s\n")));
    let failed = format!("{component_line}\noutcome   failed\nreason    the database is away\n");
    assert_eq!(said(&component("fails"), ""), of(1, &failed));
    let echoed = format!("stdout    a\nstdout    b\n{command_line}\noutcome   ack\n");
    assert_eq!(said(&command("main-echoes"), "a\nb"), of(0, &echoed));
    let complained = format!("stderr    bad row\n{command_line}\noutcome   dead-letter\nreason    bad row\n");
    assert_eq!(said(&command("main-complains"), "bad row"), of(1, &complained));
}

#[test]
fn prints_an_outcome_as_one_json_object() {
    let check = |handler: &Path, expected: Value| {
        let mut answer = answer_of(handler, "bad row\n");
        let members = answer.as_object_mut().unwrap();
        let names: Vec<&str> = members.keys().map(String::as_str).collect();
        assert_eq!(names, ["outcome", "reason", "delay_seconds", "reply_base64", "duration_ms", "stderr"]);
        assert!(members.shift_remove("duration_ms").unwrap().as_f64().unwrap() > 0.0);
        assert_eq!(answer, expected);
    };
    check(
        &component("replies"),
        json!({
            "outcome": "reply", "reason": null, "delay_seconds": null, "reply_base64": "YmFkIHJvdwo=", "stderr": "",
        }),
    );
    check(
        &component("delays"),
        json!({ "outcome": "delay", "reason": null, "delay_seconds": 7, "reply_base64": null, "stderr": "" }),
    );
    check(
        &command("main-complains"),
        json!({
            "outcome": "dead-letter", "reason": "bad row", "delay_seconds": null, "reply_base64": null,
            "stderr": "bad row\n",
        }),
    );
}

#[test]
fn takes_the_body_from_an_argument_a_file_or_standard_input() {
    let (world, handler) = (World::new(""), component("replies"));
    let handler = handler.to_str().unwrap();
    fs::write(world.path("body"), b"\xff\x00 from a file\n").unwrap();

    assert_eq!(reply(&answer(&world, handler, &["--body", "from an argument"])), b"from an argument");
    assert_eq!(reply(&answer(&world, handler, &["--body", ""])), b"");
    assert_eq!(reply(&answer(&world, handler, &["--body", "-5"])), b"-5");
    assert_eq!(reply(&answer(&world, handler, &["--file", "body"])), b"\xff\x00 from a file\n");
    for stdin in [&["invoke", handler, "--json", "-"][..], &["invoke", handler, "--json"]] {
        let said = world.output_with(stdin, "from a pipe\n");
        assert_eq!(reply(&serde_json::from_str(&said.stdout).unwrap()), b"from a pipe\n");
    }

    for wrong in [&["--file", "missing"][..], &["--body", "a", "--file", "body"], &["--body", "a", "-"], &["body"]] {
        let said = invoke(&world, handler, wrong);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    }
}

#[test]
fn gives_the_message_to_a_component() {
    let (world, handler) = (World::new(""), component("tells-message"));
    let attributes = ["--attr", "content-type=text/plain", "--attr", "zone=a=b"];
    let more = ["--body", "hello", "--attempt", "4", "--routing-key", "-MOBILE.x", "--group", "-g7"];
    let answer = answer(&world, handler.to_str().unwrap(), &[&attributes[..], &more].concat());
    let told = String::from_utf8(reply(&answer)).unwrap();
    assert_eq!(told, "invoke\ntext/plain\nzone\na=b\n4\n-g7\n-MOBILE.x\nhello\n");
}

#[test]
fn gives_the_message_to_a_command() {
    let handler = command("main-prints-environment");
    let attributes = ["--attr", "content-type=text/plain", "--attr", "zone=3", "--attr", "zone=\"4\""];
    let more = ["--body", "", "--attempt", "2"];
    let said = invoke(&World::new(""), handler.to_str().unwrap(), &[&attributes[..], &more].concat());
    let told: Vec<&str> = said.stdout.lines().filter_map(|line| line.strip_prefix("stdout    ")).collect();
    let [id, rest @ ..] = told.as_slice() else { panic!("{said:?}") };
    assert!(id.strip_prefix("MESSAGE_ID=").is_some_and(|id| id.len() == 36), "{id}");
    let attributes = r#"MESSAGE_ATTRIBUTES={"content-type":"text/plain","zone":"\"4\""}"#;
    assert_eq!(rest, ["MESSAGE_CHANNEL=invoke", "MESSAGE_ATTEMPT=2", attributes]);
}

#[test]
fn a_granted_variable_cannot_hide_the_message() {
    let world = consumer(
        &command("main-prints-environment"),
        "reply = 'stdout'
        allow.env = { MESSAGE_ID = 'mine', OTHER = 'too' }",
    );
    let told = String::from_utf8(reply(&answer(&world, "one", &["--body", ""]))).unwrap();
    assert!(told.starts_with("OTHER=too\nMESSAGE_ID=") && told.matches("MESSAGE_ID=").count() == 1, "{told}");
}

#[test]
fn refuses_attributes_and_attempts_that_cannot_be() {
    let handler = component("acks");
    let eleven: Vec<String> = (0..11).map(|n| format!("--attr=a{n}=")).collect();
    let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
    for (wrong, cure) in [
        (&["--attr", "zone"][..], "write name=value"),
        (&["--attr", "=3"], "write name=value"),
        (&["--attr", "a b=3"], "`a b` is not a valid attribute name"),
        (&eleven, "11 attributes; at most 10"),
        (&["--attempt", "0"], "is not in 1.."),
    ] {
        let said = invoke(&World::new(""), handler.to_str().unwrap(), &[&["--body", ""], wrong].concat());
        assert!(said.code == 2 && said.stdout.is_empty() && said.stderr.contains(cure), "{said:?}");
    }
}

#[test]
fn runs_a_consumer_with_its_grants_and_limits() {
    let world = consumer(
        &command("main-prints-environment"),
        "reply = 'stdout'
        allow.env = { LOCALE_DIR = '/locales' }",
    );
    let told = String::from_utf8(reply(&answer(&world, "one", &["--body", ""]))).unwrap();
    assert!(told.starts_with("LOCALE_DIR=/locales\nMESSAGE_ID="), "{told}");
    assert!(told.contains("\nMESSAGE_CHANNEL=one\n"), "{told}");

    let world = consumer(&component("grows"), "limits.memory = '1MiB'");
    let answer = answer(&world, "one", &["--body", ""]);
    assert_eq!(answer["outcome"], "trapped");
    assert!(answer["reason"].as_str().unwrap().starts_with("out of memory: limits.memory is 1.0 MiB"), "{answer}");
}

#[test]
fn finds_the_config_where_run_does() {
    let world = consumer(&component("acks"), "");
    fs::rename(world.path("hostler.toml"), world.path("other.toml")).unwrap();
    assert_eq!(answer(&world, "one", &["--body", "", "--config", "other.toml"])["outcome"], "ack");
    let said = invoke(&world, "one", &["--body", ""]);
    assert_eq!(said.code, 65, "{said:?}");
    assert!(said.stderr.contains("`one` is neither a file nor a consumer of the config"), "{said:?}");
}

#[test]
fn a_bad_config_matters_to_a_consumer_and_not_to_a_file() {
    let handler = component("acks");
    let world = World::new("[consumers.one]\nhandler = 7\n");
    assert_eq!(answer(&world, handler.to_str().unwrap(), &["--body", ""])["outcome"], "ack");
    for more in [&["one", "--body", ""][..], &[handler.to_str().unwrap(), "--body", "", "--config", "hostler.toml"]] {
        let said = world.output(&[&["invoke"], more].concat());
        assert!(said.code == 64 && said.stderr.contains("consumers.one.handler"), "{said:?}");
    }
}

#[test]
fn touches_no_queue() {
    let world = consumer(&component("acks"), "");
    assert_eq!(answer(&world, "one", &["--body", ""])["outcome"], "ack");
    assert!(!world.path("queue.db").exists());
    assert!(!world.path("health.json").exists());
}
