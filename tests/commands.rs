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

use crate::support::hostler::{PATIENCE, SECOND, Said, World, announce, until};

/// A consumer `jobs` whose handler tells what it was given.
pub(crate) const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
";

/// The lines that guests of a host have written on standard output until `count` messages are settled.
pub(crate) fn told(world: &World, count: usize) -> Vec<String> {
    let host = world.start();
    host.settled(count);
    let lines = host.lines().into_iter().filter(|line| line["stream"] == "stdout");
    lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
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
        ("schedules", "[SCHEDULES]... --next --json --config"),
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
