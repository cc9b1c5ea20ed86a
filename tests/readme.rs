//! Every command of the README is run, in its order, and prints what the README shows.
//!
//! A block ```` ```sh ```` is run by bash, with what the blocks before it export: the README's own line puts `hostler` on
//! the PATH. `hostler run` in it is started and goes on until the next one, `moto_server` to the end. A block
//! ```` ```text ```` after it is what it prints on standard output, but for times and sizes. A block ```` ```log ````
//! names lines that the running host logs. A comment `<!-- not run … -->` or `<!-- measured -->` before a block exempts
//! it. `pip` is that of the environment that `tests/servers.sh` has made, and finds nothing left to do. `docker` is a
//! client of the tests' own engine, which builds without a network; where no engine can start, its blocks are not run,
//! and that is said.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::engine::Engine;
use crate::support::hostler::{Host, until};
use crate::support::servers::installed;

/// How long a command may take to print what the README shows.
const PATIENCE: Duration = Duration::from_secs(60);

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The engine's client. Hostler's own image is the one that `tests/image.sh` has made of the binary under test; whether the whole
/// Dockerfile builds is a proof of its own (`image.sh --from-scratch`).
const DOCKER: &str = r#"#!/bin/sh
case "$*" in
"build --tag hostler .") exec /usr/bin/docker tag hostler:test hostler ;;
build*) cd "ROOT" && shift && exec /usr/bin/docker build --network none "$@" ;;
esac
exec /usr/bin/docker "$@"
"#;

#[derive(Debug)]
struct Block {
    kind: String,
    text: String,
    exempt: bool,
}

fn blocks(readme: &str) -> Vec<Block> {
    let (mut blocks, mut exempt) = (Vec::new(), false);
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        exempt |= line.starts_with("<!-- not run") || line == "<!-- measured -->";
        if let Some(kind) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(Block { kind: kind.to_owned(), text: text.join("\n"), exempt });
            exempt = false;
        }
    }
    blocks
}

/// A folder that looks like the repository after a build, for commands that write.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("target/release")).unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    let docker = folder.path().join("bin/docker");
    fs::write(&docker, DOCKER.replace("ROOT", ROOT)).unwrap();
    fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
    // The quickstart's queue lies beside its config.
    fs::create_dir(folder.path().join("config")).unwrap();
    for entry in fs::read_dir(Path::new(ROOT).join("config")).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.path().join("config").join(entry.file_name())).unwrap();
        }
    }
    for (target, link) in [
        (Path::new(ROOT).join("examples"), "examples"),
        (Path::new(ROOT).join("ecs-task.json"), "ecs-task.json"),
        (env!("CARGO_BIN_EXE_hostler").into(), "target/release/hostler"),
    ] {
        std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
    }
    folder
}

fn bash(folder: &Path, exports: &str, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("{exports}{script}")).current_dir(folder).env_clear();
    // The server's environment, whose `pip` finds nothing to do, comes before that of the AWS CLI.
    let [moto, clients] = ["moto", "clients"].map(|name| installed(name).join("bin").display().to_string());
    let own = folder.join("bin").display().to_string();
    command.env("PATH", format!("{own}:{moto}:{clients}:{}", std::env::var("PATH").unwrap()));
    if let Some(home) = std::env::var_os("HOME") {
        command.env("HOME", home);
    }
    command
}

/// A server that the README's reader leaves running. Dropping it kills it.
struct Background(Child);

