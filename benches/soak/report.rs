//! Output files of a run: `report.md`, `samples.csv`, and the plot.

use std::fmt::Write as _;
use std::fs;

use crate::checks::{Life, Medians, lives, unhealthy};
use crate::clock::Clock;
use crate::faults::{Event, Kind};
use crate::plot::plot;
use crate::sample::{Sample, percentile};
use crate::world::lock;
use crate::{Finished, Options, Result};

/// Writes all output files to the requested folder.
pub fn write(options: &Options, clock: Clock, finished: &[Finished]) -> Result<()> {
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("samples.csv"), table(finished)?)?;
    fs::write(options.out.join("soak.svg"), plot(clock, finished)?)?;
    let (minutes, seed) = (options.minutes, options.seed);
    let mut text = format!(
        "# Soak of {minutes:.0} minutes, seed {seed}\n\nMixed handlers, a steady load with bursts, faults and \
         restarts at random times; one host per queue driver, side by side. Latency is that of the consumer `tiny`, \
         from the queue's taking a message until its handler was done, waits for faults and restarts included.\n\n\
         ![Throughput, messages in flight, memory and latency](soak.svg)\n"
    );
    for run in finished {
        section(&mut text, run)?;
    }
    fs::write(options.out.join("report.md"), text)?;
    Ok(())
}

fn section(text: &mut String, run: &Finished) -> Result<()> {
    let (samples, events) = (lock(&run.world.samples)?, lock(&run.world.events)?);
    write!(text, "\n## {}\n\n", run.world.driver.name())?;
    match &*run.failures {
        [] => text.push_str("Everything held.\n"),
        failures => {
            text.push_str("**Did not hold:**\n\n");
            for failure in failures {
                // The other lines are a log, and are shown on the terminal only.
                writeln!(text, "- {}", failure.lines().next().unwrap_or_default())?;
            }
        }
    }
    accounts(text, run)?;
    process(text, &samples, run.world.clock.length)?;
    faults(text, &events)?;
    verdicts(text, &samples, &events)?;
    logged(text, run)
}

fn accounts(text: &mut String, run: &Finished) -> Result<()> {
    let account = &run.account;
    text.push_str(
        "\n| sent | = acked | + dead-lettered | + still queued | lost | out of order |\n|--:|--:|--:|--:|--:|--:|\n",
    );
    let (sent, done, dead, queued) = (account.sent, account.done, account.dead, account.queued);
    let (lost, disordered) = (account.lost.len(), account.disordered.len());
    writeln!(text, "| {sent} | {done} | {dead} | {queued} | {lost} | {disordered} |")?;
    let repeats: usize = account.repeated.values().sum();
    write!(text, "\nDone more than once: {repeats}")?;
    for (at, (name, count)) in account.repeated.iter().enumerate() {
        write!(text, "{}{count} by {name}", if at == 0 { " (" } else { ", " })?;
    }
    text.push_str(if repeats > 0 { ")" } else { "" });
    writeln!(
        text,
        "; unexplained: {}. Second copies in dead-letter queues: {}.",
        account.unexplained.len() / 2,
        account.dead_copies
    )?;
    Ok(())
}

fn process(text: &mut String, samples: &[Sample], length: f64) -> Result<()> {
    let (mut latencies, mut tails): (Vec<f64>, Vec<f64>) = samples.iter().filter_map(|sample| sample.latency).unzip();
    latencies.sort_by(f64::total_cmp);
    tails.sort_by(f64::total_cmp);
    let middle = |sorted: &[f64]| percentile(sorted, 0.5).unwrap_or_default();
    let most = samples.iter().map(|sample| sample.rate).fold(0.0, f64::max);
    let rate = samples.iter().map(|sample| sample.rate).sum::<f64>() / samples.len().max(1) as f64;
    let running: Vec<_> = samples.iter().filter_map(|sample| sample.process).collect();
    let cpu: f64 = running.chunk_by(|a, b| a.pid == b.pid).filter_map(|life| Some(life.last()?.cpu)).sum();
    let peak = running.iter().map(|process| process.rss).max().unwrap_or_default();
    writeln!(
        text,
        "\nSettled {rate:.0}/s on average, {most:.0}/s at most; in flight {} at most. Latency, the median over all \
         seconds: p50 {:.0} ms, p99 {:.0} ms. CPU {:.1} % of a core; memory {:.1} MiB at most.\n",
        samples.iter().map(|sample| sample.in_flight).max().unwrap_or_default(),
        middle(&latencies),
        middle(&tails),
        100.0 * cpu / samples.last().map_or(1.0, |sample| sample.at),
        mib(peak as f64)
    )?;
    memory(text, &lives(samples, length))
}

