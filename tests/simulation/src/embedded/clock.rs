//! The clocks of the simulated machine: one that never steps, and one that anybody may set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// What the monotonic clock shows when the machine starts.
const AT_BOOT: Duration = Duration::from_secs(20);
/// What the wall clock shows then for the first time.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// The machine's clocks.
#[derive(Debug, Clone)]
pub struct Clocks {
    began_at: Instant,
    booted_at: Instant,
    boots: u32,
    /// By how many seconds the wall clock was set since.
    set_by: Arc<AtomicI64>,
}

impl Clocks {
    /// Those of a machine that starts.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { began_at: now, booted_at: now, boots: 0, set_by: Arc::default() }
    }

    /// Sets the wall clock by so many seconds.
    pub fn set(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::Relaxed);
    }

    /// Starts the machine anew. Its earlier processes keep the clock that they have.
    pub fn boot(&mut self) {
        self.booted_at = Instant::now();
        self.boots += 1;
    }

    /// What a process that starts now sees of them.
    pub fn of_process(&self) -> ProcessClock {
        ProcessClock(self.clone())
    }
}

/// The clocks as a process sees them.
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
