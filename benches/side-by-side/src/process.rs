//! Resource use of a contender: CPU time and memory of a process and its descendants.

use std::fs;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use crate::Result;

/// Number of clock ticks per second in `/proc/PID/stat` (`sysconf(_SC_CLK_TCK)`, 100 on Linux).
const TICKS: f64 = 100.0;

/// Returns a process and its living descendants.
pub fn tree(root: i32) -> Vec<i32> {
    let mut pids = vec![root];
    let mut at = 0;
    while let Some(pid) = pids.get(at) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        // A process that is ending may have no readable list of children.
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<i32> =
            children.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        pids.extend(children);
        at += 1;
    }
    pids
}

/// Returns the user and system time so far, including descendants that ended and were waited for.
pub fn cpu(root: i32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for pid in tree(root) {
        // This clock has nanosecond resolution, unlike the hundredths of a second in /proc.
        let now = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now);
        let Ok(now) = now else { continue };
        sum += Duration::from(now) + ended(pid).unwrap_or_default();
    }
    if sum.is_zero() { Err(format!("process {root} is gone").into()) } else { Ok(sum) }
}

/// Returns the CPU time of ended children (`proc_pid_stat(5)`, fields 16 and 17).
fn ended(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(Duration::from_secs_f64(ticks / TICKS))
}

/// Returns the sum of the peak memory of all processes in bytes. Shared memory counts for each process.
pub fn peak(root: i32) -> u64 {
    let of = |pid: i32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    tree(root).into_iter().filter_map(of).sum()
}
