//! Ends and restarts of a container: `docker stop`, `docker kill`, a restart over leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::Value;

use super::work;
use crate::support::engine::{Container, Engine, IMAGE};
use crate::support::hostler::{Depth, PATIENCE, SECOND, until};

const GRACE: &str = "host.shutdown_grace = '5s'";

/// Outcomes of messages, by the log.
fn settled(container: &Container, disposition: &str) -> usize {
    container.lines().iter().filter(|line| line["disposition"] == disposition).count()
}

#[test]
fn what_can_finish_does_and_the_rest_goes_back() {
    let Some(engine) = Engine::get() else { return };
    let container = Container::run(engine, &[], &work(GRACE, "concurrency = 16")).consuming();
    container.send("work", [["w2500"; 8], ["w60000"; 8]].concat());
    container.in_flight("work", 16);
    let (code, took) = container.stop();
    assert_eq!(code, 75);
    assert!(took < 6 * SECOND, "{took:?}");
    assert_eq!((settled(&container, "ack"), settled(&container, "release")), (8, 8));

    container.restart();
    container.in_flight("work", 8);
}

#[test]
fn when_all_can_finish_it_ends_with_0() {
    let Some(engine) = Engine::get() else { return };
    let container = Container::run(engine, &[], &work(GRACE, "concurrency = 16")).consuming();
    container.send("work", ["w1500"; 40]);
    container.in_flight("work", 16);
    let (code, took) = container.stop();
    assert_eq!(code, 0);
    assert!(took < 6 * SECOND, "{took:?}");
    let done = settled(&container, "ack");
    assert!((16..40).contains(&done), "{done}");
    assert_eq!(settled(&container, "release"), 0);
}

#[test]
fn a_killed_one_loses_nothing() {
    let Some(engine) = Engine::get() else { return };
    let container = Container::run(engine, &[], &work("", "concurrency = 4\nlease = '2s'")).consuming();
    container.send("work", [vec!["w4000"; 4], vec!["ack"; 96]].concat());
    container.in_flight("work", 4);
    container.signal("KILL");
    assert_eq!(container.exit_code(), 137);
    assert_eq!(container.settled(0), [] as [Value; 0], "it was killed too late to prove anything");
    container.restart();
    let done = container.settled(100);
    let ids: BTreeSet<&str> = done.iter().filter_map(|line| line["message_id"].as_str()).collect();
    assert_eq!(ids.len(), 100);
    let again = done.iter().filter(|line| line["attempt"] == 2).count();
    assert_eq!(again, 4);
    assert_eq!(container.depth("work"), Depth::default());
    assert_eq!(container.stop().0, 0);
}

#[test]
fn the_health_file_of_a_dead_container_is_not_believed() {
    let Some(engine) = Engine::get() else { return };
    let dead = Container::run(engine, &["--health-interval", "1s"], &work("", "")).consuming();
    dead.health("healthy");
    dead.signal("KILL");
    dead.exit_code();

    // Another life over the same files, that of a program which writes no health: it waits for its input.
    let from = format!("--volumes-from={}", dead.id);
    let options = ["run", "-i", "--rm", "--cidfile"];
    let cidfile = dead.folder().join("id");
    let program = ["--entrypoint", "/hostler", IMAGE, "send", "work", "-"];
    let mut next = engine.command(&[&options[..], &[cidfile.to_str().unwrap(), &from], &program].concat());
    let mut next = next.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = until("it has an id", PATIENCE, || fs::read_to_string(&cidfile).ok().filter(|id| !id.is_empty()));
    let check = |period: &str| {
        until("it runs", PATIENCE, || {
            let program = ["exec", &id, "/hostler", "check-consumer-health", "--json", "--start-period", period];
            serde_json::from_str::<Value>(&engine.said(&program).stdout).ok()
        })
    };
    assert_eq!(check("300s")["status"], "starting");
    let late = check("0s");
    assert_eq!(late["status"], "unhealthy", "{late}");
    assert!(late["report"].is_null() || late["reasons"].to_string().contains("earlier"), "{late}");
    next.stdin.take().unwrap().write_all(b"done").unwrap();
    assert!(next.wait().unwrap().success());
}

#[test]
fn signals_end_it_at_every_stage() {
    let Some(engine) = Engine::get() else { return };
    // Blocked in a receive.
    let idle = Container::run(engine, &[], &work("", "")).consuming();
    idle.health_file("IDLE");
    let (code, took) = idle.stop();
    assert_eq!(code, 0);
    assert!(took < 2 * SECOND, "{took:?}");

    // A second signal.
    let full = Container::run(engine, &[], &work("", "concurrency = 2")).consuming();
    full.send("work", ["w60000"; 2]);
    full.in_flight("work", 2);
    full.signal("TERM");
    full.wait_for("it drains", |line| line["message"] == "draining");
    full.signal("TERM");
    assert_eq!(full.exit_code(), 143);

    // Compiling a handler that takes long.
    let folder = tempfile::tempdir().unwrap();
    let slow = folder.path().join("slow.wat");
    fs::write(&slow, much_to_compile()).unwrap();
    let volume = format!("{}:/slow.wat:ro", slow.display());
    let config = "[consumers.work]\nchannel = 'work'\nhandler = '/slow.wat'";
    let compiling = Container::run(engine, &["--volume", &volume], config);
    compiling.health_file("INITIALIZING");
    let (code, took) = compiling.stop();
    assert_eq!(code, 0, "{:?}", compiling.lines());
    assert!(took < 2 * SECOND, "{took:?}");
    assert!(compiling.lines().iter().any(|line| line["message"] == "stopped before it was ready"));

    // No queue to reach: it ends by itself, and says so.
    let config = "queue.driver = 'sqs'\nqueue.sqs.endpoint_url = 'http://127.0.0.1:9'\nqueue.sqs.region = 'eu-west-1'";
    let keys = ["--env", "AWS_ACCESS_KEY_ID=test", "--env", "AWS_SECRET_ACCESS_KEY=test"];
    let unreachable = Container::run(engine, &keys, &work(config, ""));
    assert_eq!(unreachable.exit_code(), 69, "{:?}", unreachable.lines());
}

/// A command whose functions take the compiler many seconds.
fn much_to_compile() -> String {
    let body: String = (0..400)
        .map(|n| format!("(local.set 0 (i32.mul (i32.add (local.get 0) (i32.const {n})) (local.get 1)))"))
        .collect();
    let functions: String =
        (0..4_000).map(|n| format!("(func $f{n} (param i32 i32) (result i32) {body} (local.get 0))\n")).collect();
    format!("(module (memory (export \"memory\") 1) {functions} (func (export \"_start\")))")
}
