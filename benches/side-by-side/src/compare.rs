//! The whole comparison: measures all requested contenders, concurrencies and latencies, one after another.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::arguments::Arguments;
use crate::cell::{Measured, Setting, measure};
use crate::contenders::{Contender, Load, Places};
use crate::machine::Machine;
use crate::targets::{self, Target};
use crate::{plot, report};

/// Runs the comparison. Returns true if all measurements succeeded and, if requested, hostler met its targets.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let places = Places::of(arguments)?;
    let quick = arguments.has("quick");
    let numbers = |key: &str, full: &[u64], quickly: &[u64]| -> Result<Vec<u64>> {
        match arguments.list(key) {
            Some(list) => list.iter().map(|text| Ok(text.parse()?)).collect(),
            None => Ok(if quick { quickly } else { full }.to_vec()),
        }
    };
    let latencies = numbers("latency", &[0, 10], &[0])?;
    let concurrencies = numbers("concurrency", &[1, 10, 64], &[10])?;
    let contenders = match arguments.list("only") {
        None => Contender::ALL.to_vec(),
        Some(names) => names.iter().map(|name| named(name)).collect::<Result<_>>()?,
    };
    let seconds: f64 = arguments.number("seconds")?.unwrap_or(if quick { 0.5 } else { 4.0 });

    let warm_up: f64 = arguments.number("warm-up")?.unwrap_or(if quick { 0.3 } else { 10.0 });
    let rounds = arguments.number("rounds")?.unwrap_or(1);

    // Must come before the benchmark itself loads the machine.
    let machine = Machine::look(&places)?;
    let (mut measured, mut failed) = (Vec::new(), false);
    for latency_ms in latencies {
        for &concurrency in &concurrencies {
            println!("\n{}", report::heading(latency_ms, concurrency));
            println!("{}", report::columns());
            let load = Load { slots: usize::try_from(concurrency)?, consumers: 1, body_bytes: 0 };
            let setting = |contender| Setting {
                contender,
                load,
                latency_ms,
                warm_up_ms: (warm_up * 1000.0) as u64,
                window_ms: (seconds * 1000.0) as u64,
                idle_ms: 0,
                loud: arguments.has("loud"),
            };
            for cells in in_turns(&contenders.iter().map(|&one| setting(one)).collect::<Vec<_>>(), rounds, &places) {
                match cells.and_then(middle) {
                    Ok(cell) => {
                        println!("{}", report::row(&cell));
                        measured.push(cell);
                    }
                    Err(error) => {
                        println!("FAILED  {error}");
                        failed = true;
                    }
                }
            }
        }
    }
    println!("\n{}", machine.text());
    let held = targets::check(&measured);
    held.iter().for_each(|target| println!("{target}"));
    if let Some(folder) = arguments.text("out") {
        write(&PathBuf::from(folder), &measured, &machine, &held)?;
    }
    if let Some(folder) = arguments.text("docs") {
        document(&PathBuf::from(folder), &measured, &machine, &held)?;
    }
    Ok(!failed && (!arguments.has("check") || held.iter().all(|target| target.held)))
}

/// Measures each setting `rounds` times. Each round measures all settings, because the speed of the machine varies over time.
fn in_turns(settings: &[Setting], rounds: usize, places: &Places) -> Vec<Result<Vec<Measured>>> {
    let mut all: Vec<Result<Vec<Measured>>> = settings.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds {
        for (setting, cells) in settings.iter().zip(&mut all) {
            let Ok(so_far) = cells else { continue };
            match measure(*setting, places) {
                Ok(cell) => so_far.push(cell),
                Err(error) => *cells = Err(format!("{}: {error}", setting.contender.name()).into()),
            }
        }
    }
    all
}

/// Returns the measurement with the median CPU time.
pub fn middle(mut cells: Vec<Measured>) -> Result<Measured> {
    cells.sort_by(|one, other| one.cpu_us.total_cmp(&other.cpu_us));
    let middle = cells.len() / 2;
    Ok(cells.drain(middle..).next().ok_or("--rounds: 1 at least")?)
}

/// Returns the contender with this name.
pub fn named(name: &str) -> Result<Contender> {
    let names = || Contender::ALL.map(Contender::name).join(", ");
    let found = Contender::ALL.into_iter().find(|contender| contender.name() == name);
    found.ok_or_else(|| format!("--only {name}: {}", names()).into())
}

fn write(folder: &Path, measured: &[Measured], machine: &Machine, held: &[Target]) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("results.json"), report::json(measured, machine, held)?)?;
    fs::write(folder.join("table.md"), report::markdown(measured, machine, held))?;
    fs::write(folder.join("side-by-side.svg"), plot::plot(measured)?)?;
    println!("\n{}", folder.display());
    Ok(())
}

/// Writes the results into `performance-data.md`, and the plot next to it.
fn document(docs: &Path, measured: &[Measured], machine: &Machine, held: &[Target]) -> Result<()> {
    report::put(docs, "side-by-side", &report::markdown(measured, machine, held))?;
    Ok(fs::write(docs.join("images/side-by-side.svg"), plot::plot(measured)?)?)
}
