//! The time of a run: everything is counted in seconds since it began.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// When the run began, and how long it sends.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    began_at: SystemTime,
    /// How long messages are sent, in seconds.
    pub length: f64,
}

impl Clock {
    /// A run of this length begins.
    pub fn start(length: Duration) -> Self {
        Self { began: Instant::now(), began_at: SystemTime::now(), length: length.as_secs_f64() }
    }

    /// Seconds since the run began.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A time of the guests (nanoseconds since 1970) in seconds since the run began.
    pub fn of_guest(&self, nanoseconds: u64) -> f64 {
        let began = self.began_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        nanoseconds as f64 / 1e9 - began.as_secs_f64()
    }

    /// Waits until so many seconds after the beginning.
    pub fn wait_until(&self, at: f64) {
        pause(at - self.now());
    }
}

/// Waits so many seconds; not at all if there are none.
#[expect(clippy::disallowed_methods, reason = "a load is paced by the clock, and so are faults and samples")]
pub fn pause(seconds: f64) {
    if seconds > 0.0 {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
}
