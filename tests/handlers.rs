//! Outcomes of messages for every behaviour of a handler or a hook.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::invoke::{answer, answer_of, consumer, reply};
use crate::support::guests::{command, component, core_module};
use crate::support::hostler::{PATIENCE, SECOND, World, until};

/// Maximum delay until a guest is stopped. A debug build is slow, especially beside other tests.
const LATENESS: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 200 });

/// Output of `invoke --json` for a handler that a config with these lines names.
fn answer_with(handler: &Path, lines: &str, body: &str) -> Value {
    answer(&consumer(handler, lines), "one", &["--body", body])
}

fn expect(answer: &Value, outcome: &str, reason: &str) {
    assert_eq!(answer["outcome"], outcome, "{answer}");
    assert!(answer["reason"].as_str().unwrap_or_default().contains(reason), "{answer} does not say {reason:?}");
}

fn expect_stopped(answer: &Value, outcome: &str, after: Duration) {
    assert_eq!(answer["outcome"], outcome, "{answer}");
    let took = Duration::from_secs_f64(answer["duration_ms"].as_f64().unwrap() / 1e3);
    assert!(took >= after && took < after + LATENESS, "stopped after {took:?}, not {after:?}");
}

#[test]
fn a_component_says_what_becomes_of_its_message() {
    for (guest, outcome, reason) in [
        ("acks", "ack", ""),
        ("replies", "reply", ""),
        ("retries", "retry", ""),
        ("delays", "delay", ""),
        ("dead-letters", "dead-letter", "no such customer"),
        ("fails", "failed", "the database is away"),
    ] {
        expect(&answer_of(&component(guest), ""), outcome, reason);
    }
}

