//! `hostler send --lines`: out of a live pipe, to an exchange that lets nothing pass, and where not every line can be sent.

use std::io::Write;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::support::hostler::{PATIENCE, Said, World, pid, until};
use crate::support::scripted::{Answer, Scripted};

const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
";

#[test]
fn a_whole_line_is_sent_while_the_pipe_stays_open() {
    let world = World::new(JOBS);
    let mut command = world.command(&["send", "jobs", "--lines", "-"]);
    let sender = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut sender = sender.unwrap();
    let mut input = sender.stdin.take().unwrap();
    for (text, visible) in [("one\n", 1), ("two\nthree\nfo", 3)] {
        input.write_all(text.as_bytes()).unwrap();
        until("what is whole is there", PATIENCE, || (world.depth("jobs").visible == visible).then_some(()));
    }
    input.write_all(b"ur").unwrap();
    drop(input);
    let said = Said::new(sender.wait_with_output().unwrap());
    assert_eq!((said.code, said.stdout.as_str()), (0, "4 messages sent to jobs\n"), "{said:?}");
}

#[test]
fn a_signal_says_how_many_were_sent() {
    let world = World::new(JOBS);
    let mut command = world.command(&["send", "jobs", "--lines", "-"]);
    let sender = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut sender = sender.unwrap();
    let mut input = sender.stdin.take().unwrap();
    input.write_all(b"one\ntwo\nthr").unwrap();
    until("what is whole is there", PATIENCE, || (world.depth("jobs").visible == 2).then_some(()));
    // The input stays open, with a line that is not whole.
    kill_process(pid(sender.id()), Signal::INT).unwrap();
    let said = Said::new(sender.wait_with_output().unwrap());
    assert_eq!((said.code, said.stdout.as_str()), (1, "stopped: 2 messages sent to jobs\n"), "{said:?}");
    assert_eq!(world.depth("jobs").visible, 2);
    drop(input);
}

#[test]
fn what_reaches_no_queue_is_counted() {
    let world = World::new(
        "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-tell.wat'
         filter = { type = 'prefix', values = ['MOBILE.'] }",
    );
    world.provision();
    let send = |key: &str| {
        let said = world.output_with(&["send", "news", "--lines", "-", "--routing-key", key], "a\nb\n");
        assert_eq!((said.code, said.stdout.as_str()), (0, "2 messages sent to news\n"), "{said:?}");
        said.stderr
    };
    let note = "hostler: note: 2 messages reached no queue: no subscription lets the routing key pass\n";
    assert_eq!(send("DESK.new"), note);
    assert_eq!(send("MOBILE.new"), "");
    assert_eq!(world.depth("mobile").visible, 2);
}

/// A server that takes every message of a batch but those whose bodies begin with `bad`.
fn picky() -> Scripted {
    Scripted::start(|_, input| {
        let entries = input["Entries"].as_array().unwrap().iter();
        let is_bad = |entry: &&Value| entry["MessageBody"].as_str().unwrap().starts_with("bad");
        let (bad, good): (Vec<&Value>, Vec<&Value>) = entries.partition(is_bad);
        let taken = good.iter().map(|entry| json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "" }));
        let refused =
            bad.iter().map(|entry| json!({ "Id": entry["Id"], "Code": "InvalidMessageContents", "SenderFault": true }));
        Answer::Ok(json!({ "Successful": taken.collect::<Vec<_>>(), "Failed": refused.collect::<Vec<_>>() }))
    })
}

#[test]
fn on_sqs_every_line_that_failed_is_named_and_all_others_count() {
    let server = picky();
    let head = format!(
        "host.health_file = 'health.json'
        queue.driver = 'sqs'
        queue.sqs = {{ region = 'eu-west-1', endpoint_url = '{}' }}",
        server.endpoint()
    );
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name, "test".to_owned()));
    let world = World::with(&head, keys.to_vec(), JOBS);
    let said = world.output_with(&["send", "jobs", "--lines", "-"], "a\nbad 1\n\nb\nbad 2\nc\n");
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    let lines: Vec<&str> = said.stderr.lines().collect();
    assert!(lines[0].starts_with("hostler: line 2 was not sent: "), "{said:?}");
    assert!(lines[1].starts_with("  line 5 was not sent: "), "{said:?}");
    assert_eq!(lines[2..], ["  no line after line 6 was tried", "  3 messages sent in all"]);
    assert_eq!(server.calls("SendMessageBatch").len(), 1);
}

#[test]
fn an_input_that_cannot_be_read_says_how_many_were_sent() {
    let said = World::new(JOBS).output(&["send", "jobs", "--lines", "--file", "guests"]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    assert!(said.stderr.contains("cannot read guests: ") && said.stderr.ends_with("\n  0 messages sent in all\n"));
}
