//! Who is compared, and how each is started.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;
use crate::arguments::Arguments;
use crate::messages::Form;

/// What consumes the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// hostler with a component, a fresh instance for each message.
    Component,
    /// The same without WASI.
    Plain,
    /// The same with a command of preview 1.
    Command,
    /// The same component, its instances reused.
    Reused,
    /// The component with a fresh instance, its metrics sent to a collector.
    Metrics,
    /// The same with a span for each message beside.
    Traces,
    /// The AWS SDK and nothing else, on a thread for each CPU, built as hostler is for its image.
    Bare,
    /// The same on one thread.
    BareOneThread,
    /// The same on a thread for each CPU, in Cargo's usual release build.
    BareUsual,
    /// sqs-consumer with `handleMessageBatch`.
    Batch,
    /// sqs-consumer with `handleMessage`.
    Each,
    /// boto3 in a loop.
    Loop,
    /// A Celery worker.
    Celery,
}

use Contender::{Bare, BareOneThread, BareUsual, Batch, Celery, Component, Each, Loop, Metrics, Plain, Reused, Traces};

impl Contender {
    /// All of them, the fastest first.
    pub const ALL: [Self; 13] = [
        BareOneThread,
        Bare,
        BareUsual,
        Reused,
        Plain,
        Component,
        Metrics,
        Traces,
        Self::Command,
        Batch,
        Each,
        Loop,
        Celery,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Component => "hostler-component",
            Plain => "hostler-plain",
            Self::Command => "hostler-command",
            Reused => "hostler-reused",
            Metrics => "hostler-metrics",
            Traces => "hostler-traces",
            Bare => "bare",
            BareOneThread => "bare-one-thread",
            BareUsual => "bare-usual-build",
            Batch => "sqs-consumer-batch",
            Each => "sqs-consumer-each",
            Loop => "boto3",
            Celery => "celery",
        }
    }

    /// What it is, for a reader.
    pub fn title(self) -> &'static str {
        match self {
            Component => "hostler, component",
            Plain => "hostler, component without WASI",
            Self::Command => "hostler, command",
            Reused => "hostler, reused instance",
            Metrics => "hostler, metrics on",
            Traces => "hostler, metrics and traces",
            Bare => "bare Rust loop",
            BareOneThread => "bare Rust loop, one thread",
            BareUsual => "bare Rust loop, usual build",
            Batch => "sqs-consumer, batches",
            Each => "sqs-consumer, one by one",
            Loop => "boto3 loop",
            Celery => "Celery",
        }
    }

    /// Whether it is hostler.
    pub fn is_hostler(self) -> bool {
        matches!(self, Component | Plain | Self::Command | Reused | Metrics | Traces)
    }

    /// Whether it is what there is at least to do.
    pub fn is_limit(self) -> bool {
        matches!(self, Bare | BareOneThread | BareUsual)
    }

    /// What its messages hold.
    pub fn form(self) -> Form {
        if self == Celery { Form::Celery } else { Form::Plain }
    }
}

/// Where everything is that was built and installed.
#[derive(Debug, Clone)]
pub struct Places {
    /// The binary of hostler.
    pub hostler: PathBuf,
    /// This program, built as hostler is for its image.
    pub bare: PathBuf,
    /// The folder of the compiled handlers.
    pub handlers: PathBuf,
    /// The folder of this package.
    pub package: PathBuf,
    /// The folder that `peers.sh` printed; nothing where only hostler and the bare loop are measured.
    pub peers: Option<PathBuf>,
}

impl Places {
    /// Those that `run.sh` names.
    pub fn of(arguments: &Arguments) -> Result<Self> {
        let place = |key: &str| arguments.text(key).map(fs::canonicalize).transpose();
        let needed = |key: &str| -> Result<PathBuf> {
            Ok(place(key)?.ok_or_else(|| format!("--{key} is missing: see run.sh"))?)
        };
        Ok(Self {
            hostler: needed("hostler")?,
            bare: needed("bare")?,
            handlers: needed("handlers")?,
            package: needed("package")?,
            peers: place("peers")?,
        })
    }

    /// The folder of a peer.
    pub fn peer(&self, name: &str) -> Result<PathBuf> {
        Ok(self.peers.as_ref().ok_or("--peers is missing: see run.sh")?.join(name))
    }
}

/// What a contender has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// How many messages at a time: of each consumer.
    pub slots: usize,
    /// How many consumers, each with a queue of its own; only hostler can have more than one.
    pub consumers: usize,
    /// How many bytes a body has at least; only hostler and the bare loop can have it.
    pub body_bytes: usize,
}

