//! Every command of the README and of the pages in [`RUN`] is run, in its order, and prints what the page shows.
//!
//! A block ```` ```sh ```` is run by bash, in the folder and with the exports of the blocks before it. Each page starts in a folder
//! of its own that looks like the repository, with `hostler` on the PATH. `hostler run` is started and goes on until the next one,
//! or until a log block says `draining`; `hostler retry`, `hostler jobs serve`, `moto_server` and `nats-server` to the end of the page. A block ```` ```text ```` after it is what it prints on standard output, but for times,
//! sizes and ids. A block ```` ```log ```` names lines that the running host logs. A block ```` ```toml ```` that begins with a
//! comment such as `# hostler.toml` is written to that file. A comment `<!-- not run … -->` or `<!-- measured -->` before a block exempts
//! it. `pip` is that of the environment that `tests/servers.sh` has made, and finds nothing left to do; `cargo install` does nothing.
//! `apt-get install rabbitmq-server` starts the server that `tests/servers.sh` has made, at RabbitMQ's own port, as Debian's package
//! does; `apt-get install postgresql` starts a server of the tests at PostgreSQL's own port, whose administrator `sudo` stands for. `docker` is a client of the tests' own engine, which builds without a network; where no engine can start, its blocks are
//! not run, and that is said.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Block, ROOT, blocks, pages, read};
use crate::support::engine::Engine;
use crate::support::hostler::{Host, until};
use crate::support::nats::Version;
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::installed;
use crate::support::toolchains::programs;

/// The longest wait for a command to print what its page shows.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pages whose commands are run. On all others, each command is exempt.
const RUN: [&str; 10] = [
    "README.md",
    "book/src/getting-started.md",
    "book/src/languages/README.md",
    "book/src/sqs.md",
    "book/src/rabbitmq/five-minutes.md",
    "book/src/nats/five-minutes.md",
    "book/src/jobs.md",
    "book/src/postgres/five-minutes.md",
    "book/src/container.md",
    "book/src/ecs.md",
];

/// Held while the commands of a page run: pages use the same port, and the same names of containers.
static TURN: Mutex<()> = Mutex::new(());

/// The engine's client. Hostler's own image is the one that `tests/image.sh` has made of the binary under test; the
/// build of the whole Dockerfile is a proof of its own (`image.sh --from-scratch`).
const DOCKER: &str = r#"#!/bin/sh
case "$*" in
"build --tag hostler .") exec /usr/bin/docker tag hostler:test hostler ;;
build*) cd "ROOT" && shift && exec /usr/bin/docker build --network none "$@" ;;
esac
exec /usr/bin/docker "$@"
"#;

/// A `cargo` that has installed hostler already.
const CARGO: &str = "#!/bin/sh
case \"$1\" in install) exit 0 ;; esac
echo \"no page runs: cargo $*\" >&2; exit 1
";

/// Start of the command that installs RabbitMQ.
const INSTALL_RABBITMQ: &str = "apt-get install rabbitmq-server";

/// Start of the command that names the reader's database, in place of which a page gets one of the tests' server.
const EXPORT_DATABASE: &str = "export HOSTLER_JOBS__DATABASE=";

/// Port of RabbitMQ in AMQP's URLs.
const AMQP_PORT: u16 = 5672;

/// Command that installs PostgreSQL.
const INSTALL_POSTGRES: &str = "apt-get install postgresql";

/// Port of PostgreSQL in URLs.
const POSTGRES_PORT: u16 = 5432;

/// A `sudo` that lets the administrator of the tests' server run SQL.
const SUDO: &str = r#"#!/bin/sh
case "$*" in
"-u postgres psql "*) shift 3 && exec psql -X -h 127.0.0.1 -U postgres "$@" ;;
esac
echo "no page runs: sudo $*" >&2; exit 1
"#;

/// A folder that looks like the repository, for commands that write.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    let stubs = [("docker", DOCKER.replace("ROOT", ROOT)), ("cargo", CARGO.to_owned()), ("sudo", SUDO.to_owned())];
    for (name, text) in stubs {
        let program = folder.path().join("bin").join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
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
        (env!("CARGO_BIN_EXE_hostler").into(), "bin/hostler"),
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
    let [own, tools, nats] =
        [folder.join("bin"), programs(), Version::Newest.folder()].map(|path| path.display().to_string());
    command.env("PATH", format!("{own}:{moto}:{clients}:{tools}:{nats}:{}", std::env::var("PATH").unwrap()));
    if let Some(home) = std::env::var_os("HOME") {
        command.env("HOME", home);
    }
    command
}

