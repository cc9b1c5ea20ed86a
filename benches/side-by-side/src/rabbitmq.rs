//! The comparison on RabbitMQ. All contenders consume from quorum queues of one server, each with the same backlog.
//!
//! The queue is filled up before each measurement, and only the contender runs during it. The server counts the messages. What a
//! contender has not acked is the same at the start and the end of a measurement: its prefetch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lapin::Connection;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::arguments::Arguments;
use crate::contenders::{Places, alone};
use crate::machine::{self, Machine};
use crate::messages::Form;
use crate::pair::Owned;
use crate::targets::Target;
use crate::{Result, amqp, process, report};

/// Maximum time for a contender to start, and for the server to notice its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between two queries to the server.
const AGAIN: Duration = Duration::from_millis(50);

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

impl Worker {
    const ALL: [Self; 5] = [BareMultiple, BareEach, Plain, Component, Celery];

    /// Returns the name on the command line.
    fn name(self) -> &'static str {
        match self {
            BareMultiple => "bare-multiple",
            BareEach => "bare-each",
            Plain => "hostler-plain",
            Component => "hostler-component",
            Celery => "celery",
        }
    }

    /// Returns the description for reports.
    fn title(self) -> &'static str {
        match self {
            BareMultiple => "bare lapin loop, multiple acks",
            BareEach => "bare lapin loop, single acks",
            Plain => "hostler, component without WASI",
            Component => "hostler, component",
            Celery => "Celery",
        }
    }

    fn form(self) -> Form {
        if self == Celery { Form::Celery } else { Form::Plain }
    }

    /// Returns the name of its queue.
    fn queue(self) -> &'static str {
        if self == Celery { "celery" } else { "bench" }
    }
}

/// Parameters of the comparison.
struct Setup {
    places: Places,
    url: String,
    connection: Connection,
    backlog: u32,
    warm_up: Duration,
    window: Duration,
    loud: bool,
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug)]
struct Cost {
    worker: Worker,
    slots: usize,
    /// Number of messages settled per second.
    rate: f64,
    /// CPU time per message in microseconds.
    cpu_us: f64,
    peak_bytes: u64,
}

/// Runs the comparison. Returns true if all measurements succeeded and, if requested, hostler met its targets.
pub async fn run(arguments: &Arguments) -> Result<bool> {
    let quick = arguments.has("quick");
    let seconds = |key: &str, full: f64, quickly: f64| -> Result<Duration> {
        Ok(Duration::from_secs_f64(arguments.number(key)?.unwrap_or(if quick { quickly } else { full })))
    };
    let url = crate::needed(arguments, "rabbitmq")?;
    let setup = Setup {
        places: Places::of(arguments)?,
        connection: amqp::connect(&url).await?,
        url,
        backlog: arguments.number("backlog")?.unwrap_or(if quick { 50_000 } else { 200_000 }),
        warm_up: seconds("warm-up", 1.0, 0.2)?,
        window: seconds("seconds", 2.0, 0.5)?,
        loud: arguments.has("loud"),
    };
    let rounds: usize = arguments.number("rounds")?.unwrap_or(if quick { 1 } else { 5 });
    let workers = match arguments.list("only") {
        None => Worker::ALL.to_vec(),
        Some(names) => names.iter().map(|name| named(name)).collect::<Result<_>>()?,
    };
    let slots = arguments.list("concurrency").unwrap_or_else(|| vec!["10".to_owned(), "64".to_owned()]);
    let slots = slots.iter().map(|slots| Ok(slots.parse()?)).collect::<Result<Vec<usize>>>()?;
    let machine = look(&setup, arguments.text("server").unwrap_or_default(), workers.contains(&Celery))?;

    provision(&setup)?;
    let wanted: Vec<_> = slots.iter().flat_map(|slots| workers.iter().map(|worker| (*worker, *slots))).collect();
    let mut measured = vec![Vec::new(); wanted.len()];
    // Measures all in each round, because the speed of the machine varies over time.
    for round in 1..=rounds {
        for ((worker, slots), costs) in wanted.iter().zip(&mut measured) {
            let cost = measure(&setup, *worker, *slots).await;
            let cost = cost.map_err(|error| format!("{} with {slots} slots: {error}", worker.name()))?;
            println!("{round}/{rounds}  {}", row(&cost));
            costs.push(cost);
        }
    }
    let typical: Vec<_> = measured.into_iter().filter_map(middle).collect();
    let targets = check(&typical);
    let text = markdown(&typical, &machine, &targets, rounds);
    println!("\n{text}");
    if let Some(docs) = arguments.text("docs") {
        report::put(Path::new(&docs), "rabbitmq", &text)?;
    }
    Ok(!arguments.has("check") || targets.iter().all(|target| target.held))
}