/// The command that starts a contender on the queue at this endpoint, with `folder` as its own.
pub fn command(contender: Contender, places: &Places, folder: &Path, endpoint: &str, load: Load) -> Result<Command> {
    let concurrency = load.slots;
    let url = format!("{endpoint}/000000000000/bench");
    let mut command = match contender {
        Component => hostler(places, folder, endpoint, load, "component", 1)?,
        Plain => hostler(places, folder, endpoint, load, "plain", 1)?,
        Contender::Command => hostler(places, folder, endpoint, load, "command", 1)?,
        Reused => hostler(places, folder, endpoint, load, "component", 1000)?,
        Metrics | Traces => {
            let mut command = hostler(places, folder, endpoint, load, "component", 1)?;
            command.env("HOSTLER_TELEMETRY__OTLP_ENDPOINT", endpoint).env("OTEL_METRIC_EXPORT_INTERVAL", "1000");
            if contender == Metrics {
                command.env("OTEL_TRACES_EXPORTER", "none");
            }
            command
        }
        Bare | BareOneThread | BareUsual => {
            let usual = contender == BareUsual;
            let mut command = Command::new(if usual { std::env::current_exe()? } else { places.bare.clone() });
            command.args(["bare", "--queue-url", &url, "--endpoint", endpoint]);
            command.args(["--concurrency", &concurrency.to_string()]);
            if contender == BareOneThread {
                command.args(["--threads", "1"]);
            }
            command
        }
        Batch | Each => {
            // Node looks for packages beside the program.
            std::os::unix::fs::symlink(places.peer("node/node_modules")?, folder.join("node_modules"))?;
            for file in ["consumer.mjs", "work.mjs"] {
                fs::copy(places.package.join("peers").join(file), folder.join(file))?;
            }
            let mut command = Command::new(places.peer("node/node")?);
            command.arg(folder.join("consumer.mjs")).arg(if contender == Batch { "batch" } else { "each" });
            command
        }
        Loop => {
            let mut command = Command::new(places.peer("boto3/bin/python")?);
            command.arg(places.package.join("peers/loop.py"));
            command
        }
        Celery => {
            let mut command = Command::new(places.peer("celery/bin/celery")?);
            command.arg("--workdir").arg(places.package.join("peers")).args(["-A", "tasks", "worker"]);
            command.args(["--concurrency", &concurrency.to_string()]);
            command.args(["--without-gossip", "--without-mingle", "--without-heartbeat"]);
            command.env("C_FORCE_ROOT", "1");
            command
        }
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own: Vec<_> = command.get_envs().map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned))).collect();
    // What the machine says of AWS or of hostler is no part of this.
    command.env_clear().env("PATH", path).env("HOME", folder).env("PYTHONDONTWRITEBYTECODE", "1").envs(counted());
    command.envs(own.into_iter().filter_map(|(key, value)| Some((key, value?))));
    command.envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "eu-west-1")]);
    command.env("AWS_DEFAULT_REGION", "eu-west-1").env("BENCH_QUEUE_URL", &url).env("BENCH_ENDPOINT", endpoint);
    command.env("BENCH_CONCURRENCY", concurrency.to_string());
    command.current_dir(folder).stdin(Stdio::null());
    Ok(command)
}

/// The variable that says where a build that counts what it runs writes that down (`benches/release.sh`).
pub fn counted() -> Option<(&'static str, OsString)> {
    let variable = "LLVM_PROFILE_FILE";
    Some((variable, std::env::var_os(variable)?))
}

/// hostler with its defaults, and no more said than it has to know.
fn hostler(
    places: &Places,
    folder: &Path,
    endpoint: &str,
    load: Load,
    handler: &str,
    messages_per_instance: u32,
) -> Result<Command> {
    let config = folder.join("hostler.toml");
    let (health, handler) = (folder.join("health.json"), places.handlers.join(handler).with_extension("cwasm"));
    let mut text = format!(
        "[host]\nhealth_file = {health:?}\n[queue]\ndriver = \"sqs\"\n[queue.sqs]\nendpoint_url = {endpoint:?}\n"
    );
    let concurrency = load.slots;
    for number in 1..=load.consumers {
        text += &format!(
            "[consumers.bench-{number}]\nchannel = \"bench-{number}\"\nhandler = {handler:?}\n\
             concurrency = {concurrency}\nmessages_per_instance = {messages_per_instance}\n"
        );
    }
    fs::write(&config, text)?;
    let mut command = Command::new(&places.hostler);
    command.args(["run", "--config"]).arg(config);
    Ok(command)
}