#[test]
fn a_core_module_that_says_what_it_exports_is_a_component() {
    let text = fs::read_to_string("tests/guests/replies.wat").unwrap();
    let world = World::new("");
    fs::write(world.path("handler.wasm"), core_module(&text)).unwrap();
    assert_eq!(reply(&answer(&world, "handler.wasm", &["--body", "as a module"])), b"as a module");
    assert_eq!(world.output(&["compile", "handler.wasm", "--output", "handler.cwasm"]).code, 0);
    assert_eq!(reply(&answer(&world, "handler.cwasm", &["--body", "compiled"])), b"compiled");

    let asks =
        text.replacen("(module", r#"(module (import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))"#, 1);
    fs::write(world.path("asks.wasm"), core_module(&asks)).unwrap();
    let said = world.output(&["invoke", "asks.wasm", "--body", ""]);
    let told = ["asks.wasm", "wasi_snapshot_preview1", "build it for wasm32-wasip2"];
    assert!(said.code == 65 && told.iter().all(|text| said.stderr.contains(text)), "{said:?}");
}

#[test]
fn a_command_says_by_its_exit_code_what_becomes_of_its_message() {
    for (code, outcome, reason) in
        [("0", "ack", ""), ("75", "retry", ""), ("65", "dead-letter", "exit code 65"), ("3", "failed", "exit code 3")]
    {
        expect(&answer_of(&command("main-exits"), code), outcome, reason);
    }
    for (guest, outcome) in [("wasi2-echoes", "ack"), ("wasi2-exits", "ack"), ("wasi2-fails", "failed")] {
        expect(&answer_of(&component(guest), ""), outcome, "");
    }
    expect(&answer_of(&command("main-complains"), "row 7\nno date\n\n"), "dead-letter", "no date");
}

#[test]
fn the_standard_output_of_a_command_is_its_reply_if_the_config_says_so() {
    let body = "x".repeat(10_000);
    for guest in [command("main-echoes"), component("wasi2-echoes")] {
        expect(&answer_of(&guest, &body), "ack", "");
        assert_eq!(reply(&answer_with(&guest, "reply = 'stdout'", &body)), body.as_bytes());
    }
}

#[test]
fn a_reply_that_was_cut_short_is_not_sent() {
    let answer = answer_with(&command("main-floods"), "reply = 'stdout'", "");
    expect(&answer, "failed", "limits.output");
}

#[test]
fn a_guest_that_breaks_is_trapped() {
    for (guest, reason) in [
        ("traps", "unreachable"),
        ("recurses", "call stack exhausted"),
        ("grows", "out of memory: limits.memory is 128.0 MiB"),
        ("realloc-grows", "out of memory: limits.memory is 128.0 MiB"),
        ("realloc-outside", "beyond end of memory"),
        ("result-outside", "out of bounds"),
        ("result-unknown", "unexpected discriminant: 5"),
        ("result-not-utf8", "utf-8"),
    ] {
        expect(&answer_of(&component(guest), "body"), "trapped", reason);
    }
    for (guest, reason) in [("main-traps", "unreachable"), ("main-grows", "out of memory: limits.memory is 128.0 MiB")]
    {
        expect(&answer_of(&command(guest), "body"), "trapped", reason);
    }
}

#[test]
fn a_guest_has_the_memory_that_the_config_gives_it() {
    let handler = component("wants-much-memory");
    expect(&answer_with(&handler, "limits.memory = '256MiB'", ""), "ack", "");
}

#[test]
fn a_guest_that_does_not_return_is_stopped() {
    let components = ["loops", "start-loops", "realloc-loops", "waits"].map(component);
    let commands = ["main-loops", "main-waits"].map(command);
    for guest in components.iter().chain(&commands) {
        let answer = answer_with(guest, "processing_timeout = '1s'", "body");
        expect(&answer, "timed-out", "processing timeout after 1.000 s");
        expect_stopped(&answer, "timed-out", SECOND);
    }
}

#[test]
fn random_bytes_are_had_by_so_many_at_once_that_a_guest_can_be_stopped_in_between() {
    let guest = command("main-asks-random");
    expect(&answer_of(&guest, ""), "ack", "");
    expect(&answer_of(&guest, "x"), "trapped", "exceeds limit 1048576");
}

#[test]
fn output_is_kept_up_to_its_limit_and_never_blocks() {
    let kept = |lines| {
        let said = answer_with(&command("main-floods"), lines, "");
        expect(&said, "ack", "");
        said["stderr"].as_str().unwrap().len()
    };
    // It writes 32 KiB to standard output first, and both streams share the limit.
    assert_eq!(kept(""), 32 * 1024);
    assert_eq!(kept("limits.output = '40KiB'"), 8 * 1024);
    assert_eq!(kept("limits.output = '0B'"), 0);
    assert_eq!(kept("limits.output = '16MiB'"), 5 * 1024 * 1024);
}

#[test]
fn an_import_that_no_host_has_matters_only_when_it_is_called() {
    expect(&answer_of(&component("calls-unknown"), ""), "ack", "");
    expect(&answer_of(&component("calls-unknown"), "call"), "trapped", "does not offer `acme:unknown/clock@1.0.0#now`");
    expect(&answer_of(&command("main-calls-unknown"), ""), "trapped", "env::telepathy");
}

#[test]
fn context_tells_the_time_that_is_left() {
    let told = reply(&answer_with(&component("tells-context"), "processing_timeout = '7s'", ""));
    let remaining = u64::from_le_bytes(told[..8].try_into().unwrap());
    assert!((1..=7_000).contains(&remaining), "{remaining}");
    assert_eq!(told[8], 0, "should-stop");
}

#[test]
fn a_guest_sees_the_folders_that_it_is_granted() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("note"), "inside").unwrap();
    fs::write(outside.path().join("secret"), "outside").unwrap();
    symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
    symlink(outside.path(), folder.path().join("folder-link")).unwrap();
    let grant = |mode: &str| {
        let host = folder.path().display();
        format!("reply = 'stdout'\nallow.dirs = [{{ host = '{host}', guest = '/data', mode = '{mode}' }}]")
    };
    let reads = |lines: &str, name: &str| answer_with(&command("main-reads-file"), lines, name);
    let writes = |lines: &str, name: &str| answer_with(&command("main-writes-file"), lines, name);

    assert_eq!(reply(&reads(&grant("ro"), "note")), b"inside");
    let secret = outside.path().join("secret").display().to_string();
    let up = format!("../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
    for name in [secret.as_str(), &up, "link", "folder-link/secret"] {
        expect(&reads(&grant("rw"), name), "failed", "exit code");
    }
    expect(&reads("", "note"), "failed", "exit code 8"); // bad descriptor: there is no folder at all

    expect(&writes(&grant("ro"), "new"), "failed", "exit code");
    expect(&writes(&grant("ro"), "note"), "failed", "exit code");
    for name in ["../new", "link", "folder-link/new"] {
        expect(&writes(&grant("rw"), name), "failed", "exit code");
    }
    expect(&writes(&grant("rw"), "new"), "reply", "");
    assert_eq!(fs::read(folder.path().join("new")).unwrap(), b"new");
    assert_eq!(fs::read(folder.path().join("note")).unwrap(), b"inside");
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"outside");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_denied_file_is_named_in_the_log_with_the_grant_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let grant = format!("allow.dirs = [{{ host = '{}', guest = '/data', mode = 'ro' }}]", folder.path().display());
    let lines = |guest: &str, lines: &str, body: &str| {
        let world = consumer(&command(guest), lines);
        world.send("one", [body]);
        let mut host = world.started();
        let [settled] = host.settled(1).try_into().unwrap();
        assert_eq!(settled["outcome"], "failed", "{settled}");
        assert_eq!(host.stop(), 0);
        (settled, host.lines())
    };
    let cure = |lines: &[Value], path: &str| {
        let denied = Value::from(format!("file {path:?}"));
        let line = lines.iter().find(|line| line["denied"] == denied).unwrap_or_else(|| panic!("{path}: {lines:#?}"));
        line["cure"].as_str().unwrap().to_owned()
    };
    let (_, log) = lines("main-reads-file", &grant, "../out");
    assert!(cure(&log, "../out").contains("the folder that it is really in"), "{log:?}");
    let (_, log) = lines("main-writes-file", &grant, "new");
    assert!(cure(&log, "new").contains("mode = \"rw\""), "{log:?}");

    // By every function that takes a path; what would change the file needs another grant than what looks at it.
    let (settled, log) = lines("main-asks-everywhere", &grant, "x");
    assert!(settled["reason"].as_str().unwrap().contains("exit code 10"), "{settled}");
    for number in 0..10 {
        assert_eq!(cure(&log, &format!("../{number}")).contains("rw"), number >= 3, "{number}: {log:?}");
    }
    // What is not denied is not told.
    let (_, log) = lines("main-reads-file", &grant, "missing");
    assert!(!log.iter().any(|line| line.get("denied").is_some()), "{log:?}");
}