fn named(name: &str) -> Result<Worker> {
    let names = || Worker::ALL.map(Worker::name).join(", ");
    let found = Worker::ALL.into_iter().find(|worker| worker.name() == name);
    found.ok_or_else(|| format!("--only {name}: {}", names()).into())
}

fn look(setup: &Setup, server: String, with_celery: bool) -> Result<Machine> {
    let mut machine = Machine::look(&Places { peers: None, ..setup.places.clone() })?;
    machine.add([("RabbitMQ", server)]);
    if with_celery {
        let package = |name| machine::package(&setup.places, "celery", name);
        machine.add([("Celery", package("celery")?), ("kombu", package("kombu")?), ("py-amqp", package("amqp")?)]);
    }
    Ok(machine)
}

/// Creates both queues, in the form in which hostler creates them.
fn provision(setup: &Setup) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for worker in [Component, Celery] {
        let config = config(setup, folder.path(), worker, 1)?;
        let mut command = Command::new(&setup.places.hostler);
        command.args(["provision", "--config"]).arg(config).stdout(Stdio::null());
        alone(&mut command, folder.path());
        let status = command.status()?;
        if !status.success() {
            return Err(format!("hostler provision: {status}").into());
        }
    }
    Ok(())
}

/// Measures one contender.
async fn measure(setup: &Setup, worker: Worker, slots: usize) -> Result<Cost> {
    let count = || amqp::count(&setup.connection, worker.queue());
    let (waiting, _) = count().await?;
    let missing = setup.backlog.saturating_sub(waiting);
    amqp::publish(&setup.connection, worker.queue(), worker.form(), 0..missing).await?;

    let folder = tempfile::tempdir()?;
    let mut process = start(setup, worker, slots, &folder)?;
    let ahead = u32::try_from(2 * slots)?;
    until(&mut process, "consume", async || Ok(count().await?.0 + ahead < setup.backlog)).await?;
    sleep(setup.warm_up).await;
    let (before, from) = (sample(setup, worker, &process).await?, Instant::now());
    sleep(setup.window).await;
    let (after, took) = (sample(setup, worker, &process).await?, from.elapsed().as_secs_f64());
    if after.0 < ahead {
        return Err("the queue ran empty: choose a larger --backlog".into());
    }
    // It took as many messages as it may have in hand, at least.
    let messages = f64::from(before.0) - f64::from(after.0);
    if messages < f64::from(ahead) {
        return Err(format!("only {messages} messages were processed: choose more --seconds").into());
    }
    let peak_bytes = process::peak(process.pid()?);
    drop(process);
    let deadline = Instant::now() + PATIENCE;
    while count().await?.1 > 0 {
        if Instant::now() > deadline {
            return Err("the server still counts its consumer".into());
        }
        sleep(AGAIN).await;
    }
    let cpu_us = (after.1 - before.1).as_secs_f64() * 1e6 / messages;
    Ok(Cost { worker, slots, rate: messages / took, cpu_us, peak_bytes })
}

/// Returns the number of ready messages, and the CPU time of the contender up to now.
async fn sample(setup: &Setup, worker: Worker, process: &Owned) -> Result<(u32, Duration)> {
    let (waiting, _) = amqp::count(&setup.connection, worker.queue()).await?;
    Ok((waiting, process::cpu(process.pid()?)?))
}

async fn until(process: &mut Owned, what: &str, arrived: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !arrived().await? {
        process.check()?;
        if Instant::now() > deadline {
            return Err(format!("it did not {what}").into());
        }
        sleep(AGAIN).await;
    }
    Ok(())
}

