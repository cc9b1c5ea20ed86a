//! A contest of programs that consume queues of a real server, each with the same backlog.
//!
//! The queue is filled up before each measurement, and only the contender runs during it. The server counts the messages. What a
//! contender has not acked is about the same at the start and the end of a measurement.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::arguments::Arguments;
use crate::contenders::alone;
use crate::machine::Machine;
use crate::pair::Owned;
use crate::targets::Target;
use crate::{Failure, Result, process, report};

/// Maximum time for a contender to start, and for the server to notice its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between two queries to the server.
const AGAIN: Duration = Duration::from_millis(50);

/// A program that consumes a queue.
pub trait Worker: Copy + PartialEq + 'static {
    /// All programs.
    const ALL: &'static [Self];

    /// Number of messages in the queue before a measurement: more than the fastest consumes. A quarter of it with `--quick`.
    const BACKLOG: u32;

    /// Ratios of CPU time with a limit: of which to which, the limit, and true if it is a maximum.
    const TARGETS: &'static [(Self, Self, f64, bool)];

    /// Returns the name on the command line.
    fn name(self) -> &'static str;

    /// Returns the description for reports.
    fn title(self) -> &'static str;
}

/// A server with the queues of the contenders.
pub trait Server {
    /// The contenders.
    type Worker: Worker;

    /// Fills the queue of a contender up to this number of messages.
    async fn fill(&self, worker: Self::Worker, backlog: u32) -> Result<()>;

    /// Returns the number of messages in the queue of a contender.
    async fn waiting(&self, worker: Self::Worker) -> Result<u32>;

    /// Returns true if the server still counts a consumer of the queue.
    async fn is_consumed(&self, worker: Self::Worker) -> Result<bool>;

    /// Creates the command that starts a contender. `folder`: its own folder.
    fn command(&self, worker: Self::Worker, slots: usize, folder: &Path) -> Result<Command>;
}

/// Parameters of a contest.
pub struct Plan<W> {
    workers: Vec<W>,
    slots: Vec<usize>,
    rounds: usize,
    backlog: u32,
    warm_up: Duration,
    window: Duration,
    loud: bool,
    check: bool,
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Cost<W> {
    worker: W,
    slots: usize,
    /// Number of messages settled per second.
    rate: f64,
    /// CPU time per message in microseconds.
    cpu_us: f64,
    peak_bytes: u64,
}

impl<W: Worker> Plan<W> {
    /// Reads the arguments.
    pub fn of(arguments: &Arguments) -> Result<Self> {
        let quick = arguments.has("quick");
        let seconds = |key: &str, full: f64, quickly: f64| -> Result<Duration> {
            Ok(Duration::from_secs_f64(arguments.number(key)?.unwrap_or(if quick { quickly } else { full })))
        };
        let slots = arguments.list("concurrency").unwrap_or_else(|| vec!["10".to_owned(), "64".to_owned()]);
        Ok(Self {
            workers: match arguments.list("only") {
                None => W::ALL.to_vec(),
                Some(names) => names.iter().map(|name| named(name)).collect::<Result<_>>()?,
            },
            slots: slots.iter().map(|slots| Ok(slots.parse()?)).collect::<Result<_>>()?,
            rounds: arguments.number("rounds")?.unwrap_or(if quick { 1 } else { 5 }),
            backlog: arguments.number("backlog")?.unwrap_or(if quick { W::BACKLOG / 4 } else { W::BACKLOG }),
            warm_up: seconds("warm-up", 1.0, 0.2)?,
            window: seconds("seconds", 2.0, 0.5)?,
            loud: arguments.has("loud"),
            check: arguments.has("check"),
        })
    }

