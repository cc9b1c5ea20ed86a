//! A load for the job service, which costs little CPU beside it. `benches/jobs.sh` starts the service and runs it.
//!
//! `jobs_load SCENARIO` prints one line of figures, and exits with 1 if they miss the scenario's bar. Variables: see `settings.rs` and
//! the scenarios.

mod calls;
mod cpu;
mod database;
mod failure;
mod figures;
mod flow;
mod http;
mod settings;
mod steady;
mod whole;

use std::process::ExitCode;

use failure::Failure;
use figures::Outcome;
use settings::Settings;

/// Runs the scenario that the command names.
fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match run(&name) {
        Ok(misses) if misses.is_empty() => ExitCode::SUCCESS,
        Ok(misses) => {
            eprintln!("{name} misses its bar: {}", misses.join("; "));
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("{name} failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a scenario. Returns the bars that it misses.
fn run(name: &str) -> Result<Vec<String>, Failure> {
    let scenario: fn(&Settings) -> Result<Outcome, Failure> = match name {
        "batched" => whole::batched,
        "single" => whole::single,
        "million" => whole::million,
        "keys" => whole::keys,
        "pinned" => steady::pinned,
        "bloat" => steady::bloat,
        "rate" => steady::daily,
        "contend" => return whole::contend(&Settings::read()?).map(|()| Vec::new()),
        _ => return Err(Failure::Usage(format!("no scenario has the name {name:?}"))),
    };
    let settings = Settings::read()?;
    let before = settings.processes.times();
    let outcome = scenario(&settings)?;
    let cpu = settings.processes.times().since(&before);
    println!("{name:<8} {}. {cpu}", outcome.line);
    Ok(if settings.quick { Vec::new() } else { outcome.misses })
}
