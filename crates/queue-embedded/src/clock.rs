//! The clocks of the queue, and the connection that jobs receive with them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use rustix::time::{ClockId, clock_gettime};

use super::rows::{millis, to_system_time};

/// The clocks of a machine. The driver reads no others, so a test can set, stop and step them.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time since a moment that all processes of the machine share. It is never set and never steps.
    fn monotonic(&self) -> Duration;

    /// Returns the wall clock, which may be set at any time.
    fn wall(&self) -> SystemTime;

    /// Names the origin of [`Clock::monotonic`]. Readings are comparable among processes that see the same name.
    /// `None`: only within this process.
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

    /// Joins the boot id and the time namespace, since each namespace has its own origin.
    fn origin(&self) -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Some(format!("{} {}", boot.trim(), namespace.display()))
    }
}

/// The drift of the wall clock, in milliseconds, beyond which it counts as set.
const MAX_DRIFT: i64 = 100;

/// The latest valid time in a file, in milliseconds: the year 3000.
const MAX_TIME: i64 = 32_503_680_000_000;

/// The file's own time, which counts leases and delays, in milliseconds. It starts at a reading of the wall clock and
/// advances with the monotonic clock, so setting the wall clock neither ends a lease nor prolongs a delay. The first
/// process after a boot writes the start into the file, and all others read it there. From one boot to the next, time
/// advances with the wall clock, but never backwards.
#[derive(Debug, Clone)]
pub(super) struct QueueTime {
    clock: Arc<dyn Clock>,
    /// The queue's time minus the monotonic clock's, in milliseconds.
    ahead: i64,
    /// The wall clock minus the queue's time as last seen, in milliseconds.
    wall_ahead: Arc<AtomicI64>,
}

impl QueueTime {
    /// Reads the time of a file, or starts it if no process of this boot has done so.
    pub(super) fn of(db: &Connection, clock: Arc<dyn Clock>) -> rusqlite::Result<Self> {
        let origin = clock.origin();
        let ahead = match known(db, origin.as_deref())? {
            Some(ahead) => ahead,
            None => begin(db, &*clock, origin.as_deref())?,
        };
        let time = Self { clock, ahead, wall_ahead: Arc::default() };
        match time.now() {
            now if now.unsigned_abs() <= MAX_TIME.unsigned_abs() => Ok(time),
            now => Err(impossible(now)),
        }
    }

    /// Returns the queue's time in milliseconds. It equals the time since 1970 unless the wall clock was set.
    pub(super) fn now(&self) -> i64 {
        millis(self.clock.monotonic()).saturating_add(self.ahead)
    }

    /// Returns the monotonic clock, for the timeouts of this process.
    pub(super) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Converts a moment of the queue's time to the wall clock as it is set now. The result changes only when that
    /// clock is set.
    pub(super) fn to_wall(&self, at: i64) -> SystemTime {
        let seen = wall_millis(&*self.clock).saturating_sub(self.now());
        let known = self.wall_ahead.load(Ordering::Relaxed);
        let wall_ahead = if seen.abs_diff(known) > MAX_DRIFT.unsigned_abs() { seen } else { known };
        self.wall_ahead.store(wall_ahead, Ordering::Relaxed);
        to_system_time(at.saturating_add(wall_ahead))
    }
}

/// Returns the error of a damaged file: its clock, or the message that it started from, has an impossible time.
fn impossible(now: i64) -> rusqlite::Error {
    let text = format!("its clock stands at {now} ms since 1970, which no clock has written");
    rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, text.into())
}

/// Reads the entry of the file for this origin of the monotonic clock. A file of an earlier version has no `clock`
/// table.
fn known(db: &Connection, origin: Option<&str>) -> rusqlite::Result<Option<i64>> {
    let Some(origin) = origin else { return Ok(None) };
    if !db.table_exists(None, "clock")? {
        return Ok(None);
    }
    db.query_row("SELECT ahead FROM clock WHERE origin = ?1", [origin], |row| row.get(0)).optional()
}

/// Starts time from the wall clock, or from the newest message if the wall clock is behind it.
fn begin(db: &Connection, clock: &dyn Clock, origin: Option<&str>) -> rusqlite::Result<i64> {
    let tx = Transaction::new_unchecked(db, TransactionBehavior::Immediate)?;
    if let Some(ahead) = known(&tx, origin)? {
        return Ok(ahead);
    }
    let newest: Option<i64> = tx.query_row(
        "SELECT max((SELECT max(enqueued_at) FROM entry WHERE entry.queue = queue.id)) FROM queue",
        [],
        |row| row.get(0),
    )?;
    // Both clocks are rounded down, so one millisecond less is never ahead of the wall clock. The newest message is
    // due.
    let now = newest.map_or(0, |newest| newest.saturating_add(1)).max(wall_millis(clock));
    let ahead = now.saturating_sub(millis(clock.monotonic())).saturating_sub(1);
    if let Some(origin) = origin {
        tx.execute_batch(
            "CREATE TABLE IF NOT EXISTS clock (origin TEXT PRIMARY KEY, ahead INTEGER NOT NULL) STRICT, WITHOUT ROWID;
             DELETE FROM clock;",
        )?;
        tx.execute("INSERT INTO clock (origin, ahead) VALUES (?1, ?2)", params![origin, ahead])?;
    }
    tx.commit()?;
    Ok(ahead)
}

fn wall_millis(clock: &dyn Clock) -> i64 {
    clock.wall().duration_since(UNIX_EPOCH).map_or(0, millis)
}

/// Work on the file. It may run again if its transaction was rolled back.
pub(super) trait Job: Send {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()>;
}

impl<F: FnMut(&Session<'_>) -> rusqlite::Result<()> + Send> Job for F {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        self(db)
    }
}

/// The connection within a job, and the file's time.
pub(super) struct Session<'a> {
    pub(super) db: &'a Connection,
    pub(super) time: &'a QueueTime,
}

impl Session<'_> {
    /// Returns the queue's time, in milliseconds.
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