#[test]
fn a_granted_folder_that_is_missing_is_made_only_if_guests_may_write() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("a/b");
    let grant = |mode: &str| {
        let host = missing.display();
        let lines = format!("allow.dirs = [{{ host = '{host}', guest = '/data', mode = '{mode}' }}]");
        consumer(&command("main-writes-file"), &lines)
    };
    let said = grant("ro").output(&["invoke", "one", "--body", "new"]);
    assert!(said.code == 65 && said.stderr.contains(missing.to_str().unwrap()), "{said:?}");
    assert!(said.stderr.contains("allow.dirs") && said.stderr.contains("cure: "), "{said:?}");
    expect(&answer(&grant("rw"), "one", &["--body", "new"]), "ack", "");
    assert!(missing.join("new").exists());
}

#[test]
fn a_guest_reaches_no_network_and_no_variable_that_is_not_granted() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_le_bytes();
    let (world, handler) = (World::new(""), component("connects"));
    fs::write(world.path("port"), port).unwrap();
    let refused = answer(&world, handler.to_str().unwrap(), &["--file", "port"]);
    assert_eq!(reply(&refused), [1], "1 is access-denied");

    expect(&answer_of(&command("main-seeks-socket"), ""), "ack", "");

    let handler = command("main-prints-environment");
    let mut invoke = world.command(&["invoke", handler.to_str().unwrap(), "--body", ""]);
    let told = invoke.env("SECRET", "hunter2").output().unwrap();
    assert!(!String::from_utf8(told.stdout).unwrap().contains("SECRET"));
}

#[test]
fn a_guest_sends_only_where_it_may() {
    let handler = component("sends");
    expect(&answer_with(&handler, "", "out"), "failed", "allow.send of this consumer does not name `out`");
    expect(&answer_with(&handler, "", "no channel"), "failed", "`no channel` is not a valid channel name");
    let granted = answer_with(&handler, "allow.send = ['out']", "out");
    expect(&granted, "failed", "this run of the handler has no queue to send to");

    let world = consumer(&handler, "allow.send = ['out']\nretry = { requeues = 0, delays = 0 }");
    world.send("one", ["out", "other"]);
    let mut host = world.started();
    let settled = host.settled(2);
    assert_eq!(host.stop(), 0);
    assert_eq!(settled.iter().filter(|line| line["outcome"] == "ack").count(), 1);
    assert_eq!(world.depth("out").visible, 1);
    assert_eq!(world.output(&["queues", "other"]).code, 69, "nothing was sent to it");
    assert_eq!(world.depth("one").dead_lettered, 1);
}

fn with_hooks(handler: &Path, hooks: &str, lines: &str) -> Value {
    answer_with(handler, &format!("hooks = '{}'\n{lines}", component(hooks).display()), "")
}

