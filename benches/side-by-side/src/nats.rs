//! The comparison on NATS. All contenders consume from a JetStream stream by the durable consumer that hostler provisions.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::contenders::{Places, alone};
use crate::contest::{self, Plan};
use crate::jetstream::JetStream;
use crate::machine::{self, Machine};
use crate::{Result, messages, report};

/// Stream, which is also the subject of its messages.
const STREAM: &str = "bench";

/// Durable consumer that hostler creates.
const CONSUMER: &str = "hostler";

/// Bodies have at least this size in bytes.
const BODY_BYTES: usize = 256;

/// A program that consumes the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worker {
    /// async-nats only, with acks that the server does not confirm.
    BareAck,
    /// async-nats only, with acks that the server confirms, as hostler has them.
    BareConfirmed,
    /// hostler with a component without WASI, and a fresh instance for each message.
    Plain,
    /// hostler with a component, and a fresh instance for each message.
    Component,
    /// hostler with a preview-1 command, and a fresh instance for each message.
    Preview1,
    /// nats-py in a loop.
    NatsPy,
}

use Worker::{BareAck, BareConfirmed, Component, NatsPy, Plain, Preview1};

impl contest::Worker for Worker {
    const ALL: &'static [Self] = &[BareAck, BareConfirmed, Plain, Component, Preview1, NatsPy];

    const BACKLOG: u32 = 600_000;

    // What hostler keeps to, with room for the noise of a busy machine. The sandbox and the log line of a message alone cost more than the
    // whole loop.
    const TARGETS: &'static [(Self, Self, f64, bool)] =
        &[(Component, BareAck, 10.0, true), (Component, BareConfirmed, 6.0, true), (NatsPy, Component, 3.0, false)];

    fn name(self) -> &'static str {
        match self {
            BareAck => "bare-ack",
            BareConfirmed => "bare-confirmed",
            Plain => "hostler-plain",
            Component => "hostler-component",
            Preview1 => "hostler-command",
            NatsPy => "nats-py",
        }
    }

    fn title(self) -> &'static str {
        match self {
            BareAck => "bare async-nats loop",
            BareConfirmed => "bare loop, confirmed acks",
            Plain => "hostler, component without WASI",
            Component => "hostler, component",
            Preview1 => "hostler, command",
            NatsPy => "nats-py",
        }
    }
}

/// The server.
struct Server {
    places: Places,
    /// The bare loop.
    bare: PathBuf,
    url: String,
    jetstream: RefCell<JetStream>,
}

/// Runs the comparison. Returns true if all measurements succeeded and, if requested, hostler met its targets.
pub async fn run(arguments: &Arguments) -> Result<bool> {
    let plan = Plan::of(arguments)?;
    let url = crate::needed(arguments, "nats")?;
    let server = Server {
        places: Places::of(arguments)?,
        bare: fs::canonicalize(crate::needed(arguments, "bare-nats")?)?,
        jetstream: RefCell::new(JetStream::connect(&url)?),
        url,
    };
    let mut machine = Machine::look(&Places { peers: None, ..server.places.clone() })?;
    machine.add([("NATS", arguments.text("server").unwrap_or_default())]);
    if plan.has(NatsPy) {
        machine.add([("nats-py", machine::distribution(&server.places, "nats", "nats-py")?)]);
    }
    let (text, held) = contest::run(&plan, &server, &machine).await?;
    if let Some(docs) = arguments.text("docs") {
        report::put(Path::new(&docs), "nats", &text)?;
    }
    Ok(held)
}

impl Server {
    /// Returns the server's description of the consumer.
    fn consumer(&self) -> Result<serde_json::Value> {
        self.jetstream.borrow_mut().ask(&format!("$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}"), "")
    }

    /// Creates the stream and its consumer, as hostler creates them. Without the messages of an earlier contender, nothing of its comes
    /// again.
    fn provision(&self) -> Result<()> {
        let known = self.jetstream.borrow_mut().ask("$JS.API.STREAM.NAMES", "")?;
        if known["streams"].as_array().is_some_and(|names| names.iter().any(|name| name == STREAM)) {
            self.jetstream.borrow_mut().ask(&format!("$JS.API.STREAM.DELETE.{STREAM}"), "")?;
        }
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(&self.places.hostler);
        command.args(["provision", "--config"]).arg(self.config(folder.path(), "plain", 1)?).stdout(Stdio::null());
        alone(&mut command, folder.path());
        let status = command.status()?;
        if status.success() { Ok(()) } else { Err(format!("hostler provision: {status}").into()) }
    }

    /// Writes a config for hostler with its defaults, and returns its path.
    fn config(&self, folder: &Path, handler: &str, slots: usize) -> Result<PathBuf> {
        let (config, health) = (folder.join("hostler.toml"), folder.join("health.json"));
        let (url, handler) = (&self.url, self.places.handlers.join(handler).with_extension("cwasm"));
        let text = format!(
            "[host]\nhealth_file = {health:?}\n[queue]\ndriver = \"nats\"\n[queue.nats]\nurl = {url:?}\n\
             [consumers.bench]\nchannel = {STREAM:?}\nhandler = {handler:?}\nconcurrency = {slots}\n"
        );
        fs::write(&config, text)?;
        Ok(config)
    }

    fn hostler(&self, handler: &str, slots: usize, folder: &Path) -> Result<Command> {
        let mut command = Command::new(&self.places.hostler);
        command.args(["run", "--config"]).arg(self.config(folder, handler, slots)?);
        Ok(command)
    }

    fn bare(&self, slots: usize, acks: &str) -> Command {
        let mut command = Command::new(&self.bare);
        command.args([&self.url, STREAM, CONSUMER, &slots.to_string(), acks]);
        command
    }
}

impl contest::Server for Server {
    type Worker = Worker;

    async fn fill(&self, _: Worker, backlog: u32) -> Result<()> {
        self.provision()?;
        let bodies = (0..backlog).map(|number| messages::body(number, BODY_BYTES));
        self.jetstream.borrow_mut().publish(STREAM, bodies)
    }

    /// Counts the messages that are not acked.
    async fn waiting(&self, _: Worker) -> Result<u32> {
        let consumer = self.consumer()?;
        let count = |key: &str| consumer[key].as_u64().ok_or_else(|| format!("a consumer without {key}"));
        Ok(u32::try_from(count("num_pending")? + count("num_ack_pending")?)?)
    }

    /// Returns false: the next contender has a stream of its own.
    async fn is_consumed(&self, _: Worker) -> Result<bool> {
        Ok(false)
    }

    fn command(&self, worker: Worker, slots: usize, folder: &Path) -> Result<Command> {
        Ok(match worker {
            BareAck => self.bare(slots, "ack"),
            BareConfirmed => self.bare(slots, "confirmed"),
            Plain => self.hostler("plain", slots, folder)?,
            Component => self.hostler("component", slots, folder)?,
            Preview1 => self.hostler("command", slots, folder)?,
            NatsPy => {
                let mut command = Command::new(self.places.peer("nats/bin/python")?);
                command.arg(self.places.package.join("peers/jetstream.py"));
                command.env("BENCH_URL", &self.url).env("BENCH_CONCURRENCY", slots.to_string());
                command.env("BENCH_STREAM", STREAM).env("BENCH_CONSUMER", CONSUMER);
                command
            }
        })
    }
}