/// Starts a contender. `folder`: its own folder.
fn start(setup: &Setup, worker: Worker, slots: usize, folder: &TempDir) -> Result<Owned> {
    let mut command = match worker {
        BareMultiple | BareEach => {
            let mut command = Command::new(&setup.places.bare);
            command.args(["bare-amqp", "--url", &setup.url, "--queue", worker.queue()]);
            command.args(["--prefetch", &slots.to_string()]);
            if worker == BareMultiple {
                command.arg("--multiple");
            }
            command
        }
        Plain | Component => {
            let mut command = Command::new(&setup.places.hostler);
            command.args(["run", "--config"]).arg(config(setup, folder.path(), worker, slots)?);
            command
        }
        Celery => {
            let mut command = Command::new(setup.places.peer("celery/bin/celery")?);
            command.arg("--workdir").arg(setup.places.package.join("peers")).args(["-A", "rabbit", "worker"]);
            command.args(["--without-gossip", "--without-mingle", "--without-heartbeat"]);
            command.env("C_FORCE_ROOT", "1").env("BENCH_URL", &setup.url).env("BENCH_CONCURRENCY", slots.to_string());
            command
        }
    };
    alone(&mut command, folder.path());
    if !setup.loud {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    Ok(Owned::new(command.spawn()?))
}

/// Writes a config for hostler with its defaults, and returns its path.
fn config(setup: &Setup, folder: &Path, worker: Worker, slots: usize) -> Result<PathBuf> {
    let (config, health) = (folder.join("hostler.toml"), folder.join("health.json"));
    let handler = setup.places.handlers.join(if worker == Plain { "plain.cwasm" } else { "component.cwasm" });
    let (url, queue) = (&setup.url, worker.queue());
    let text = format!(
        "[host]\nhealth_file = {health:?}\n[queue]\ndriver = \"rabbitmq\"\n[queue.rabbitmq]\nurl = {url:?}\n\
         [consumers.bench]\nchannel = {queue:?}\nhandler = {handler:?}\nconcurrency = {slots}\n"
    );
    fs::write(&config, text)?;
    Ok(config)
}

/// Returns the measurement with the median CPU time.
fn middle(mut costs: Vec<Cost>) -> Option<Cost> {
    costs.sort_by(|one, other| one.cpu_us.total_cmp(&other.cpu_us));
    costs.get(costs.len() / 2).copied()
}

/// Checks the targets for which both sides were measured.
fn check(measured: &[Cost]) -> Vec<Target> {
    // Contenders whose ratio is limited, and the direction: true for a maximum. The sandbox and the log line of a message alone cost
    // more than the whole loop.
    const TARGETS: [(Worker, Worker, f64, bool); 3] =
        [(Component, BareMultiple, 4.0, true), (Component, BareEach, 4.0, true), (Celery, Component, 10.0, false)];
    let mut targets = Vec::new();
    for ours in measured.iter().filter(|cost| cost.worker == Component) {
        let of = |worker| measured.iter().find(|cost| cost.worker == worker && cost.slots == ours.slots);
        for (above, under, limit, below) in TARGETS {
            let (Some(one), Some(other)) = (of(above), of(under)) else { continue };
            let name = format!("{} / {}, {} at a time", above.title(), under.title(), ours.slots);
            targets.push(Target::new(name, one.cpu_us / other.cpu_us, limit, below));
        }
    }
    targets
}

const COLUMNS: [&str; 5] = ["contender", "at a time", "messages/s", "CPU µs/message", "peak RSS MiB"];
const WIDTHS: [usize; 5] = [31, 9, 11, 15, 13];

fn row(cost: &Cost) -> String {
    let cells = [
        cost.worker.title().to_owned(),
        cost.slots.to_string(),
        format!("{:.0}", cost.rate),
        format!("{:.1}", cost.cpu_us),
        format!("{:.0}", cost.peak_bytes as f64 / f64::from(1 << 20)),
    ];
    report::line(&cells, &WIDTHS)
}

fn markdown(measured: &[Cost], machine: &Machine, targets: &[Target], rounds: usize) -> String {
    let rows: Vec<_> = measured.iter().map(row).collect();
    let lines: Vec<_> = targets.iter().map(ToString::to_string).collect();
    format!(
        "{}\n\nThe rounds with the median CPU time, of {rounds}:\n\n{}\n{}\n\n```text\n{}\n```\n",
        machine.text(),
        report::head(&COLUMNS, &WIDTHS),
        rows.join("\n"),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(worker: Worker, slots: usize, cpu_us: f64) -> Cost {
        Cost { worker, slots, rate: 1.0, cpu_us, peak_bytes: 0 }
    }

    #[test]
    fn ratios_are_those_of_the_same_number_of_slots() {
        let measured = [(BareEach, 10, 30.0), (Component, 10, 110.0), (Component, 64, 20.0), (Celery, 64, 190.0)]
            .map(|(worker, slots, cpu_us)| cost(worker, slots, cpu_us));
        let held: Vec<_> = check(&measured).iter().map(|target| target.held).collect();
        assert_eq!(held, [true, false], "3.7 times the loop with 10 slots, 9.5 times less than Celery with 64");
    }

    #[test]
    fn the_median_counts() {
        let middle = middle([3.0, 1.0, 2.0].map(|cpu_us| cost(Celery, 1, cpu_us)).into()).unwrap();
        assert_eq!(middle.cpu_us, 2.0);
    }
}
