//! The comparison on RabbitMQ. All contenders consume from quorum queues of one server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lapin::Connection;

use crate::arguments::Arguments;
use crate::contenders::{Places, alone};
use crate::contest::{self, Plan};
use crate::machine::{self, Machine};
use crate::messages::Form;
use crate::{Result, amqp, report};

/// A program that consumes a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worker {
    /// lapin only, with one ack for all messages that had arrived.
    BareMultiple,
    /// lapin only, with an ack for each message.
    BareEach,
    /// hostler with a component without WASI, and a fresh instance for each message.
    Plain,
    /// hostler with a component, and a fresh instance for each message.
    Component,
    /// A Celery worker with one process for each CPU.
    Celery,
}

use Worker::{BareEach, BareMultiple, Celery, Component, Plain};

impl contest::Worker for Worker {
    const ALL: &'static [Self] = &[BareMultiple, BareEach, Plain, Component, Celery];

    const BACKLOG: u32 = 200_000;

    // The sandbox and the log line of a message alone cost more than the whole loop.
    const TARGETS: &'static [(Self, Self, f64, bool)] =
        &[(Component, BareMultiple, 4.0, true), (Component, BareEach, 4.0, true), (Celery, Component, 10.0, false)];

    fn name(self) -> &'static str {
        match self {
            BareMultiple => "bare-multiple",
            BareEach => "bare-each",
            Plain => "hostler-plain",
            Component => "hostler-component",
            Celery => "celery",
        }
    }

    fn title(self) -> &'static str {
        match self {
            BareMultiple => "bare lapin loop, multiple acks",
            BareEach => "bare lapin loop, single acks",
            Plain => "hostler, component without WASI",
            Component => "hostler, component",
            Celery => "Celery",
        }
    }
}

impl Worker {
    fn form(self) -> Form {
        if self == Celery { Form::Celery } else { Form::Plain }
    }

    /// Returns the name of its queue.
    fn queue(self) -> &'static str {
        if self == Celery { "celery" } else { "bench" }
    }
}

/// The server.
struct Server {
    places: Places,
    url: String,
    connection: Connection,
}

/// Runs the comparison. Returns true if all measurements succeeded and, if requested, hostler met its targets.
pub async fn run(arguments: &Arguments) -> Result<bool> {
    let plan = Plan::of(arguments)?;
    let url = crate::needed(arguments, "rabbitmq")?;
    let server = Server { places: Places::of(arguments)?, connection: amqp::connect(&url).await?, url };
    let machine = look(&server, arguments.text("server").unwrap_or_default(), plan.has(Celery))?;
    provision(&server)?;
    let (text, held) = contest::run(&plan, &server, &machine).await?;
    if let Some(docs) = arguments.text("docs") {
        report::put(Path::new(&docs), "rabbitmq", &text)?;
    }
    Ok(held)
}

fn look(server: &Server, version: String, with_celery: bool) -> Result<Machine> {
    let mut machine = Machine::look(&Places { peers: None, ..server.places.clone() })?;
    machine.add([("RabbitMQ", version)]);
    if with_celery {
        let package = |name| machine::package(&server.places, "celery", name);
        machine.add([("Celery", package("celery")?), ("kombu", package("kombu")?), ("py-amqp", package("amqp")?)]);
    }
    Ok(machine)
}

/// Creates both queues, in the form in which hostler creates them.
fn provision(server: &Server) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for worker in [Component, Celery] {
        let config = config(server, folder.path(), worker, 1)?;
        let mut command = Command::new(&server.places.hostler);
        command.args(["provision", "--config"]).arg(config).stdout(Stdio::null());
        alone(&mut command, folder.path());
        let status = command.status()?;
        if !status.success() {
            return Err(format!("hostler provision: {status}").into());
        }
    }
    Ok(())
}

impl contest::Server for Server {
    type Worker = Worker;

    async fn fill(&self, worker: Worker, backlog: u32) -> Result<()> {
        let missing = backlog.saturating_sub(self.waiting(worker).await?);
        amqp::publish(&self.connection, worker.queue(), worker.form(), 0..missing).await
    }

    async fn waiting(&self, worker: Worker) -> Result<u32> {
        Ok(amqp::count(&self.connection, worker.queue()).await?.0)
    }

    async fn is_consumed(&self, worker: Worker) -> Result<bool> {
        Ok(amqp::count(&self.connection, worker.queue()).await?.1 > 0)
    }

    fn command(&self, worker: Worker, slots: usize, folder: &Path) -> Result<Command> {
        Ok(match worker {
            BareMultiple | BareEach => {
                let mut command = Command::new(&self.places.bare);
                command.args(["bare-amqp", "--url", &self.url, "--queue", worker.queue()]);
                command.args(["--prefetch", &slots.to_string()]);
                if worker == BareMultiple {
                    command.arg("--multiple");
                }
                command
            }
            Plain | Component => {
                let mut command = Command::new(&self.places.hostler);
                command.args(["run", "--config"]).arg(config(self, folder, worker, slots)?);
                command
            }
            Celery => {
                let mut command = Command::new(self.places.peer("celery/bin/celery")?);
                command.arg("--workdir").arg(self.places.package.join("peers")).args(["-A", "rabbit", "worker"]);
                command.args(["--without-gossip", "--without-mingle", "--without-heartbeat"]);
                command
                    .env("C_FORCE_ROOT", "1")
                    .env("BENCH_URL", &self.url)
                    .env("BENCH_CONCURRENCY", slots.to_string());
                command
            }
        })
    }
}

/// Writes a config for hostler with its defaults, and returns its path.
fn config(server: &Server, folder: &Path, worker: Worker, slots: usize) -> Result<PathBuf> {
    let (config, health) = (folder.join("hostler.toml"), folder.join("health.json"));
    let handler = server.places.handlers.join(if worker == Plain { "plain.cwasm" } else { "component.cwasm" });
    let (url, queue) = (&server.url, worker.queue());
    let text = format!(
        "[host]\nhealth_file = {health:?}\n[queue]\ndriver = \"rabbitmq\"\n[queue.rabbitmq]\nurl = {url:?}\n\
         [consumers.bench]\nchannel = {queue:?}\nhandler = {handler:?}\nconcurrency = {slots}\n"
    );
    fs::write(&config, text)?;
    Ok(config)
}
