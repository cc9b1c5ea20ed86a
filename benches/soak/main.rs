//! Soak test of `hostler run`: mixed handlers, a steady load with bursts, and faults and restarts at random times determined by a
//! seed.
//!
//! `cargo bench --bench soak -- --minutes 60 --queue both --seed 1 --out target/soak` runs one host per queue driver at the same
//! time. Then the test accounts for every message, compares memory and descriptors, and writes `report.md`, `soak.svg` and
//! `samples.csv`. The exit code is 0 only if all requirements are met. SQS needs the server that `tests/servers.sh` installs as
//! `node` (fauxqs).

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
// `cfg(test)` marks the module as test code for clippy.
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

/// Any error of the soak itself, as opposed to a failed requirement.
type Fault = Box<dyn Error + Send + Sync>;
type Result<T> = std::result::Result<T, Fault>;

/// Maximum time for the queues to become empty after the last send.
const EMPTYING: Duration = Duration::from_secs(180);

/// Command-line options.
struct Options {
    minutes: f64,
    seed: u64,
    drivers: Vec<Driver>,
    out: PathBuf,
}

/// Results of a finished run of one driver.
struct Finished {
    world: World,
    account: Account,
    /// Failed requirements.
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

/// Runs the soak. Returns true if all requirements were met.
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

/// Runs one driver, from its first message to the check of the requirements. An error that aborts the run counts as a failed
/// requirement, so that a report is written.
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

/// Runs load, faults and samples concurrently. Then waits until the remaining messages are done, and accounts for all messages.
fn course(world: &World, seed: u64) -> Result<Account> {
    world.start()?;
    let sampled = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(|| world.noting(load::run(world, seed)));
        let faults = scope.spawn(|| world.noting(faults::run(world, seed)));
        let samples = scope.spawn(|| world.noting(sample::run(world, &sampled)));
        let over = load.join().unwrap_or_else(|_| Err("the load panicked".into()));
        let faulted = faults.join().unwrap_or_else(|_| Err("the faults panicked".into()));
        // After the load has ended, the host processes the remaining messages. Sampling continues meanwhile.
        let emptied = over.and(faulted).and_then(|()| world.wait_empty(EMPTYING));
        sampled.store(true, Ordering::Relaxed);
        // The error of sampling comes first. A host that ended by itself causes the other errors.
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
            // Cargo passes this argument to every benchmark.
            "--bench" => {}
            other => return Err(format!("{other}: --minutes N, --queue Q, --seed S or --out DIR").into()),
        }
    }
    match options.minutes {
        1.0.. => Ok(options),
        _ => Err("--minutes: 1 at least".into()),
    }
}
