//! The host's stamps: taken on the monotonic clock, written as wall-clock times.
//!
//! A stamp that was taken from the system clock is wrong for good once that clock is set (NTP at boot, a resumed
//! machine): a busy consumer would look stuck, a stuck one busy, and the process another than the one that wrote. So
//! the host keeps [`Instant`]s and turns them into wall-clock times at each write. The anchor between the two clocks
//! is moved only after a step, so that a stamp reads the same from one write to the next.

use std::time::{Duration, Instant};

use super::{ConsumerReport, Report, SCHEMA, Timestamp, namespace, process};

/// The clocks may differ by this much before the anchor moves; less than the verdict's tolerance for start times.
const MAX_DRIFT: Duration = Duration::from_millis(100);

/// Turns this process's instants into wall-clock times.
#[derive(Debug)]
pub struct Clock {
    wall: Timestamp,
    monotonic: Instant,
    started_at: Timestamp,
    pid_namespace: Option<String>,
}

impl Clock {
    /// A clock anchored now. Reads `/proc` for the start of this process; without it, now is the start.
    pub fn start() -> Self {
        Self::anchored(Timestamp::now(), Instant::now())
    }

    /// The wall-clock time of an instant.
    pub fn wall(&self, instant: Instant) -> Timestamp {
        match instant.checked_duration_since(self.monotonic) {
            Some(after) => self.wall.plus(after),
            None => self.wall.minus(self.monotonic.saturating_duration_since(instant)),
        }
    }

    /// This process's report, written now. `consumers` turns the instants of each consumer into times.
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
        }
    }

    /// Anchors anew when the system clock, which reads `wall` at `monotonic`, has been set.
    fn follow(&mut self, wall: Timestamp, monotonic: Instant) {
        let expected = self.wall(monotonic);
        if wall.since(expected).max(expected.since(wall)) > MAX_DRIFT {
            *self = Self::anchored(wall, monotonic);
        }
    }

    fn anchored(wall: Timestamp, monotonic: Instant) -> Self {
        let started_at = process::info(std::process::id()).and_then(|process| process.started_at).unwrap_or(wall);
        // `/proc` rounds: in the first 1/100 s of its life a process would start after what it does.
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