impl Background {
    /// Starts it, and waits until it listens on the port that the README names.
    fn start(mut command: Command, script: &str) -> Self {
        let port: u16 = script.rsplit(' ').next().unwrap().parse().unwrap();
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Self(silent.spawn().unwrap());
        until("a server", PATIENCE, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        started
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What differs from run to run: times and sizes.
fn steady(text: &str) -> Vec<String> {
    let volatile = |word: &str| {
        let number = word.trim_start_matches('(').trim_end_matches(['s', ',']);
        number.parse::<f64>().is_ok() && (word.ends_with('s') || word.starts_with('(') || word.contains('.'))
    };
    text.lines()
        .map(|line| {
            line.split_whitespace().map(|word| if volatile(word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Whether a line of the log has all that a line of the README names: the message's words, and `key=value` pairs.
fn logs(line: &Value, wanted: &str) -> bool {
    let mut rest = wanted;
    let message = line["message"].as_str().unwrap_or_default();
    rest = match rest.strip_prefix(message).filter(|_| !message.is_empty()) {
        Some(rest) => rest.trim_start(),
        None => return false,
    };
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap(),
            None => after.split_once(' ').unwrap_or((after, "")),
        };
        let found = match &line[key] {
            Value::String(text) => text == value,
            other => other.as_f64() == value.parse().ok(),
        };
        if !found {
            return false;
        }
        rest = after.trim_start();
    }
    rest.is_empty()
}

/// Runs a command until it prints what is wanted. Only one that changes nothing may be run more than once.
fn run(folder: &Path, exports: &str, script: &str, wanted: Option<&str>) {
    let begin = Instant::now();
    let repeatable = ["hostler queues", "expected.py", "check-consumer-health", "docker inspect"]
        .iter()
        .any(|word| script.contains(word));
    loop {
        let output = bash(folder, exports, script).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let fits = output.status.success() && wanted.is_none_or(|wanted| steady(&printed) == steady(wanted));
        if fits {
            return;
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            repeatable && begin.elapsed() < PATIENCE,
            "$ {script}\nprinted:\n{printed}\n{errors}\nthe README shows:\n{}",
            wanted.unwrap_or("(nothing)")
        );
    }
}

#[test]
fn every_command_prints_what_the_readme_shows() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let blocks = blocks(&readme);
    assert!(blocks.iter().filter(|block| block.kind == "sh").count() >= 10);
    let folder = workplace();
    let engine = Engine::get();
    let mut exports = engine.map_or_else(String::new, |engine| format!("export DOCKER_HOST={}\n", engine.host));
    let mut host: Option<Host> = None;
    let mut servers = Vec::new();
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| !block.exempt) {
        let script = block.text.replace("cargo run --release --", "target/release/hostler");
        match block.kind.as_str() {
            "sh" if script.contains("docker ") && engine.is_none() => {}
            "sh" if script.contains("hostler run") => {
                stop(host.take());
                let mut command = bash(folder.path(), &exports, &format!("exec {script}"));
                command.env("HOSTLER_TELEMETRY__LOG", "json");
                let started = Host::start(command);
                started.wait_for(PATIENCE, |line| line["message"] == "consuming");
                host = Some(started);
            }
            "sh" if script.starts_with("moto_server") => {
                servers.push(Background::start(bash(folder.path(), "", &format!("exec {script}")), &script));
            }
            "sh" => {
                let wanted = blocks.get(index + 1).filter(|next| next.kind == "text" && !next.exempt);
                run(folder.path(), &exports, &script, wanted.map(|block| block.text.as_str()));
                exports
                    .extend(script.lines().filter(|line| line.starts_with("export ")).map(|line| format!("{line}\n")));
            }
            "log" => {
                let host = host.as_mut().unwrap();
                for wanted in block.text.lines() {
                    if wanted.starts_with("draining") {
                        assert_eq!(host.stop(), 0);
                    }
                    host.wait_for(PATIENCE, |line| logs(line, wanted));
                }
            }
            "text" => {}
            other => panic!("a block of an unknown kind: {other}"),
        }
    }
    stop(host);
}

/// Ends a host that the README's reader would have stopped by Ctrl-C.
fn stop(host: Option<Host>) {
    if let Some(mut host) = host
        && !host.lines().iter().any(|line| line["message"] == "drained")
    {
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn the_reference_is_the_table_of_keys() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    assert!(
        readme.contains(hostler_config::reference().trim_end()),
        "paste `hostler schema --markdown` into the chapter Config of the README"
    );
}
