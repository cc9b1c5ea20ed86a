//! Samples, one per second: the host's process, its health file and verdict, its log, and the files of its guests.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::Result;
use crate::account::harvest;
use crate::world::{World, lock};

/// Number of clock ticks per second in `/proc/PID/stat` (`sysconf(_SC_CLK_TCK)`, 100 on Linux).
const TICKS: f64 = 100.0;

/// One sample.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Time in seconds since the start of the run.
    pub at: f64,
    /// Process of the host, if a host runs.
    pub process: Option<Process>,
    /// Number of deliveries settled per second, since the previous sample.
    pub rate: f64,
    /// Number of messages in flight, according to the health file.
    pub in_flight: u64,
    /// Percentiles of the latency of `tiny` in milliseconds. `None`: no ack since the previous sample.
    pub latency: Option<(f64, f64)>,
    /// Verdict of `check-consumer-health`.
    pub healthy: bool,
}

/// Values from the kernel about a process.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pub pid: u32,
    /// Resident memory in bytes.
    pub rss: u64,
    /// Proportional memory in bytes. Shared pages count partially.
    pub pss: u64,
    /// Resident memory in bytes that does not belong to files: heap, stacks and sandboxes.
    pub anonymous: u64,
    pub descriptors: usize,
    pub threads: usize,
    /// User and system time in seconds so far.
    pub cpu: f64,
}

/// Takes a sample every second until `sampled` is set.
pub fn run(world: &World, sampled: &AtomicBool) -> Result<()> {
    let (mut settled, mut last) = (0, 0.0);
    for second in 1_u64.. {
        world.clock.wait_until(second as f64);
        if sampled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let at = world.clock.now();
        let (total, mut latencies) = {
            let mut tally = lock(&world.tally)?;
            (tally.settled, std::mem::take(&mut tally.latencies))
        };
        latencies.sort_by(f64::total_cmp);
        let sample = Sample {
            at,
            process: world.pid()?.and_then(process),
            rate: (total - settled) as f64 / (at - last),
            in_flight: in_flight(world),
            latency: percentile(&latencies, 0.5).zip(percentile(&latencies, 0.99)),
            healthy: world.is_healthy()?,
        };
        (settled, last) = (total, at);
        lock(&world.samples)?.push(sample);
        lock(&world.ledger)?.done.extend(harvest(&world.path("marks"), world.clock)?);
    }
    Ok(())
}

/// Returns a percentile of sorted values. `part` is a fraction from 0 to 1.
pub fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    sorted.get(((sorted.len() as f64 * part) as usize).min(sorted.len().checked_sub(1)?)).copied()
}

fn in_flight(world: &World) -> u64 {
    let text = fs::read(world.path("health.json")).unwrap_or_default();
    let file: Value = serde_json::from_slice(&text).unwrap_or_default();
    let consumers = file["consumers"].as_array().map(Vec::as_slice).unwrap_or_default();
    consumers.iter().filter_map(|consumer| consumer["in_flight"].as_u64()).sum()
}

/// Reads the values of a process. `None`: the process has ended.
fn process(pid: u32) -> Option<Process> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kilobytes = |name: &str| -> Option<u64> {
        let line = maps.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The list starts with the third field (`proc_pid_stat(5)`). Fields 14 and 15 are the times, and field 20 is the number of
    // threads.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Process {
        pid,
        rss: kilobytes("Rss:")? * 1024,
        pss: kilobytes("Pss:")? * 1024,
        anonymous: kilobytes("Anonymous:")? * 1024,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
        threads: field(20)? as usize,
        cpu: (field(14)? + field(15)?) as f64 / TICKS,
    })
}
