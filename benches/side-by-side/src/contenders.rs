//! Contenders of the comparison, and the commands that start them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;
use crate::arguments::Arguments;
use crate::messages::Form;

/// A program that consumes the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// hostler with a component, and a fresh instance for each message.
    Component,
    /// hostler with a component without WASI, and a fresh instance for each message.
    Plain,
    /// hostler with a preview-1 command, and a fresh instance for each message.
    Command,
    /// hostler with the component, and reused instances.
    Reused,
    /// hostler with the component and fresh instances, and metrics sent to a collector.
    Metrics,
    /// Like `Metrics`, with a span for each message.
    Traces,
    /// The AWS SDK only, on one thread per CPU, built like hostler for its image.
    Bare,
    /// The AWS SDK only, on one thread.
    BareOneThread,
    /// The AWS SDK only, on one thread per CPU, in Cargo's default release build.
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
    /// All contenders, fastest first.
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

    /// Returns the name on the command line.
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

    /// Returns the description for reports.
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

    /// Returns true if the contender is hostler.
    pub fn is_hostler(self) -> bool {
        matches!(self, Component | Plain | Self::Command | Reused | Metrics | Traces)
    }

    /// Returns true if the contender is a bare SDK loop, which does the minimum work.
    pub fn is_limit(self) -> bool {
        matches!(self, Bare | BareOneThread | BareUsual)
    }

    /// Returns the form of its messages.
    pub fn form(self) -> Form {
        if self == Celery { Form::Celery } else { Form::Plain }
    }
}

/// Locations of all built and installed programs.
#[derive(Debug, Clone)]
pub struct Places {
    /// The binary of hostler.
    pub hostler: PathBuf,
    /// This program, built like hostler for its image.
    pub bare: PathBuf,
    /// Folder of the compiled handlers.
    pub handlers: PathBuf,
    /// Folder of this package.
    pub package: PathBuf,
    /// Folder that `peers.sh` printed. `None`: only hostler and the bare loop are measured.
    pub peers: Option<PathBuf>,
}

impl Places {
    /// Returns the locations that `run.sh` passes as arguments.
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

    /// Returns the folder of a peer.
    pub fn peer(&self, name: &str) -> Result<PathBuf> {
        Ok(self.peers.as_ref().ok_or("--peers is missing: see run.sh")?.join(name))
    }
}

/// Load of a contender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Number of concurrent messages per consumer.
    pub slots: usize,
    /// Number of consumers, each with a separate queue. Only hostler supports more than one.
    pub consumers: usize,
    /// Minimum size of a body in bytes. Supported by hostler and the bare loop only.
    pub body_bytes: usize,
}

/// Creates the command that starts a contender on the queue at this endpoint. `folder` is the contender's own folder.
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
            // Node looks for packages next to the program.
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
    alone(&mut command, folder);
    command.envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "eu-west-1")]);
    command.env("AWS_DEFAULT_REGION", "eu-west-1").env("BENCH_QUEUE_URL", &url).env("BENCH_ENDPOINT", endpoint);
    command.env("BENCH_CONCURRENCY", concurrency.to_string());
    Ok(command)
}

/// Leaves a command only its own variables, because settings of the machine for AWS or hostler must not affect the measurement.
/// `folder`: the contender's own folder.
pub fn alone(command: &mut Command, folder: &Path) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own: Vec<_> = command.get_envs().map(|(key, value)| (key.to_owned(), value.map(ToOwned::to_owned))).collect();
    command.env_clear().env("PATH", path).env("HOME", folder).env("PYTHONDONTWRITEBYTECODE", "1").envs(counted());
    command.envs(own.into_iter().filter_map(|(key, value)| Some((key, value?))));
    command.current_dir(folder).stdin(Stdio::null());
}

/// Returns the variable with the output path of a build that records its execution counts (`benches/release.sh`).
pub fn counted() -> Option<(&'static str, OsString)> {
    let variable = "LLVM_PROFILE_FILE";
    Some((variable, std::env::var_os(variable)?))
}

/// Creates the command for hostler with its defaults. The config contains only required keys.
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
