//! Finds processes and their start times in `/proc`.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::Timestamp;

/// Number of clock ticks per second in `/proc` (Linux `USER_HZ`: 100 on every architecture that Rust's std supports).
const TICKS_PER_SECOND: u64 = 100;

/// A running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Start time by the current system clock, precise to about 1/100 s. `None`: `/proc` does not provide the start time.
    pub started_at: Option<Timestamp>,
    /// Time from the machine's boot to the start. Unlike `started_at`, does not change when the system clock is set. `None`:
    /// `/proc` does not provide the start time.
    pub since_boot: Option<Duration>,
}

/// Returns the running process with this id. `None`: there is no process with this id, or only a zombie. If `/proc` is
/// not available, sends a null signal to check whether the process exists.
pub fn info(pid: u32) -> Option<ProcessInfo> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok();
    let Some(stat) = stat.as_deref().and_then(parse_stat) else {
        // `/proc` may be unavailable, or may hide other users' processes (`hidepid`).
        return answers(pid).then_some(ProcessInfo { started_at: None, since_boot: None });
    };
    if stat.is_dead() {
        return None;
    }
    // If the kernel deschedules this thread between the readings of the two clocks, the computed start time is too
    // late. The earliest of several results is therefore the most accurate.
    let started_at = (0..3).filter_map(|_| started_at(stat.started)).min();
    Some(ProcessInfo { started_at, since_boot: Some(stat.started) })
}

/// Returns the wall-clock time that is `after_boot` after the machine's boot.
fn started_at(after_boot: Duration) -> Option<Timestamp> {
    let uptime = parse_uptime(&fs::read_to_string("/proc/uptime").ok()?)?;
    Some(Timestamp::now().minus(age(after_boot, uptime)?))
}

/// Returns `true` if a process with this id exists. Sends a null signal: an error about missing permission also proves
/// that the process exists.
fn answers(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

/// The two fields of `/proc/<pid>/stat` that this module uses (proc(5): fields 3 and 22).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    /// Time from the machine's boot to the start of the process.
    started: Duration,
}

impl Stat {
    /// Returns `true` for a zombie (Z) and for a process that is being removed (X, x).
    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Parses `/proc/<pid>/stat`. Field 2 is the command in parentheses. The command may contain any byte, including
/// parentheses, so the field ends at the last `)`.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // `nth` counts from field 4.
    let ticks: u64 = fields.nth(22 - 4)?.parse().ok()?;
    Some(Stat { state, started: Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?) })
}

/// Parses the first number of `/proc/uptime`: the time since boot. The time includes periods in which the machine was
/// suspended, as the start times of processes do.
fn parse_uptime(uptime: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(uptime.split_ascii_whitespace().next()?.parse().ok()?).ok()
}

/// Returns the age of a process that started at `started` on a machine with the given uptime. `None`: the two times are
/// from different clocks. Some container runtimes report the uptime of the container, but start times since the
/// machine's boot.
fn age(started: Duration, uptime: Duration) -> Option<Duration> {
    let rounding = Duration::from_secs(1);
    (started <= uptime + rounding).then(|| uptime.saturating_sub(started))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = "1 1 1 0 -1 4194560 1 2 0 0 5 6 0 0 20 0 1 0 4242 1000 3 18446744073709551615";

    #[test]
    fn a_command_may_have_any_name() {
        let expected = Stat { state: b'S', started: Duration::from_millis(42_420) };
        for comm in ["hostler", "a b", "x) R 1 (y", ")", ""] {
            assert_eq!(parse_stat(format!("7 ({comm}) S {TAIL}").as_bytes()).as_ref(), Some(&expected), "{comm}");
        }
        let mut raw = b"7 (\xff\xfe) S ".to_vec();
        raw.extend_from_slice(TAIL.as_bytes());
        assert_eq!(parse_stat(&raw), Some(expected));
    }

    #[test]
    fn anything_else_is_no_stat() {
        for bad in ["", "7", "7 (x)", "7 (x) S 1 2 3", "7 x S 1"] {
            assert_eq!(parse_stat(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse_uptime("975.76 1138.01\n"), Some(Duration::from_millis(975_760)));
        assert_eq!(parse_uptime("-1 0"), None);
        assert_eq!(parse_uptime(""), None);
    }

    #[test]
    fn a_zombie_is_dead_and_a_stopped_process_is_not() {
        let dead = |state| Stat { state, started: Duration::ZERO }.is_dead();
        assert!(dead(b'Z') && dead(b'X') && !dead(b'T') && !dead(b'S') && !dead(b'R') && !dead(b'D'));
    }

    #[test]
    fn clocks_that_do_not_belong_together_tell_no_age() {
        let seconds = Duration::from_secs;
        assert_eq!(age(seconds(40), seconds(100)), Some(seconds(60)));
        assert_eq!(age(seconds(100), Duration::from_millis(99_990)), Some(Duration::ZERO));
        assert_eq!(age(seconds(5000), seconds(100)), None);
    }

    #[test]
    fn without_proc_a_null_signal_tells() {
        assert!(answers(std::process::id()));
        assert!(!answers(0) && !answers(u32::MAX) && !answers(i32::MAX.cast_unsigned()));
    }
}