#[test]
fn what_a_hook_prints_is_logged_and_is_no_part_of_a_command_s_reply() {
    let hooks = component("hook-start-prints");
    let lines = format!("reply = 'stdout'\nhooks = '{}'", hooks.display());
    for handler in [command("main-echoes"), component("wasi2-echoes")] {
        let world = consumer(&handler, &lines);
        assert_eq!(reply(&answer(&world, "one", &["--body", "body"])), b"body");
        world.send("one", ["body"]);
        let mut host = world.started();
        host.wait_for(PATIENCE, |line| line["stream"] == "stdout" && line["message"] == "hook");
        assert_eq!(host.stop(), 0);
    }
}

/// A function of another type would fail every message.
#[test]
fn a_function_of_another_type_is_refused_before_there_is_a_message() {
    let hook = format!("hooks = '{}'", component("hook-other-type").display());
    for (handler, lines, fault) in [
        (
            component("handle-other-type"),
            "",
            "does not fit: its `handle` is of another type: expected `record` found `list`",
        ),
        (component("acks"), hook.as_str(), "its `message-end` is of another type: "),
        (component("run-other-type"), "", "its `run` is of another type: "),
        (command("main-takes-parameters"), "", "its `_start` takes parameters"),
    ] {
        let world = consumer(&handler, lines);
        for arguments in [&["check"][..], &["run"], &["invoke", "one", "--body", ""]] {
            let said = world.output(arguments);
            assert_eq!(said.code, 65, "{arguments:?}: {said:?}");
            assert!(said.stderr.contains(fault), "{arguments:?}: {said:?}");
        }
    }
}

#[test]
fn hooks_inside_the_handler_share_its_instance() {
    let answer = answer_of(&component("hooks-inside"), "");
    assert_eq!(reply(&answer), b"2");
    assert_eq!(answer["stderr"], "reply3");
}

#[test]
fn hooks_apart_serve_a_handler_of_any_kind() {
    for handler in [component("fails"), command("main-traps")] {
        let answer = with_hooks(&handler, "hooks-inside", "");
        let outcome = answer["outcome"].as_str().unwrap();
        assert_eq!(answer["stderr"], format!("{outcome}2"));
    }
}

#[test]
fn a_message_whose_message_start_goes_wrong_is_not_processed() {
    let handler = command("main-echoes");
    expect(&with_hooks(&handler, "hook-start-fails", ""), "failed", "message-start: out of hours");
    expect(&with_hooks(&handler, "hook-start-traps", ""), "trapped", "message-start: wasm trap");
}

#[test]
fn a_message_end_that_goes_wrong_changes_nothing() {
    let handler = component("acks");
    expect(&with_hooks(&handler, "hook-end-traps", ""), "ack", "");
    // Bounded by its own two seconds, or by the processing timeout if that comes first.
    expect_stopped(&with_hooks(&handler, "hook-end-loops", ""), "ack", 2 * SECOND);
    expect_stopped(&with_hooks(&handler, "hook-end-loops", "processing_timeout = '1s'"), "ack", SECOND);
}

/// Log line of a message whose handler is stopped at its processing timeout, with these hooks.
fn timed_out(hooks: &str) -> Value {
    let lines = format!("processing_timeout = '1s'\nhooks = '{}'", component(hooks).display());
    let world = consumer(&component("loops"), &lines);
    world.send("one", ["a"]);
    let mut host = world.started();
    let [line] = host.settled(1).try_into().unwrap();
    assert_eq!(host.stop(), 0);
    expect_stopped(&line, "timed-out", SECOND);
    line
}

#[test]
fn processing_timeout_decides_in_place_of_the_config() {
    assert_eq!(timed_out("hook-timeout-acks")["disposition"], "ack");
}

#[test]
fn a_processing_timeout_that_goes_wrong_leaves_it_to_the_config() {
    let line = timed_out("hook-timeout-loops");
    assert_eq!(line["disposition"], "dead-letter");
    assert!(line["reason"].as_str().unwrap().contains("processing timeout after 1.000 s"), "{line}");
}

#[test]
fn state_changed_hears_every_change_in_order() {
    let hooks = component("hook-state-sends");
    let tables = format!(
        "hooks = '{}'\nprocessing_timeout = '1s'\nallow.send = ['states']
        [consumers.states]\nchannel = 'states'\nhandler = '{}'\nconcurrency = 1",
        hooks.display(),
        command("main-echoes").display(),
    );
    let world = consumer(&component("waits"), &tables);
    world.send("one", ["a"]);
    let mut host = world.started();
    // From initializing (0) over initialized (1) and listening (2) to processing (3) and back.
    let told = ["01", "12", "23", "32"];
    for change in told {
        host.wait_for(PATIENCE, |line| line["stream"] == "stdout" && line["message"] == change);
    }
    let lines = host.lines();
    let heard: Vec<&Value> =
        lines.iter().filter(|line| line["stream"] == "stdout").map(|line| &line["message"]).collect();
    assert_eq!(heard, told);
    assert_eq!(host.stop(), 0);
}

