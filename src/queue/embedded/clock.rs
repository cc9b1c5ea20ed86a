//! The clocks that the queue reads, and the connection that jobs share with them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use rustix::time::{ClockId, clock_gettime};

use super::rows::millis;

/// The clocks of a machine. The driver reads no other, so a test can set, stop and step them.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since a moment that all processes of the machine share. It is never set and never steps.
    fn monotonic(&self) -> Duration;

    /// The wall clock, which anybody may set.
    fn wall(&self) -> SystemTime;

    /// Names the origin of [`Clock::monotonic`]: its readings compare among processes that see the same name. `None`: only
    /// within this process.
    fn origin(&self) -> Option<String>;
}

/// The clocks of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        let at = clock_gettime(ClockId::Monotonic);
        let (seconds, nanos) = (u64::try_from(at.tv_sec), u32::try_from(at.tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// The boot, and the time namespace, which has an origin of its own.
    fn origin(&self) -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Some(format!("{} {}", boot.trim(), namespace.display()))
    }
}

/// The time by which the queue counts leases and delays.
#[derive(Debug, Clone)]
pub(super) struct QueueTime {
    clock: Arc<dyn Clock>,
}

impl QueueTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }

    /// Milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.clock.wall().duration_since(UNIX_EPOCH).map_or(0, millis)
    }

    /// The monotonic clock, for what this process waits for.
    pub(super) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

/// The connection within a job, and the time there.
pub(super) struct Session<'a> {
    pub(super) db: &'a Connection,
    pub(super) time: &'a QueueTime,
}

impl Session<'_> {
    /// The queue's time, in milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.time.now()
    }
}

impl Deref for Session<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.db
    }
}
