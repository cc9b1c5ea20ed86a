//! What a contender uses: the CPU time and the memory of a process and all that it started.

use std::fs;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use crate::Result;

/// Clock ticks per second in `/proc/PID/stat` (`sysconf(_SC_CLK_TCK)`, 100 on Linux).
const TICKS: f64 = 100.0;

/// A process, its children and theirs, as far as they live.
pub fn tree(root: i32) -> Vec<i32> {
    let mut pids = vec![root];
    let mut at = 0;
    while let Some(pid) = pids.get(at) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        // A process that is just ending has none to tell of.
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<i32> =
            children.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        pids.extend(children);
        at += 1;
    }
    pids
}

/// User and system time so far, of those that ended and were waited for too.
pub fn cpu(root: i32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for pid in tree(root) {
        // To the nanosecond, where /proc has hundredths of a second.
        let now = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now);
        let Ok(now) = now else { continue };
        sum += Duration::from(now) + ended(pid).unwrap_or_default();
    }
    if sum.is_zero() { Err(format!("process {root} is gone").into()) } else { Ok(sum) }
}

/// What its children used that ended (`proc_pid_stat(5)`, fields 16 and 17).
fn ended(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(Duration::from_secs_f64(ticks / TICKS))
}

/// The sum of the most that each of them ever had in memory, in bytes. What they share counts for each.
pub fn peak(root: i32) -> u64 {
    let of = |pid: i32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    tree(root).into_iter().filter_map(of).sum()
}
