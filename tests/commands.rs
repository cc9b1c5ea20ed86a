//! The commands as a user meets them: what they print, where, and with which exit code.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::hostler::{Depth, PATIENCE, SECOND, Said, World, announce, until};

/// A consumer `jobs` whose handler tells what it was given.
const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
";

/// The lines that guests of a host have written on standard output until `count` messages are settled.
fn told(world: &World, count: usize) -> Vec<String> {
    let host = world.start();
    host.settled(count);
    let lines = host.lines().into_iter().filter(|line| line["stream"] == "stdout");
    lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

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
fn the_queue_is_the_same_from_every_folder_and_its_making_is_told() {
    let world = World::new(JOBS);
    fs::create_dir(world.path("below")).unwrap();
    let mut command = world.command(&["send", "jobs", "--body", "x", "--config", "../hostler.toml"]);
    let said = Said::new(command.current_dir(world.path("below")).output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.starts_with("hostler: note: created the queue /"), "{said:?}");
    assert!(!world.path("below/queue.db").exists() && world.path("queue.db").exists());
    assert_eq!(world.depth("jobs").visible, 1);
    assert_eq!(world.output(&["send", "jobs", "--body", "x"]).stderr, "", "it is there now");
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

#[test]
fn a_fault_has_its_exit_code_in_every_command() {
    let commands: [&[&str]; 4] = [&["run"], &["check"], &["send", "jobs", "--body", "x"], &["queues"]];
    let with = |queue: &str, handler: &str, extra: &str| {
        let world = World::new("");
        let config = format!("queue.embedded.path = '{queue}'\nhost.health_file = 'health.json'\n{extra}\n{JOBS}");
        fs::write(world.path("hostler.toml"), config.replace("guests/run-tell.wat", handler)).unwrap();
        world
    };
    let bad_config = with("queue.db", "guests/run-tell.wat", "host.nonsense = 1");
    let bad_queue = with("guests", "guests/run-tell.wat", "");
    let bad_handler = with("queue.db", "missing.wat", "");
    for args in commands {
        let said = bad_config.output(args);
        assert!(said.code == 64 && said.stderr.contains("nonsense"), "{args:?}: {said:?}");
        let said = bad_queue.output(args);
        assert!(said.code == 69 && said.stderr.contains("guests"), "{args:?}: {said:?}");
        let said = bad_handler.output(args);
        let expected = if matches!(args[0], "run" | "check") { 65 } else { 0 };
        assert_eq!(said.code, expected, "{args:?}: {said:?}");
        assert!(expected == 0 || said.stderr.contains("missing.wat"), "{args:?}: {said:?}");
    }
    let said = with("guests", "missing.wat", "").output(&["check"]);
    assert_eq!(said.code, 65, "{said:?}");
    assert!(said.stderr.contains("missing.wat") && said.stderr.contains("guests"), "both at once: {said:?}");
    let said = with("queue.db", "guests/run-tell.wat", "queue.driver = 'sqs'").output(&["run"]);
    assert_eq!(said.code, 69, "{said:?}");
    let said = bad_config.output(&["check", "--config", "nowhere.toml"]);
    assert!(said.code == 64 && said.stderr.contains("nowhere.toml"), "{said:?}");
}

/// Anything may be in a container's environment, a secret too.
#[test]
fn a_variable_that_is_not_utf_8_hurts_nothing_but_its_own_key() {
    let world = World::new(JOBS);
    let with = |variable: &str, args: &[&str]| {
        let secret = OsStr::from_bytes(b"hunter2\xff");
        let said = Said::new(world.command(args).env(variable, secret).output().unwrap());
        assert!(!said.stdout.contains("hunter2") && !said.stderr.contains("hunter2"), "{variable} {args:?}: {said:?}");
        said
    };
    let commands: [&[&str]; 6] = [
        &["send", "jobs", "--body", "x"],
        &["queues"],
        &["check"],
        &["pause", "--all"],
        &["resume", "--all"],
        &["invoke", "jobs", "--body", "x"],
    ];
    let healthy = ["check-consumer-health", "--start-period", "1000000h"];
    for args in commands.into_iter().chain([&healthy[..]]) {
        let said = with("DATABASE_PASSWORD", args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
    }
    let key = "HOSTLER_CONSUMERS__JOBS__ALLOW__ENV__TOKEN";
    let fault =
        format!("consumers.jobs.allow.env.TOKEN\n  where  variable {key}\n  fault  the value is not UTF-8 text\n");
    for args in [&["run"][..], &["send", "jobs", "--body", "x"], &["queues"], &["check"], &["invoke", "jobs"]] {
        let said = with(key, args);
        assert!(said.code == 64 && said.stderr.contains(&fault), "{args:?}: {said:?}");
    }
    assert_eq!(with(key, &healthy).code, 0, "the check does not judge the config");
}

#[test]
fn check_says_what_it_found_and_takes_nothing() {
    let world = World::new(JOBS);
    world.send("jobs", ["x"]);
    let said = world.output(&["check"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    for part in ["config    ok", "handler   ok  jobs", "preview-1 command", "queue     ok  jobs", "jobs-dlq"] {
        assert!(said.stdout.contains(part), "{part} in {}", said.stdout);
    }
    assert!(told(&world, 1).contains(&"MESSAGE_ATTEMPT=1".to_owned()));
}

#[test]
fn queues_are_counted_for_people_and_for_programs() {
    let world = World::new(&format!("{JOBS}\nreply_channel = 'answers'\nallow.send = ['others']"));
    assert_eq!(world.queues().as_array().unwrap().len(), 3, "the reply channel and what may be sent to, too");
    world.send("jobs", ["a", "b"]);
    world.output(&["send", "jobs", "--body", "later", "--delay", "10m"]);
    world.output(&["send", "jobs-dlq", "--body", "dead"]);
    world.queue("unknown");
    let rows = world.queues();
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["channel"].as_str().unwrap()).collect();
    assert_eq!(names, ["jobs", "answers", "others", "unknown"]);
    let age = rows[0]["oldest_age_seconds"].as_u64().unwrap();
    let row = json!({ "channel": "jobs", "visible": 2, "delayed": 1, "in_flight": 0, "dead_lettered": 1,
                      "oldest_age_seconds": age });
    assert_eq!(rows[0].to_string(), row.to_string(), "these keys, in this order");
    let missing = json!({ "channel": "answers", "visible": null, "delayed": null, "in_flight": null,
                          "dead_lettered": null, "oldest_age_seconds": null, "missing": true });
    assert_eq!(rows[1], missing, "nothing has been sent there");
    let said = world.output(&["queues"]);
    let lines: Vec<String> =
        said.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines.contains(&"answers - - - - -".to_owned()), "{lines:?}");

    let text = world.output(&["queues", "jobs-dlq", "jobs"]).stdout;
    let cells: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0].join(" "), "CHANNEL VISIBLE DELAYED IN FLIGHT DEAD-LETTERED OLDEST");
    assert_eq!(
        (&cells[1][..5], &cells[2][..5]),
        (&["jobs-dlq", "1", "0", "0", "0"][..], &["jobs", "2", "1", "0", "1"][..])
    );
}

#[test]
fn queues_tells_a_slip_from_an_empty_queue() {
    let fan_out =
        "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-tell.wat'\nallow.send = ['news']\n";
    let world = World::new(&format!("{fan_out}{JOBS}"));
    for named in [false, true] {
        let said = world.output(&["queues", "jobs", "jbos"]);
        assert!(said.code == 69 && said.stderr.contains("there is no queue `jbos`"), "{named}: {said:?}");
        // An exchange is not a channel of its own.
        let names: Vec<_> = world.queues().as_array().unwrap().iter().map(|row| row["channel"].to_string()).collect();
        assert_eq!(names, ["\"jobs\"", "\"news.mobile\""]);
        assert_eq!(world.output(&["queues", "news"]).code, 69);
        let said = world.output(&["queues", "nope.mobile"]);
        let told = "there is no exchange `nope` that feeds the queue `mobile`";
        assert!(said.code == 69 && said.stderr.contains(told), "{named}: {said:?}");
        assert_eq!(world.output(&["queues", "jobs", "jobs-dlq", "mobile"]).code, 0, "those of the config");
        assert_eq!(world.row("jobs").get("missing").is_some(), !named);
        world.provision();
    }
}

#[test]
fn schema_and_completions_are_printed() {
    let world = World::new(JOBS);
    let said = world.output(&["schema"]);
    let schema: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(schema["$schema"].is_string() && schema["properties"]["consumers"].is_object(), "{schema}");
    assert!(world.output(&["schema", "--markdown"]).stdout.contains("processing_timeout"));
    for shell in ["bash", "zsh", "fish"] {
        let said = world.output(&["completions", shell]);
        assert_eq!(said.code, 0);
        assert!(said.stdout.contains("check-consumer-health"), "{shell}");
    }
    assert_eq!(world.output(&["completions", "sh"]).code, 2);
}

#[test]
fn every_command_explains_itself() {
    let world = World::new("");
    let commands = [
        ("run", "--config"),
        ("check", "--config"),
        ("check-consumer-health", "--file --json --start-period --config"),
        ("invoke", "--body --file --attr --attempt --routing-key --group --json --config"),
        ("send", "--body --file --lines --attr --routing-key --delay --group --dedupe --config"),
        ("queues", "--json --config"),
        ("requeue", "--from --to --max --id --filter --rate --dry-run --native --json --config"),
        ("dlq", "ls show drop"),
        #[cfg(feature = "retry")]
        ("retry", "--config"),
        #[cfg(feature = "jobs")]
        ("jobs", "serve migrate ls show retry cancel"),
        ("peek", "<CHANNEL> --max --id --filter --dead-letters --json --config"),
        ("receive", "<CHANNEL> --ack --max --wait --json --config"),
        ("purge", "<CHANNEL> --yes --json --config"),
        ("pause", "[CONSUMERS]... --all --file --config"),
        ("resume", "[CONSUMERS]... --all --file --config"),
        ("inflight", "--json --file --config"),
        ("cancel", "<ID> --consumer --file --config"),
        ("top", "--once --config"),
        ("provision", "--plan --config"),
        ("iam", "--with-provision --config"),
        ("alarms", "--every --config"),
        ("clean", "--apply --config"),
        ("compile", "--output --target --cpu-baseline"),
        ("new", "<NAME> --lang rust go python js ts c"),
        ("dev", "--to --config"),
        ("schema", "--markdown"),
        ("completions", "<SHELL>"),
    ];
    let all = world.output(&["--help"]);
    assert_eq!(all.code, 0);
    // Descriptions that go over several lines are indented further.
    let (_, listed) = all.stdout.split_once("Commands:\n").unwrap();
    let listed = listed.lines().take_while(|line| !line.is_empty());
    let listed = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let expected: BTreeSet<_> = commands.iter().map(|(command, _)| *command).chain(["help"]).collect();
    assert_eq!(listed.collect::<BTreeSet<_>>(), expected);
    for (command, options) in commands {
        let said = world.output(&[command, "--help"]);
        assert_eq!((said.code, said.stderr.as_str()), (0, ""));
        for option in options.split(' ') {
            assert!(said.stdout.contains(option), "{option} in {}", said.stdout);
        }
    }
    for code in ["64", "65", "69", "70", "71", "75", "128+n"] {
        assert!(all.stdout.contains(code), "{code}");
    }
    assert!(world.output(&["--version"]).stdout.starts_with("hostler "));
    for wrong in [&["nonsense"][..], &["run", "--nonsense"], &["send"], &[]] {
        assert_eq!(world.output(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn the_verdict_follows_the_host() {
    let world = World::new(JOBS);
    let check = |args: &[&str]| world.output(&[&["check-consumer-health"], args].concat());
    let said = check(&["--start-period", "1000000h"]);
    assert!(said.code == 0 && said.stdout.starts_with("starting: "), "{said:?}");
    let said = check(&["--start-period", "0s"]);
    assert!(said.code == 1 && said.stderr.contains("no health file"), "{said:?}");

    let host = world.started();
    until("it is healthy", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
    let said = check(&[]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "healthy: 1 consumer\n", ""));
    let moved = world.path("health.json");
    let said = check(&["--config", "/nowhere", "--file", moved.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");

    // The host writes at least every 2 s, and counts as stuck after 10.
    host.signal(Signal::STOP);
    let said = until("it is unhealthy", 15 * SECOND, || Some(check(&[])).filter(|said| said.code == 1));
    // It may have been stopped while it wrote.
    let reasons = ["has written nothing for", "was locked for"];
    assert!(said.stdout.starts_with("unhealthy: ") && reasons.iter().any(|why| said.stderr.contains(why)), "{said:?}");
    host.signal(Signal::CONT);
    until("it is healthy again", 5 * SECOND, || (world.verdict()["healthy"] == true).then_some(()));

    host.kill();
    assert!(check(&[]).stderr.contains("is gone"));
    fs::write(&moved, "{\"schema\": 1, ").unwrap();
    let said = check(&[]);
    assert!(said.code == 1 && !said.stderr.is_empty(), "{said:?}");
}

#[test]
fn an_idle_consumer_and_a_full_one_stay_healthy() {
    let keys = "processing_timeout = '2s'\nhealthcheck_timeout = '3s'\nhandler = 'guests/run-word.wat'";
    let world = World::new(&format!(
        "[consumers.idle]\nchannel = 'idle'\n{keys}\n[consumers.full]\nchannel = 'full'\nconcurrency = 1\n{keys}"
    ));
    world.send("full", ["w1000"; 8]);
    let host = world.started();
    let began = Instant::now();
    let mut full = false;
    until("all are done", PATIENCE, || {
        let verdict = world.verdict();
        assert_eq!(verdict["healthy"], true, "after {:?}: {verdict}", began.elapsed());
        full |= verdict["report"]["consumers"].as_array()?.iter().any(|consumer| consumer["in_flight"] == 1);
        let done = host.lines().iter().filter(|line| line["outcome"] == "ack").count();
        (done == 8).then_some(())
    });
    assert!(full && began.elapsed() > 7 * SECOND);
}

/// The most memory that the health check ever had, in KiB: it is caught as it writes its answer into a full pipe.
#[test]
fn the_health_check_is_small() {
    let world = World::new(JOBS);
    let _host = world.started();
    until("it is healthy", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(b".").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let mut check = world.command(&["check-consumer-health"]).stdout(Stdio::from(writer)).spawn().unwrap();
    let peak = until("it waits to be heard", PATIENCE, || {
        let status = fs::read_to_string(format!("/proc/{}/status", check.id())).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        (field("State:")?.starts_with('S')).then(|| field("VmHWM:")?.strip_suffix(" kB")?.parse::<u64>().ok())?
    });
    let mut heard = Vec::new();
    reader.read_to_end(&mut heard).unwrap();
    assert!(check.wait().unwrap().success());
    assert!(String::from_utf8(heard).unwrap().trim_start_matches('.').starts_with("healthy"));
    announce(&format!("check-consumer-health takes {peak} KiB at most"));
    if cfg!(debug_assertions) {
        announce("NOT RUN, the limit of 10 MiB: it holds for release builds");
    } else {
        assert!(peak < 10 * 1024, "{peak} KiB");
    }
}

#[cfg(feature = "sqs")]
#[test]
fn missing_aws_credentials_are_named_with_the_way_to_give_them() {
    let head = "queue.driver = 'sqs'\nqueue.sqs.region = 'eu-west-1'\nhost.health_file = 'health.json'\n";
    let world = World::with(head, vec![("AWS_EC2_METADATA_DISABLED", "true".into())], JOBS);
    for args in [&["queues"][..], &["check"], &["send", "jobs", "--body", "x"], &["run"]] {
        let said = world.output(args);
        assert_eq!(said.code, 69, "{args:?}: {said:?}");
        for part in ["no AWS credentials", "AWS_ACCESS_KEY_ID", "the ECS task role", "aws sso login"] {
            assert!(said.stderr.contains(part), "{args:?} does not say {part}: {said:?}");
        }
        assert!(!said.stderr.contains("dispatch failure"), "{args:?}: {said:?}");
    }
}

#[test]
fn a_config_in_yaml_is_told_what_toml_looks_like() {
    let world = World::new("");
    fs::write(world.path("hostler.yaml"), "consumers:\n  jobs:\n    channel: jobs\n    handler: jobs.wasm\n").unwrap();
    let said = world.output(&["check", "--config", "hostler.yaml"]);
    assert_eq!(said.code, 64, "{said:?}");
    for part in ["hostler.yaml: not valid TOML: it looks like YAML", "[consumers.orders]", "channel = \"orders\""] {
        assert!(said.stderr.contains(part), "{part} in {said:?}");
    }
}