/// Writes the medians of each host's early and last quarter.
fn memory(text: &mut String, lives: &[Life]) -> Result<()> {
    text.push_str("| host lived | RSS, 2nd (3rd) quarter → last | PSS | anonymous | descriptors | threads |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for life in lives {
        let Some((early, late)) = life.quarters else { continue };
        let bytes = |value: fn(&Medians) -> f64| format!("{:.1} → {:.1} MiB", mib(value(&early)), mib(value(&late)));
        let count = |value: fn(&Medians) -> usize| format!("{} → {}", value(&early), value(&late));
        let columns = [
            format!("{:.0} to {:.0} s", life.from, life.to),
            format!("{} ({:+.1} %)", bytes(|it| it.rss), 100.0 * (late.rss / early.rss - 1.0)),
            bytes(|it| it.pss),
            bytes(|it| it.anonymous),
            count(|it| it.descriptors),
            count(|it| it.threads),
        ];
        writeln!(text, "| {} |", columns.join(" | "))?;
    }
    let short = lives.iter().filter(|life| life.quarters.is_none()).count();
    writeln!(text, "\n{} hosts in all; {short} lived too short for a comparison.", lives.len())?;
    Ok(())
}

fn faults(text: &mut String, events: &[Event]) -> Result<()> {
    text.push_str("\n| fault | times | longest | settled again after, at most |\n|---|--:|--:|--:|\n");
    for kind in Kind::ALL {
        let of_kind: Vec<&Event> = events.iter().filter(|event| event.kind == kind).collect();
        let most = |value: fn(&Event) -> f64| of_kind.iter().map(|event| value(event)).fold(0.0, f64::max);
        if !of_kind.is_empty() {
            writeln!(
                text,
                "| {} | {} | {:.1} s | {:.1} s |",
                kind.name(),
                of_kind.len(),
                most(|event| event.end - event.start),
                most(|event| event.recovered - event.end)
            )?;
        }
    }
    Ok(())
}

fn verdicts(text: &mut String, samples: &[Sample], events: &[Event]) -> Result<()> {
    let unhealthy = (samples.iter().filter(|sample| !sample.healthy).count(), unhealthy(samples, events).count());
    writeln!(
        text,
        "\nThe health check was asked {} times, and said unhealthy {} times, {} of them with nothing disturbed.",
        samples.len(),
        unhealthy.0,
        unhealthy.1
    )?;
    Ok(())
}

fn logged(text: &mut String, run: &Finished) -> Result<()> {
    let tally = lock(&run.world.tally)?;
    text.push_str("\n| consumer | outcome | disposition | deliveries |\n|---|---|---|--:|\n");
    for ((consumer, outcome, disposition), count) in &tally.outcomes {
        writeln!(text, "| {consumer} | {outcome} | {disposition} | {count} |")?;
    }
    if !tally.complaints.is_empty() {
        text.push_str("\nWarnings and errors in the log:\n\n");
        for (words, count) in &tally.complaints {
            writeln!(text, "- {count} × {words}")?;
        }
    }
    Ok(())
}

/// Columns of `samples.csv`. Memory is in bytes.
const COLUMNS: &str = "seconds,driver,pid,settled_per_second,in_flight,rss,pss,anonymous,descriptors,threads,\
                       cpu_seconds,p50_ms,p99_ms,healthy";

/// Formats one row per driver and second.
fn table(finished: &[Finished]) -> Result<String> {
    let mut text = format!("{COLUMNS}\n");
    for run in finished {
        for sample in &*lock(&run.world.samples)? {
            write!(text, "{:.1},{},", sample.at, run.world.driver.name())?;
            match sample.process {
                Some(process) => write!(text, "{},", process.pid)?,
                None => text.push(','),
            }
            write!(text, "{:.1},{},", sample.rate, sample.in_flight)?;
            match sample.process {
                Some(it) => {
                    write!(text, "{},{},{},", it.rss, it.pss, it.anonymous)?;
                    write!(text, "{},{},{:.2},", it.descriptors, it.threads, it.cpu)?;
                }
                None => text.push_str(",,,,,,"),
            }
            match sample.latency {
                Some((middle, tail)) => write!(text, "{middle:.1},{tail:.1},")?,
                None => text.push_str(",,"),
            }
            writeln!(text, "{}", sample.healthy)?;
        }
    }
    Ok(text)
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
