//! Timestamps in the health file: measured with the monotonic clock, and written as wall-clock times.
//!
//! A timestamp from the system clock becomes wrong when the system clock is set (NTP at boot, a resumed machine). The
//! health check would then mistake a busy consumer for a stuck one, and a stuck consumer for a busy one. The start time
//! in the file would no longer match the start time of the process. The host therefore stores [`Instant`]s and converts
//! them at each write. The conversion uses an anchor: a pair of readings of both clocks. The anchor moves only when the
//! system clock has been set. As long as the anchor does not move, an instant has the same timestamp in every write.

use std::time::{Duration, Instant};

use super::{ConsumerReport, Report, SCHEMA, Timestamp, namespace, process};

/// Maximum drift between the two clocks. A greater drift moves the anchor. Must be smaller than the verdict's tolerance
/// for start times.
const MAX_DRIFT: Duration = Duration::from_millis(100);

/// Converts instants of this process into wall-clock times.
#[derive(Debug)]
pub struct Clock {
    wall: Timestamp,
    monotonic: Instant,
    started_at: Timestamp,
    pid_namespace: Option<String>,
}

impl Clock {
    /// Creates a clock with its anchor at the current time. Reads the start time of this process from `/proc`. Without
    /// `/proc`, uses the current time as the start time.
    pub fn start() -> Self {
        Self::anchored(Timestamp::now(), Instant::now())
    }

    /// Returns the wall-clock time of an instant.
    pub fn wall(&self, instant: Instant) -> Timestamp {
        match instant.checked_duration_since(self.monotonic) {
            Some(after) => self.wall.plus(after),
            None => self.wall.minus(self.monotonic.saturating_duration_since(instant)),
        }
    }

    /// Returns the report of this process, stamped with the current time. Calls `consumers` to create the reports on
    /// the consumers.
    pub fn report(&mut self, consumers: impl FnOnce(&Self) -> Vec<ConsumerReport>) -> Report {
        let now = Instant::now();
        self.follow(Timestamp::now(), now);
        Report {
            schema: SCHEMA,
            pid: std::process::id(),
            pid_namespace: self.pid_namespace.clone(),
            started_at: self.started_at,
            written_at: self.wall(now),
            consumers: consumers(self),
            others: Vec::new(),
            queue_link: None,
        }
    }

    /// Moves the anchor if the system clock has been set. `wall` is the time of the system clock at the instant
    /// `monotonic`.
    fn follow(&mut self, wall: Timestamp, monotonic: Instant) {
        let expected = self.wall(monotonic);
        if wall.since(expected).max(expected.since(wall)) > MAX_DRIFT {
            *self = Self::anchored(wall, monotonic);
        }
    }

    fn anchored(wall: Timestamp, monotonic: Instant) -> Self {
        let started_at = process::info(std::process::id()).and_then(|process| process.started_at).unwrap_or(wall);
        // `/proc` rounds start times to 1/100 s, so a process that just started could seem to start after `wall`.
        let started_at = started_at.min(wall);
        Self { wall, monotonic, started_at, pid_namespace: namespace::own() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn stamps_follow_a_step_of_the_system_clock_and_nothing_less() {
        let (wall, begin) = (Timestamp::now(), Instant::now());
        let mut clock = Clock::anchored(wall, begin);
        let later = begin + 10 * SECOND;

        clock.follow(wall.plus(10 * SECOND).plus(MAX_DRIFT), later);
        assert_eq!(clock.wall(begin), wall, "a small difference moves no stamp");

        clock.follow(wall.plus(10 * SECOND).plus(HOUR), later);
        assert_eq!(clock.wall(begin), wall.plus(HOUR), "set forward");

        clock.follow(wall.plus(10 * SECOND).minus(HOUR), later);
        assert_eq!(clock.wall(begin), wall.minus(HOUR), "set back");
        assert_eq!(clock.wall(later), wall.minus(HOUR).plus(10 * SECOND));
    }

    #[test]
    fn a_report_is_of_this_process() {
        let mut clock = Clock::start();
        let before = Timestamp::now();
        let report = clock.report(|_| Vec::new());
        assert_eq!((report.schema, report.pid), (SCHEMA, std::process::id()));
        assert!(report.started_at <= report.written_at);
        assert!(report.written_at.since(before) < SECOND && before.since(report.written_at) < SECOND);
    }
}