/// A server that the page's reader leaves running. Dropping it kills it.
struct Background(Child);

impl Background {
    /// Starts it, and waits until it listens on the port that the page names.
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

/// The words of each line, without what differs from run to run: times, sizes and ids of messages.
fn steady(text: &str) -> Vec<String> {
    let is_id = |word: &str| word.len() == 36 && word.matches('-').count() == 4;
    let volatile = |word: &str| {
        let number = word.trim_start_matches('(').trim_end_matches(['s', ',']);
        let is_size = word.ends_with('s') || word.starts_with('(') || word.contains('.');
        is_id(word) || number.parse::<f64>().is_ok() && is_size
    };
    text.lines()
        .map(|line| {
            line.split_whitespace().map(|word| if volatile(word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Checks that a line of the log has all that a line of the page names: the message's words, and `key=value` pairs.
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
    let repeatable = ["hostler queues", "hostler jobs show", "expected.py", "check-consumer-health", "docker inspect"]
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
            "$ {script}\nprinted:\n{printed}\n{errors}\nthe page shows:\n{}",
            wanted.unwrap_or("(nothing)")
        );
    }
}

/// Returns the file that a config's first line names.
fn named(config: &str) -> Option<&str> {
    let (first, _) = config.split_once('\n')?;
    first.strip_prefix("# ").filter(|name| name.ends_with(".toml") && !name.contains(' '))
}

/// Starts a command that stays, and waits until it logs this message.
fn started(folder: &Path, exports: &str, script: &str, message: &str) -> Host {
    let mut command = bash(folder, exports, &format!("exec {script}"));
    command.env("HOSTLER_TELEMETRY__LOG", "json");
    let started = Host::start(command);
    started.wait_for(PATIENCE, |line| line["message"] == message);
    started
}

/// Runs the commands of a page.
fn every_command_works(page: &str) {
    assert!(RUN.contains(&page), "{page} is not in the list");
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let blocks = blocks(&read(page));
    assert!(blocks.iter().any(|block| block.kind == "sh" && !block.exempt));
    let folder = workplace();
    let of_docker = |block: &Block| block.kind == "sh" && block.text.contains("docker ");
    let engine = if blocks.iter().any(of_docker) { Engine::get() } else { None };
    let mut exports = engine.map_or_else(String::new, |engine| format!("export DOCKER_HOST={}\n", engine.host));
    let (mut host, mut service): (Option<Host>, Option<Host>) = (None, None);
    let (mut servers, mut rabbitmq, mut postgres) = (Vec::new(), None, None);
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| !block.exempt) {
        let script = &block.text;
        match block.kind.as_str() {
            "sh" if of_docker(block) && engine.is_none() => {}
            "sh" if script.contains("hostler run") => {
                stop(host.take());
                host = Some(started(folder.path(), &exports, script, "consuming"));
            }
            "sh" if script.starts_with("hostler retry") => {
                service = Some(started(folder.path(), &exports, script, "the retry service takes messages"));
            }
            "sh" if script.starts_with("hostler jobs serve") => {
                service = Some(started(folder.path(), &exports, script, "the job service listens"));
            }
            "sh" if script.starts_with(EXPORT_DATABASE) => {
                exports += &format!("{EXPORT_DATABASE}{}\n", Postgres::shared().database());
            }
            "sh" if script == INSTALL_RABBITMQ => rabbitmq = Some(RabbitMq::at(AMQP_PORT)),
            "sh" if script == INSTALL_POSTGRES => {
                let server = Postgres::start();
                postgres = Some((Proxy::of_bytes(POSTGRES_PORT, server.port()), server));
            }
            "toml" => {
                if let Some(name) = named(script) {
                    run(folder.path(), &exports, &format!("cat >{name} <<'END'\n{script}\nEND"), None);
                }
            }
            "sh" if script.starts_with("moto_server") || script.starts_with("nats-server") => {
                servers.push(Background::start(bash(folder.path(), "", &format!("exec {script}")), script));
            }
            "sh" => {
                let wanted = blocks.get(index + 1).filter(|next| next.kind == "text" && !next.exempt);
                run(folder.path(), &exports, script, wanted.map(|block| block.text.as_str()));
                let lasts = |line: &&str| line.starts_with("export ") || line.starts_with("cd ");
                exports.extend(script.lines().filter(lasts).map(|line| format!("{line}\n")));
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
            _ => {}
        }
    }
    stop(host);
    stop(service);
    drop((rabbitmq, postgres));
}

#[test]
fn commands_of_the_readme() {
    every_command_works("README.md");
}

#[test]
fn commands_of_getting_started() {
    every_command_works("book/src/getting-started.md");
}

#[test]
fn commands_of_handlers() {
    every_command_works("book/src/languages/README.md");
}

#[test]
fn commands_of_sqs() {
    every_command_works("book/src/sqs.md");
}

#[test]
fn commands_of_rabbitmq() {
    every_command_works("book/src/rabbitmq/five-minutes.md");
}

#[test]
fn commands_of_nats() {
    every_command_works("book/src/nats/five-minutes.md");
}

#[test]
fn commands_of_jobs() {
    every_command_works("book/src/jobs.md");
}

#[test]
fn commands_of_postgres() {
    every_command_works("book/src/postgres/five-minutes.md");
}

#[test]
fn commands_of_containers() {
    every_command_works("book/src/container.md");
}

#[test]
fn commands_of_ecs() {
    every_command_works("book/src/ecs.md");
}

/// Ends a host that the page's reader would have stopped by Ctrl-C.
fn stop(host: Option<Host>) {
    if let Some(mut host) = host
        && !host.lines().iter().any(|line| line["message"] == "drained")
    {
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn other_pages_say_why_their_commands_are_not_run() {
    for page in pages().iter().filter(|page| !RUN.contains(&page.as_str())) {
        for block in blocks(&read(page)).iter().filter(|block| block.kind == "sh") {
            assert!(
                block.exempt,
                "{page}: say `<!-- not run: … -->` before this, or add the page to RUN:\n{}",
                block.text
            );
        }
    }
}

/// Returns the README's only block of this kind.
fn of_readme(kind: &str) -> String {
    let blocks: Vec<_> = blocks(&read("README.md")).into_iter().filter(|block| block.kind == kind).collect();
    let [block] = &blocks[..] else { panic!("{} blocks of {kind}", blocks.len()) };
    block.text.clone()
}

/// Calls the handler in plain Python, where the decorator leaves the function as it is.
#[test]
fn the_handler_of_the_readme_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let tries = r#"
from unittest import mock

def outcome(body):
    try:
        return confirm(hostler.Message(body))
    except Exception as error:
        return error

assert isinstance(outcome(b'{"id": 1}'), hostler.DeadLetter)
assert outcome(b'{"id": 1, "email": "a@b.c", "stock": "pending"}').seconds == 60
assert isinstance(outcome(b"no JSON"), ValueError)
with mock.patch("hostler.send") as send:
    assert outcome(b'{"id": 1, "email": "a@b.c", "stock": "there"}') is None
    send.assert_called_once_with("mails", "Order 1 is on its way", {"to": "a@b.c"})
"#;
    let script = folder.path().join("handler.py");
    fs::write(&script, of_readme("python") + tries).unwrap();
    let sdk = Path::new(ROOT).join("sdk/python");
    let output = Command::new("python3").arg(script).env("PYTHONPATH", sdk).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn whole_configs_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostler.toml");
    for page in ["README.md", "book/src/rabbitmq/failures.md", "book/src/rabbitmq/migrating.md"] {
        let configs: Vec<_> = blocks(&read(page)).into_iter().filter(|block| block.kind == "toml").collect();
        assert!(!configs.is_empty(), "{page} has no config");
        for config in configs {
            fs::write(&path, config.text).unwrap();
            let loaded = hostler_config::load(Some(&path), std::iter::empty::<(String, String)>());
            let loaded = loaded.unwrap_or_else(|error| panic!("{page}: {error}"));
            assert!(loaded.warnings.is_empty(), "{page}: {:?}", loaded.warnings);
        }
    }
}
