//! Clocks of the simulated machine: a monotonic clock that never steps, and a wall clock that may be set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Monotonic time at the boot of the machine.
const AT_BOOT: Duration = Duration::from_secs(20);
/// Wall-clock time at the first boot, since 1970.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// Clocks of the machine.
#[derive(Debug, Clone)]
pub struct Clocks {
    began_at: Instant,
    booted_at: Instant,
    boots: u32,
    /// Sum of all changes to the wall clock, in seconds.
    set_by: Arc<AtomicI64>,
}

impl Clocks {
    /// Returns the clocks of a machine that boots.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { began_at: now, booted_at: now, boots: 0, set_by: Arc::default() }
    }

    /// Changes the wall clock by this number of seconds.
    pub fn set(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::Relaxed);
    }

    /// Reboots the machine. Processes that started before keep their clock.
    pub fn boot(&mut self) {
        self.booted_at = Instant::now();
        self.boots += 1;
    }

    /// Returns the clocks for a process that starts now.
    pub fn of_process(&self) -> ProcessClock {
        ProcessClock(self.clone())
    }
}

/// Clocks as one process sees them.
#[derive(Debug)]
pub struct ProcessClock(Clocks);

impl ProcessClock {
    pub fn monotonic(&self) -> Duration {
        AT_BOOT + self.0.booted_at.elapsed()
    }

    pub fn wall(&self) -> SystemTime {
        let set_by = self.0.set_by.load(Ordering::Relaxed);
        let time = UNIX_EPOCH + EPOCH + self.0.began_at.elapsed();
        let by = Duration::from_secs(set_by.unsigned_abs());
        if set_by < 0 { time - by } else { time + by }
    }

    pub fn origin(&self) -> String {
        format!("boot {}", self.0.boots)
    }
}