    /// Returns true if the contender takes part.
    pub fn has(&self, worker: W) -> bool {
        self.workers.contains(&worker)
    }
}

fn named<W: Worker>(name: &str) -> Result<W> {
    let names = || W::ALL.iter().map(|worker| worker.name()).collect::<Vec<_>>().join(", ");
    let found = W::ALL.iter().find(|worker| worker.name() == name);
    found.copied().ok_or_else(|| format!("--only {name}: {}", names()).into())
}

/// Runs a contest. Returns its report, and true if all measurements succeeded and, if requested, hostler met its targets.
pub async fn run<S: Server>(plan: &Plan<S::Worker>, server: &S, machine: &Machine) -> Result<(String, bool)> {
    let pairs = |slots: &usize| plan.workers.iter().map(|worker| (*worker, *slots)).collect::<Vec<_>>();
    let wanted: Vec<_> = plan.slots.iter().flat_map(pairs).collect();
    let mut measured = vec![Vec::new(); wanted.len()];
    // Measures all in each round, because the speed of the machine varies over time.
    for round in 1..=plan.rounds {
        for ((worker, slots), costs) in wanted.iter().zip(&mut measured) {
            let cost = measure(plan, server, *worker, *slots).await;
            let cost = cost.map_err(|error| format!("{} with {slots} slots: {error}", worker.name()))?;
            println!("{round}/{}  {}", plan.rounds, row(&cost));
            costs.push(cost);
        }
    }
    let targets = targets(&measured);
    let typical: Vec<_> = measured.into_iter().filter_map(middle).collect();
    let text = markdown(&typical, machine, &targets, plan.rounds);
    println!("\n{text}");
    Ok((text, !plan.check || targets.iter().all(|target| target.held)))
}

/// Measures one contender.
async fn measure<S: Server>(
    plan: &Plan<S::Worker>,
    server: &S,
    worker: S::Worker,
    slots: usize,
) -> Result<Cost<S::Worker>> {
    server.fill(worker, plan.backlog).await?;
    let folder = tempfile::tempdir()?;
    let mut process = start(plan, server.command(worker, slots, folder.path())?, &folder)?;
    let ahead = u32::try_from(2 * slots)?;
    let consumes = async || Ok(server.waiting(worker).await? + ahead < plan.backlog);
    until(&mut process, "consume", consumes).await?;
    sleep(plan.warm_up).await;
    let sample = async || Ok::<_, Failure>((server.waiting(worker).await?, process::cpu(process.pid()?)?));
    let (before, from) = (sample().await?, Instant::now());
    sleep(plan.window).await;
    let (after, took) = (sample().await?, from.elapsed().as_secs_f64());
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
    while server.is_consumed(worker).await? {
        if Instant::now() > deadline {
            return Err("the server still counts its consumer".into());
        }
        sleep(AGAIN).await;
    }
    let cpu_us = (after.1 - before.1).as_secs_f64() * 1e6 / messages;
    Ok(Cost { worker, slots, rate: messages / took, cpu_us, peak_bytes })
}

fn start<W>(plan: &Plan<W>, mut command: Command, folder: &TempDir) -> Result<Owned> {
    alone(&mut command, folder.path());
    if !plan.loud {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    Ok(Owned::new(command.spawn()?))
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

/// Returns the measurement with the median CPU time.
fn middle<W: Copy>(mut costs: Vec<Cost<W>>) -> Option<Cost<W>> {
    costs.sort_by(|one, other| one.cpu_us.total_cmp(&other.cpu_us));
    costs.get(costs.len() / 2).copied()
}

/// Checks the targets for which both sides were measured: the median of the ratios of each round. `measured`: of each contender and
/// number of slots, the rounds.
fn targets<W: Worker>(measured: &[Vec<Cost<W>>]) -> Vec<Target> {
    let of = |worker, slots| {
        let is = |cost: &&Cost<W>| cost.worker == worker && cost.slots == slots;
        measured.iter().find(|costs| costs.first().filter(is).is_some())
    };
    let mut targets = Vec::new();
    for slots in slots(measured) {
        for (above, under, limit, below) in W::TARGETS {
            let (Some(ones), Some(others)) = (of(*above, slots), of(*under, slots)) else { continue };
            let mut ratios: Vec<_> = ones.iter().zip(others).map(|(one, other)| one.cpu_us / other.cpu_us).collect();
            ratios.sort_by(f64::total_cmp);
            let Some(ratio) = ratios.get(ratios.len() / 2) else { continue };
            let name = format!("{} / {}, {slots} at a time", above.title(), under.title());
            targets.push(Target::new(name, *ratio, *limit, *below));
        }
    }
    targets
}

/// Returns the numbers of slots, each once, in their order.
fn slots<W>(measured: &[Vec<Cost<W>>]) -> Vec<usize> {
    let mut slots: Vec<_> = measured.iter().filter_map(|costs| Some(costs.first()?.slots)).collect();
    slots.dedup();
    slots
}

const COLUMNS: [&str; 5] = ["contender", "at a time", "messages/s", "CPU µs/message", "peak RSS MiB"];
const WIDTHS: [usize; 5] = [31, 9, 11, 15, 13];

fn row<W: Worker>(cost: &Cost<W>) -> String {
    let cells = [
        cost.worker.title().to_owned(),
        cost.slots.to_string(),
        format!("{:.0}", cost.rate),
        format!("{:.1}", cost.cpu_us),
        format!("{:.0}", cost.peak_bytes as f64 / f64::from(1 << 20)),
    ];
    report::line(&cells, &WIDTHS)
}

fn markdown<W: Worker>(measured: &[Cost<W>], machine: &Machine, targets: &[Target], rounds: usize) -> String {
    let rows: Vec<_> = measured.iter().map(row).collect();
    let lines: Vec<_> = targets.iter().map(ToString::to_string).collect();
    format!(
        "{}\n\nThe rounds with the median CPU time, of {rounds}:\n\n{}\n{}\n\nThe medians of the rounds' ratios:\n\n```text\n{}\n```\n",
        machine.text(),
        report::head(&COLUMNS, &WIDTHS),
        rows.join("\n"),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Runner {
        Ours,
        Loop,
        Peer,
    }

    use Runner::{Loop, Ours, Peer};

    impl Worker for Runner {
        const ALL: &'static [Self] = &[Ours, Loop, Peer];
        const BACKLOG: u32 = 1;
        const TARGETS: &'static [(Self, Self, f64, bool)] = &[(Ours, Loop, 4.0, true), (Peer, Ours, 10.0, false)];

        fn name(self) -> &'static str {
            if self == Ours { "ours" } else { "other" }
        }

        fn title(self) -> &'static str {
            self.name()
        }
    }

    fn costs(worker: Runner, slots: usize, cpu_us: &[f64]) -> Vec<Cost<Runner>> {
        cpu_us.iter().map(|&cpu_us| Cost { worker, slots, rate: 1.0, cpu_us, peak_bytes: 0 }).collect()
    }

    #[test]
    fn ratios_are_those_of_the_same_number_of_slots() {
        let measured = [(Loop, 10, 30.0), (Ours, 10, 110.0), (Ours, 64, 20.0), (Peer, 64, 190.0)]
            .map(|(worker, slots, cpu_us)| costs(worker, slots, &[cpu_us]));
        let held: Vec<_> = targets(&measured).iter().map(|target| target.held).collect();
        assert_eq!(held, [true, false], "3.7 times the loop with 10 slots, 9.5 times less than the peer with 64");
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        // The machine is slower in each round, and not to the same degree for both.
        let measured = [costs(Ours, 10, &[30.0, 300.0, 100.0]), costs(Loop, 10, &[10.0, 100.0, 20.0])];
        let held: Vec<_> = targets(&measured).iter().map(|target| target.held).collect();
        assert_eq!(held, [true], "3.0 times the loop, though the medians are 5.0 times");
    }

    #[test]
    fn the_median_counts() {
        assert_eq!(middle(costs(Peer, 1, &[3.0, 1.0, 2.0])).unwrap().cpu_us, 2.0);
    }

    #[test]
    fn only_known_contenders_are_named() {
        assert_eq!(named::<Runner>("ours").unwrap(), Ours);
        assert_eq!(named::<Runner>("theirs").unwrap_err().to_string(), "--only theirs: ours, other, other");
    }
}
