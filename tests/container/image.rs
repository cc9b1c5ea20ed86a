//! Content and labels of the image, and a run with as few rights as possible.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::work;
use crate::support::engine::{Container, Engine, IMAGE};
use crate::support::hostler::{Depth, PATIENCE, until};

/// Maximum size of the image without its handler, in bytes.
const LARGEST: u64 = 69_000_000;

/// All that may be denied to it is.
const LOCKED_UP: [&str; 11] = [
    "--read-only",
    "--cap-drop",
    "ALL",
    "--user",
    "65532",
    "--network",
    "none",
    "--memory",
    "128m",
    "--pids-limit",
    "64",
];

fn repository(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn it_holds_the_binary_and_little_else() {
    let Some(engine) = Engine::get() else { return };
    let image: Value = serde_json::from_str(&engine.docker(&["image", "inspect", IMAGE])).unwrap();
    let size = image[0]["Size"].as_u64().unwrap();
    assert!(size < LARGEST, "{size} bytes");

    let id = engine.docker(&["create", IMAGE]);
    let archive = tempfile::NamedTempFile::new().unwrap();
    engine.docker(&["export", "--output", archive.path().to_str().unwrap(), &id]);
    engine.docker(&["rm", "--volumes", &id]);
    let listed = Command::new("tar").arg("--list").arg("--file").arg(archive.path()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: BTreeSet<&str> = listed.lines().filter(|line| !line.ends_with('/')).collect();
    // What the engine puts into every container, as mount points.
    let own = [".dockerenv", "dev/console", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"];
    let files: Vec<&&str> = files.iter().filter(|file| !own.contains(*file)).collect();
    assert_eq!(files, [&"etc/nsswitch.conf", &"etc/ssl/certs/ca-certificates.crt", &"hostler"]);
    assert!(listed.lines().any(|line| line == "etc/hostler/"), "{listed}");
}

#[test]
fn it_says_how_it_is_to_be_run() {
    let Some(engine) = Engine::get() else { return };
    let image: Value = serde_json::from_str(&engine.docker(&["image", "inspect", IMAGE])).unwrap();
    let config = &image[0]["Config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/hostler", "run"]));
    assert_eq!(config["StopSignal"], "SIGTERM");
    assert_eq!(config["Labels"]["org.opencontainers.image.title"], "hostler");
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(config["Healthcheck"]["Test"], json!(["CMD", "/hostler", "check-consumer-health"]));

    // The line is one and the same in both places.
    let dockerfile = fs::read_to_string(repository("Dockerfile")).unwrap();
    let healthcheck = fs::read_to_string(repository("healthcheck/HEALTHCHECK")).unwrap();
    let line = healthcheck.lines().find(|line| line.starts_with("HEALTHCHECK")).unwrap();
    assert!(dockerfile.lines().any(|other| other == line), "{line}");
}

#[test]
fn it_runs_the_quickstart_locked_up() {
    let Some(engine) = Engine::get() else { return };
    let examples = format!("{}:/var/lib/hostler/examples:ro", repository("examples"));
    let options = [&LOCKED_UP[..], &["--volume", &examples]].concat();
    let config = fs::read_to_string(repository("config/quickstart.toml")).unwrap();
    let container = Container::run(engine, &options, &config);
    let flights = "/var/lib/hostler/examples/flights/sample.jsonl";
    until("the queue is there", PATIENCE, || {
        (container.exec(&["/hostler", "queues", "flights"]).code == 0).then_some(())
    });
    let said = container.exec(&["/hostler", "send", "flights", "--lines", "--file", flights]);
    assert_eq!(said.code, 0, "{said:?}");
    let left = Depth { dead_lettered: 29, ..Depth::default() };
    until("all is settled", PATIENCE, || (container.depth("flights") == left).then_some(()));
    container.health("healthy");

    let totals = container.folder().join("totals");
    engine.docker(&["cp", &format!("{}:/var/lib/hostler/quickstart/totals", container.id), totals.to_str().unwrap()]);
    assert_eq!(compared(&totals), "15 carriers, 971 flights, 29 cancelled: 0 carriers differ");
    assert_eq!(container.stop().0, 0);
    assert_eq!(container.state()["OOMKilled"], false);
}

/// Compares the handler's sums with those of a program that shares no code with it.
fn compared(totals: &Path) -> String {
    let (sum, sample) = (repository("examples/flights/expected.py"), repository("examples/flights/sample.jsonl"));
    let output = Command::new("python3").args([&sum, &sample, "--compare"]).arg(totals).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn it_runs_as_any_user() {
    let Some(engine) = Engine::get() else { return };
    for user in ["0:0", "1234:5678"] {
        let container = Container::run(engine, &["--read-only", "--user", user], &work("", "")).consuming();
        container.send("work", ["ack"]);
        assert_eq!(container.settled(1)[0]["outcome"], "ack");
        assert_eq!(container.stop().0, 0, "{user}");
    }
}

#[test]
fn without_a_config_it_says_where_one_belongs() {
    let Some(engine) = Engine::get() else { return };
    let said = engine.said(&["run", "--rm", IMAGE]);
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.stderr.contains("/etc/hostler/hostler.toml"), "{}", said.stderr);
}

#[test]
fn a_handler_compiled_in_a_build_stage_starts_as_it_is() {
    let Some(engine) = Engine::get() else { return };
    let tag = "hostler-test-flights";
    let folder = repository("examples/flights");
    let image = format!("HOSTLER={IMAGE}");
    engine.docker(&["build", "--network", "none", "--build-arg", &image, "--tag", tag, &folder]);
    let id = engine.docker(&["run", "--detach", "--read-only", tag]);
    until("it consumes", PATIENCE, || {
        let log = engine.said(&["logs", &id]).stderr;
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        log.contains("\"consuming\"").then_some(())
    });
    engine.docker(&["stop", &id]);
    assert_eq!(engine.docker(&["wait", &id]), "0");
    engine.docker(&["rm", "--volumes", &id]);
}