#[test]
fn what_hooks_log_names_their_consumer() {
    let world = consumer(&component("acks"), &format!("hooks = '{}'", component("hook-end-traps").display()));
    world.send("one", ["a"]);
    let host = world.started();
    let settled = host.settled(1).remove(0);
    let failed = host.wait_for(PATIENCE, |line| line["message"] == "hook failed");
    assert_eq!((&failed["consumer"], &failed["hook"]), (&"one".into(), &"message-end".into()));
    assert_eq!(failed["message_id"], settled["message_id"]);

    let world = consumer(&component("acks"), &format!("hooks = '{}'", component("hook-state-floods").display()));
    let host = world.started();
    let dropped = host.wait_for(PATIENCE, |line| line["message"] == "output beyond 4 KiB was dropped");
    assert_eq!(dropped["dropped"], 7);
    let lines = host.lines();
    let of_hook: Vec<&Value> = lines.iter().filter(|line| line["hook"] == "state-changed").collect();
    assert!(of_hook.iter().all(|line| line["consumer"] == "one"), "{of_hook:?}");
    let said: Vec<&str> = of_hook.iter().take(3).map(|line| line["message"].as_str().unwrap()).collect();
    assert!(said[0] == "hook failed" && said[1] == "heard" && said[2].starts_with("xxx"), "{said:?}");
}

/// The reasons with which `counts` dead-letters these messages, one after the other.
fn counted(messages_per_instance: u32, bodies: &[&str]) -> Vec<String> {
    let lines = format!(
        "concurrency = 1\nmessages_per_instance = {messages_per_instance}\nretry = {{ requeues = 0, delays = 0 }}"
    );
    let world = consumer(&component("counts"), &lines);
    world.send("one", bodies);
    let mut host = world.started();
    let settled = host.settled(bodies.len());
    assert_eq!(host.stop(), 0);
    settled.iter().map(|line| line["reason"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_instance_serves_as_many_messages_as_the_config_says() {
    assert_eq!(counted(1, &["a", "b", "c"]), ["1", "1", "1"]);
    assert_eq!(counted(2, &["a", "b", "c", "d", "e"]), ["1", "2", "1", "2", "1"]);
}

#[test]
fn an_instance_that_trapped_serves_no_more() {
    let reasons = counted(9, &["a", "b", "!", "c", "d"]);
    assert_eq!([&reasons[..2], &reasons[3..]].concat(), ["1", "2", "1", "2"]);
    assert!(reasons[2].contains("unreachable"), "{reasons:?}");
}

#[test]
fn a_guest_learns_that_the_host_drains() {
    let world = consumer(&component("works-until-stopped"), "");
    world.send("one", ["a"]);
    let mut host = world.started();
    let state = || Some(world.verdict()).filter(|verdict| verdict.to_string().contains("PROCESSING"));
    until("processing", PATIENCE, state);
    assert_eq!(host.stop(), 0);
    assert_eq!(host.settled(1)[0]["outcome"], "retry");
}

#[test]
fn no_handler_takes_the_host_down() {
    let handlers: Vec<(&str, PathBuf)> = ["traps", "recurses", "grows", "realloc-outside", "result-outside", "acks"]
        .map(|guest| (guest, component(guest)))
        .into();
    let tables: String = handlers
        .iter()
        .map(|(name, handler)| {
            format!(
                "[consumers.{name}]\nchannel = '{name}'\nhandler = '{}'\nretry = {{ requeues = 0, delays = 0 }}\n",
                handler.display()
            )
        })
        .collect();
    let world = World::new(&tables);
    for (name, _) in &handlers {
        world.send(name, ["a", "b"]);
    }
    let mut host = world.started();
    let settled = host.settled(2 * handlers.len());
    for line in settled {
        let (outcome, disposition) =
            if line["consumer"] == "acks" { ("ack", "ack") } else { ("trapped", "dead-letter") };
        assert_eq!((&line["outcome"], &line["disposition"]), (&outcome.into(), &disposition.into()), "{line}");
    }
    assert_eq!(host.stop(), 0);
}
