//! CPU time of the processes that take part, from `/proc`.

use std::fs;

use crate::figures::ratio;

/// Ticks in a second: the kernel shows all times in this unit on every architecture that hostler is built for.
const TICKS: u64 = 100;

/// The processes that take part.
#[derive(Clone, Copy)]
pub struct Processes {
    /// The job service. `None`: its time is not shown.
    pub hostler: Option<u32>,
    /// The first process of PostgreSQL. `None`: its time is not shown.
    pub postgres: Option<u32>,
}

/// CPU time in ticks since the processes began.
#[derive(Clone, Copy)]
pub struct Times {
    hostler: u64,
    postgres: u64,
    load: u64,
}

impl Processes {
    /// Reads the times. Those of processes that are gone are 0.
    pub fn times(&self) -> Times {
        Times {
            hostler: self.hostler.map_or(0, with_children),
            postgres: self.postgres.map_or(0, with_children),
            load: with_children(std::process::id()),
        }
    }
}

impl Times {
    /// Writes the CPU time since `before`.
    pub fn since(&self, before: &Self) -> String {
        let seconds = |now: u64, then: u64| ratio(now.saturating_sub(then), TICKS);
        format!(
            "CPU s: hostler {:.2}, PostgreSQL {:.2}, load {:.2}",
            seconds(self.hostler, before.hostler),
            seconds(self.postgres, before.postgres),
            seconds(self.load, before.load)
        )
    }
}

/// Returns the time of a process, of its children, and of those that have ended.
fn with_children(id: u32) -> u64 {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    own(id) + children.map(own).sum::<u64>()
}

fn own(id: u32) -> u64 {
    fs::read_to_string(format!("/proc/{id}/stat")).map_or(0, |stat| ticks(&stat).unwrap_or_default())
}

/// Returns the ticks in a line of `/proc/PID/stat`, with those of children that have ended.
fn ticks(stat: &str) -> Option<u64> {
    // The name may have spaces and parentheses. The fields after it begin with the third, and the times are from the 14th on.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    fields.skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "71 (a) b (c)) S 1 71 71 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0";
        assert_eq!(ticks(stat), Some(127));
        assert_eq!(ticks("71 (short) S 1"), Some(0));
        assert_eq!(ticks("nothing"), None);
    }

    #[test]
    fn this_process_has_a_time() {
        let (begin, id) = (Instant::now(), std::process::id());
        let before = with_children(id);
        while with_children(id) == before {
            assert!(begin.elapsed() < Duration::from_secs(60), "the time stands still");
        }
    }
}
