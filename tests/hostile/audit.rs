//! Guests that hide what they did: reasons too long for the log, texts that a terminal obeys, and bodies where none belong.

use std::path::Path;

use serde_json::Value;

use super::is_settled;
use crate::invoke::{answer, answer_of, consumer};
use crate::support::guests::{command, component};
use crate::support::hostler::PATIENCE;

/// The escaped form of `up\rover ESC[2J BEL CSI`.
const SHOWN: &str = r"up\rover\u{1b}[2J\u{7}\u{9b}";

/// It is cut to some pages, and says so.
fn is_cut(said: &Value, outcome: &str) {
    assert_eq!(said["outcome"], outcome, "{}", said["outcome"]);
    is_kept(said["reason"].as_str().unwrap());
}

/// As much of it as is kept of a reason.
fn is_kept(reason: &str) {
    let (start, end) = (&reason[..20], &reason[reason.floor_char_boundary(reason.len().saturating_sub(40))..]);
    let fits = reason.len() > 16_000 && reason.len() < 17_000;
    assert!(fits && end.contains("cut, of 52"), "{} bytes: {start} … {end}", reason.len());
}

#[test]
fn a_reason_is_cut_wherever_it_comes_from() {
    is_cut(&answer_of(&component("says-much"), "e"), "failed");
    is_cut(&answer_of(&component("says-much"), "d"), "dead-letter");
    is_cut(&answer_of(&component("wasmcloud-says-much"), ""), "failed");
    let of = |handler: &Path, lines: &str| answer(&consumer(handler, lines), "one", &["--body", "a"]);
    is_cut(&of(&command("main-says-much"), "limits.output = '8MiB'"), "dead-letter");
    let hooks = format!("hooks = '{}'", component("hooks-say-much").display());
    is_cut(&of(&component("acks"), &hooks), "failed");
}

#[test]
fn every_message_of_a_long_reason_has_its_line_and_its_dead_letter_the_rest() {
    let hooks = format!("processing_timeout = '1s'\nhooks = '{}'", component("hooks-say-much").display());
    for (guest, lines, body, outcome) in
        [("says-much", "", "d", "dead-letter"), ("loops", hooks.as_str(), "t", "timed-out")]
    {
        let world = consumer(&component(guest), &format!("retry = {{ requeues = 0, delays = 0 }}\n{lines}"));
        world.send("one", [body; 3]);
        let mut host = world.started();
        for line in host.settled(3) {
            assert_eq!((&line["outcome"], &line["disposition"]), (&outcome.into(), &"dead-letter".into()));
            let reason = line["reason"].as_str().unwrap();
            assert!(reason.len() < 1100 && reason.contains("… (cut, of 16"), "{} bytes", reason.len());
        }
        assert_eq!(host.stop(), 0);
        let letters: Value = serde_json::from_str(&world.output(&["dlq", "ls", "one", "--json"]).stdout).unwrap();
        let letters = letters.as_array().unwrap();
        letters.iter().for_each(|letter| is_kept(letter["reason"].as_str().unwrap()));
        assert_eq!(letters.len(), 3);
    }
}

#[test]
fn no_text_of_a_guest_is_obeyed_by_a_terminal() {
    let guest = command("main-escapes");
    let said = consumer(&guest, "").output(&["invoke", "one", "--body", ""]);
    for line in [format!("stdout    {SHOWN}"), format!("stderr    {SHOWN}"), format!("reason    {SHOWN}")] {
        assert!(said.stdout.lines().any(|said| said == line), "{line} in {said:?}");
    }
    let answer = answer_of(&guest, "");
    assert_eq!(answer["stderr"], "up\rover\u{1b}[2J\u{7}\u{9b}\n", "for programs it is as it was");

    let world = consumer(&guest, "");
    world.config(&format!("telemetry.log = 'text'\n[consumers.one]\nchannel = 'one'\nhandler = '{}'", guest.display()));
    world.send("one", ["a"]);
    let mut host = world.start();
    host.wait_for(PATIENCE, |line| line.as_str().is_some_and(|text| text.contains("outcome=")));
    assert_eq!(host.stop(), 0);
    let lines = host.lines();
    let texts = || lines.iter().filter_map(Value::as_str);
    assert_eq!(texts().filter(|text| text.contains(SHOWN)).count(), 3, "{lines:?}");
    assert!(texts().all(|text| !text.contains(|char: char| char.is_control() && char != '\t')), "{lines:?}");
}

#[test]
fn no_body_of_a_reply_is_logged() {
    let lines = "reply = 'stdout'\nreply_channel = 'out'";
    let world = consumer(&command("main-echoes"), lines);
    world.send("one", ["a card number"]);
    let mut host = world.started();
    let settled = host.wait_for(PATIENCE, |line| is_settled(line, "one"));
    assert_eq!(settled["outcome"], "reply");
    assert_eq!(host.stop(), 0);
    assert_eq!(world.depth("out").visible, 1);
    let lines = host.lines();
    assert!(!lines.iter().any(|line| line.to_string().contains("a card number")), "{lines:?}");
}
