//! `send`: bodies, attributes, delays, routes, and the channels that it refuses.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::commands::{JOBS, told};
use crate::support::hostler::{Depth, World};
#[test]
fn send_prints_the_id_and_carries_body_and_attributes() {
    let world = World::new(JOBS);
    world.provision();
    let said = world.output(&["send", "jobs", "--body", "héllo", "--attr", "a=1", "--attr", "b=x=y", "--attr", "c="]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    let told = told(&world, 1);
    assert!(told.contains(&format!("MESSAGE_ID={}", said.stdout.trim_end())), "{told:?}");
    assert!(told.contains(&format!("MESSAGE_ATTRIBUTES={}", json!({ "a": "1", "b": "x=y", "c": "" }))), "{told:?}");
    assert!(told.contains(&"MESSAGE_CHANNEL=jobs".to_owned()) && told.contains(&"MESSAGE_ATTEMPT=1".to_owned()));
    assert_eq!(told.last().map(String::as_str), Some("héllo"));
}

#[test]
fn send_takes_its_body_from_wherever_it_is() {
    let world = World::new(JOBS);
    fs::write(world.path("body"), "from a file").unwrap();
    let ways = [
        (&["--file", "body"][..], ""),
        (&["-"], "from a dash"),
        (&["--file", "-"], "from a file that is a dash"),
        (&["--lines", "--file", "-"], "from a line\n"),
        (&[], "from a pipe"),
    ];
    for (args, input) in ways {
        let said = world.output_with(&[&["send", "jobs"], args].concat(), input);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let told: BTreeSet<_> = told(&world, 5).into_iter().filter(|line| line.starts_with("from ")).collect();
    let expected = ["from a dash", "from a file", "from a file that is a dash", "from a line", "from a pipe"];
    assert_eq!(told.iter().collect::<Vec<_>>(), expected);
    let said = world.output_with(&["invoke", "guests/main-echoes.wat", "--file", "-"], "to a handler");
    assert_eq!((said.code, said.stdout.contains("to a handler")), (0, true), "{said:?}");
}

/// More often than not a command before the pipe has failed.
#[test]
fn an_empty_standard_input_is_no_message() {
    let world = World::new(JOBS);
    for args in [&[][..], &["-"], &["--file", "-"]] {
        let said = world.output_with(&[&["send", "jobs"], args].concat(), "");
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{args:?}: {said:?}");
        assert!(said.stderr.contains("standard input is empty") && said.stderr.contains("--body \"\""), "{said:?}");
    }
    assert_eq!(world.depth("jobs"), Depth::default());
    let said = world.output(&["send", "jobs", "--body", ""]);
    assert_eq!((said.code, world.depth("jobs").visible), (0, 1), "{said:?}");
}

#[test]
fn a_body_may_look_like_an_option() {
    let world = World::new(JOBS);
    world.provision();
    for body in ["-5", "--", "--lines"] {
        let said = world.output(&["send", "jobs", "--body", body, "--attr", "a=1"]);
        assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{body}");
    }
    let told = told(&world, 3);
    assert_eq!(told.iter().filter(|line| *line == r#"MESSAGE_ATTRIBUTES={"a":"1"}"#).count(), 3, "{told:?}");
    let bodies: BTreeSet<_> = told.iter().filter(|line| line.starts_with('-')).map(String::as_str).collect();
    assert_eq!(bodies, BTreeSet::from(["-5", "--", "--lines"]));
}

#[test]
fn send_lines_is_one_message_per_line_that_has_text() {
    let world = World::new(JOBS);
    world.provision();
    let input = "one\r\n\n   \ntwo  \n\r\nthree without an end";
    let said = world.output_with(&["send", "jobs", "--lines", "-"], input);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "3 messages sent to jobs\n", ""));
    fs::write(world.path("lines"), "four\nfive\n").unwrap();
    assert_eq!(world.output(&["send", "jobs", "--lines", "--file", "lines"]).stdout, "2 messages sent to jobs\n");
    assert_eq!(world.output(&["send", "jobs", "--lines", "--body", "six"]).stdout, "1 message sent to jobs\n");
    assert_eq!(world.output_with(&["send", "jobs", "--lines", "-"], "").stdout, "0 messages sent to jobs\n");
    let bodies: BTreeSet<_> = told(&world, 6).into_iter().filter(|line| !line.starts_with("MESSAGE_")).collect();
    assert_eq!(bodies, ["one", "two  ", "three without an end", "four", "five", "six"].map(str::to_owned).into());
}

#[test]
fn send_lines_stops_at_the_first_line_that_cannot_be_sent() {
    let world = World::new(JOBS);
    let mut input = b"one\ntwo\n".to_vec();
    input.extend(vec![b'x'; 16 * 1024 * 1024 + 1]);
    input.extend(b"\nfour\n");
    fs::write(world.path("lines"), input).unwrap();
    let said = world.output(&["send", "jobs", "--lines", "--file", "lines"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("line 3 was not sent"), "{said:?}");
    assert!(said.stderr.contains("2 messages sent in all"), "{said:?}");
    assert_eq!(world.depth("jobs").visible, 2, "what comes after is not sent either");
}

#[test]
fn send_delays_drops_duplicates_and_routes() {
    let world = World::new(
        "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-tell.wat'
         filter = { type = 'prefix', values = ['MOBILE.'] }
         [consumers.all]\nchannel = 'news.all'\nhandler = 'guests/run-tell.wat'\nordered = true",
    );
    let send = |args: &[&str]| {
        let said = world.output(&[&["send"], args, &["--body", "x"]].concat());
        assert_eq!(said.code, 0, "{said:?}");
        said
    };
    send(&["news", "--routing-key", "MOBILE.new"]);
    send(&["news", "--routing-key", "DESK.new", "--group", "g"]);
    assert_eq!([world.depth("mobile").visible, world.depth("all").visible], [1, 2]);

    assert_eq!(send(&["mobile", "--dedupe", "k"]).stderr, "");
    assert!(send(&["mobile", "--dedupe", "k"]).stderr.contains("a duplicate"));
    assert_eq!(send(&["all", "--dedupe", "-k", "--group", "-g", "--routing-key", "-r"]).stderr, "");
    assert!(send(&["all", "--dedupe", "-k"]).stderr.contains("a duplicate"));
    assert_eq!(world.depth("mobile").visible, 2);

    send(&["mobile", "--delay", "15m"]);
    assert_eq!(world.depth("mobile"), Depth { visible: 2, delayed: 1, ..Depth::default() });
}

#[test]
fn send_to_a_queue_that_nobody_consumes_keeps_the_message_and_says_so() {
    let world = World::new(JOBS);
    world.queue("elsewhere");
    let said = world.output(&["send", "elsewhere", "--body", "x"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.stderr, "hostler: note: no consumer of this config listens on elsewhere\n");
    assert_eq!(world.depth("elsewhere").visible, 1);
}

#[test]
fn send_says_that_an_unordered_channel_keeps_no_order_within_a_group() {
    let world = World::new(&format!(
        "{JOBS}[consumers.ledger]\nchannel = 'ledger'\nhandler = 'guests/run-tell.wat'\nordered = true"
    ));
    world.provision();
    world.queue("elsewhere");
    for (channel, is_told) in
        [("jobs", true), ("jobs-dlq", true), ("elsewhere", true), ("ledger", false), ("ledger-dlq", false)]
    {
        let said = world.output(&["send", channel, "--body", "x", "--group", "g"]);
        let note = format!("hostler: note: {channel} is not ordered: messages of a group may overtake each other");
        assert!(said.code == 0 && said.stderr.contains(&note) == is_told, "{channel}: {said:?}");
        assert_eq!(world.depth(channel).visible, 1, "it is sent");
        assert!(!world.output(&["send", channel, "--body", "x"]).stderr.contains("overtake"), "{channel}");
    }
}

#[test]
fn send_refuses_a_channel_that_leads_nowhere() {
    let fan_out = "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-tell.wat'\n";
    let world = World::new(&format!("{fan_out}{JOBS}"));
    let refused = |channel: &str, meant: &str| {
        let said = world.output(&["send", channel, "--body", "x"]);
        assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{channel}: {said:?}");
        let told = [format!("no consumer receives from `{channel}`"), meant.to_owned(), "known channels: ".to_owned()];
        assert!(told.iter().all(|part| said.stderr.contains(part)), "{channel}: {said:?}");
    };
    refused("jbos", "did you mean `jobs`?");
    assert!(!world.path("queue.db").exists(), "nothing is created for it");
    world.provision();
    refused("jbos", "did you mean `jobs`?");
    refused("news.mobil", "did you mean `news.mobile`?");
    refused("olds.mobile", "");
    refused("olds", "add that to the config");
    let names = |rows: Value| rows.as_array().unwrap().iter().map(|row| row["channel"].to_string()).collect::<Vec<_>>();
    assert_eq!(names(world.queues()).len(), 2, "no queue was made");
    for channel in ["jobs", "jobs-dlq", "news", "news.mobile", "mobile"] {
        assert_eq!(world.output(&["send", channel, "--body", "x"]).code, 0, "{channel}");
    }
}

#[test]
fn send_refuses_what_no_queue_takes() {
    let world = World::new(JOBS);
    fs::write(world.path("large"), vec![b'x'; 16 * 1024 * 1024 + 1]).unwrap();
    let eleven: Vec<String> = (0..11).map(|n| format!("--attr=a{n}=")).collect();
    let eleven: Vec<&str> = eleven.iter().map(String::as_str).chain(["--body", "x"]).collect();
    let cases: [(&[&str], &str); 9] = [
        (&["--body", "x", "--attr", "novalue"], "name=value"),
        (&["--body", "x", "--attr", "a b=c"], "`a b` is not a valid attribute name"),
        (&eleven, "11 attributes; at most 10"),
        (&["--body", "x", "--delay", "14d"], "longer than the 13 days"),
        (&["--body", "x", "--delay", "soon"], "--delay"),
        (&["--file", "large"], "at most 16777216"),
        (&["--file", "missing"], "cannot read missing"),
        (&["--body", "x", "--file", "large"], "cannot be used with"),
        (&["--lines", "--dedupe", "k", "--body", "x"], "cannot be used with"),
    ];
    for (args, part) in cases {
        let said = world.output(&[&["send", "jobs"], args].concat());
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{args:?}: {said:?}");
        assert!(said.stderr.contains(part), "{part} in {said:?}");
    }
    let said = world.output(&["send", "a.b.c", "--body", "x"]);
    assert!(said.code == 2 && said.stderr.contains("is not a valid channel name"), "{said:?}");
    assert_eq!(world.depth("jobs"), Depth::default());
}
