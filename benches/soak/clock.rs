//! Clock of a run, in seconds since its start.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Start of the run, and the time during which it sends.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    began_at: SystemTime,
    /// Time during which messages are sent, in seconds.
    pub length: f64,
}

impl Clock {
    /// Starts the clock of a run with this length.
    pub fn start(length: Duration) -> Self {
        Self { began: Instant::now(), began_at: SystemTime::now(), length: length.as_secs_f64() }
    }

    /// Returns the seconds since the start of the run.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Converts a time of a guest (nanoseconds since 1970) to seconds since the start of the run.
    pub fn of_guest(&self, nanoseconds: u64) -> f64 {
        let began = self.began_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        nanoseconds as f64 / 1e9 - began.as_secs_f64()
    }

    /// Waits until `at` seconds after the start of the run.
    pub fn wait_until(&self, at: f64) {
        pause(at - self.now());
    }
}

/// Waits for this number of seconds. Returns immediately for zero or less.
#[expect(clippy::disallowed_methods, reason = "a load is paced by the clock, and so are faults and samples")]
pub fn pause(seconds: f64) {
    if seconds > 0.0 {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
}
