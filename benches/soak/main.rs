//! A soak of `hostler run`: mixed handlers, a steady load with bursts, faults and restarts at seeded random times.
//!
//! `cargo bench --bench soak -- --minutes 60 --queue both --seed 1 --out target/soak` runs one host per queue driver at
//! the same time, then accounts for every message, compares memory and descriptors, and writes `report.md`, `soak.svg`
//! and `samples.csv`. Exit code 0 only if everything held. For SQS it needs the server that `tests/servers.sh` installs
//! as `node` (fauxqs).

mod account;
mod checks;
mod clock;
mod faults;
mod host;
mod load;
mod plot;
mod report;
mod sample;
mod server;
// `cfg(test)` tells clippy that it is test code.
#[cfg(test)]
mod support;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use account::Account;
use clock::Clock;
use world::{Driver, World};

/// Whatever goes wrong with the soak itself, other than what it checks.
type Fault = Box<dyn Error + Send + Sync>;
type Result<T> = std::result::Result<T, Fault>;

/// How long the queues may take to become empty once nothing is sent any more.
const EMPTYING: Duration = Duration::from_secs(180);

/// What the command line asks for.
struct Options {
    minutes: f64,
    seed: u64,
    drivers: Vec<Driver>,
    out: PathBuf,
}

/// All that is known of one driver's run when it is over.
struct Finished {
    world: World,
    account: Account,
    /// What did not hold.
    failures: Vec<String>,
}

fn main() -> ExitCode {
    match soak() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything held.
fn soak() -> Result<bool> {
    let options = options(std::env::args().skip(1))?;
    let clock = Clock::start(Duration::from_secs_f64(options.minutes * 60.0));
    let drivers = options.drivers.iter().enumerate();
    let finished = thread::scope(|scope| {
        let runs: Vec<_> =
            drivers.map(|(at, driver)| scope.spawn(move || run(*driver, clock, options.seed + at as u64))).collect();
        let joined = runs.into_iter().map(|run| run.join().map_err(|_| "a run panicked")?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    report::write(&options, clock, &finished)?;
    for failure in finished.iter().flat_map(|run| run.failures.iter().map(|text| (run.world.driver, text))) {
        eprintln!("soak: {}: {}", failure.0.name(), failure.1);
    }
    println!("{}", options.out.join("report.md").display());
    Ok(finished.iter().all(|run| run.failures.is_empty()))
}

/// One driver, from its first message to what did not hold. What breaks the run off is a failure like any other, so
/// that there is a report.
fn run(driver: Driver, clock: Clock, seed: u64) -> Result<Finished> {
    let world = World::new(driver, clock)?;
    let (account, failures) = match course(&world, seed) {
        Ok(account) => {
            let failures = checks::all(&world, &account);
            (account, failures)
        }
        Err(error) => (Account::default(), vec![format!("broken off: {error}\n{}", world.tail())]),
    };
    Ok(Finished { world, account, failures })
}

/// Load, faults and samples side by side; then what is left is done, and everything is accounted for.
fn course(world: &World, seed: u64) -> Result<Account> {
    world.start()?;
    let sampled = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(|| world.noting(load::run(world, seed)));
        let faults = scope.spawn(|| world.noting(faults::run(world, seed)));
        let samples = scope.spawn(|| world.noting(sample::run(world, &sampled)));
        let over = load.join().unwrap_or_else(|_| Err("the load panicked".into()));
        let faulted = faults.join().unwrap_or_else(|_| Err("the faults panicked".into()));
        // With the load over, the host does what is left; the samples go on meanwhile.
        let emptied = over.and(faulted).and_then(|()| world.wait_empty(EMPTYING));
        sampled.store(true, Ordering::Relaxed);
        // First the samples' fault: that a host ended by itself is why the others have theirs.
        samples.join().unwrap_or_else(|_| Err("the samples panicked".into())).and(emptied)
    })?;
    world.stop()?;
    account::settle(world)
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        minutes: 60.0,
        seed: 1,
        drivers: vec![Driver::Embedded, Driver::Sqs],
        out: PathBuf::from("target/soak"),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match &*arg {
            "--minutes" => options.minutes = value()?.parse()?,
            "--seed" => options.seed = value()?.parse()?,
            "--out" => options.out = value()?.into(),
            "--queue" => {
                options.drivers = match &*value()? {
                    "embedded" => vec![Driver::Embedded],
                    "sqs" => vec![Driver::Sqs],
                    "both" => vec![Driver::Embedded, Driver::Sqs],
                    other => return Err(format!("--queue {other}: embedded, sqs or both").into()),
                };
            }
            // Cargo says it to every bench.
            "--bench" => {}
            other => return Err(format!("{other}: --minutes N, --queue Q, --seed S or --out DIR").into()),
        }
    }
    match options.minutes {
        1.0.. => Ok(options),
        _ => Err("--minutes: 1 at least".into()),
    }
}
