//! The clocks of the queue, and the session that gives jobs access to the file.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use rustix::time::{ClockId, clock_gettime};

use super::rows::{millis, to_system_time};

/// The clocks of a machine. The driver reads the time only from these clocks, so a test can control the time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time since a fixed moment in the past, by a clock that cannot be set. [`Clock::origin`] names this
    /// moment.
    fn monotonic(&self) -> Duration;

    /// Returns the wall-clock time. The clock may be set at any time.
    fn wall(&self) -> SystemTime;

    /// Returns a name for the moment from which [`Clock::monotonic`] counts. The times of two processes are comparable
    /// if their names are equal. `None`: times are comparable only within this process.
    fn origin(&self) -> Option<String>;
}

/// Clocks of this machine.
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

    /// Returns the boot id and the time namespace, because the monotonic clock of each time namespace counts from a
    /// different moment.
    fn origin(&self) -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Some(format!("{} {}", boot.trim(), namespace.display()))
    }
}

/// Maximum drift between the wall clock and the queue's clock ([`QueueTime`]), in milliseconds. A greater drift means
/// that someone has set the wall clock.
const MAX_DRIFT: i64 = 100;

/// Maximum valid time in a file, in milliseconds since 1970: the year 3000.
const MAX_TIME: i64 = 32_503_680_000_000;

/// The clock of a queue file, in milliseconds, for leases and delays. After each boot of the machine, it is set once to
/// the wall-clock time. From then on, it advances with the monotonic clock. A lease or delay is therefore not affected
/// when someone sets the wall clock.
///
/// The first process after a boot stores in the file how far this clock is ahead of the monotonic clock. All other
/// processes read this number from the file, so all of them have the same time. Across reboots, this clock follows the
/// wall clock, but never goes backwards.
#[derive(Debug, Clone)]
pub(super) struct QueueTime {
    clock: Arc<dyn Clock>,
    /// Number of milliseconds by which this clock is ahead of the monotonic clock.
    ahead: i64,
    /// Number of milliseconds by which the wall clock is ahead of this clock. Updated when a conversion to a wall-clock
    /// time finds that the stored number is wrong by more than [`MAX_DRIFT`].
    wall_ahead: Arc<AtomicI64>,
}

impl QueueTime {
    /// Reads from the file how far the queue's clock is ahead of the monotonic clock. If no process has stored this
    /// number since the boot of the machine, sets the queue's clock and stores the number.
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

    /// Returns the time of the queue's clock in milliseconds since 1970. This time differs from the wall clock if
    /// someone has set the wall clock.
    pub(super) fn now(&self) -> i64 {
        millis(self.clock.monotonic()).saturating_add(self.ahead)
    }

    /// Returns the monotonic time, for timeouts within this process.
    pub(super) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Converts a time of the queue's clock to a wall-clock time. As long as no one sets the wall clock, the same input
    /// yields the same result.
    pub(super) fn to_wall(&self, at: i64) -> SystemTime {
        let seen = wall_millis(&*self.clock).saturating_sub(self.now());
        let known = self.wall_ahead.load(Ordering::Relaxed);
        let wall_ahead = if seen.abs_diff(known) > MAX_DRIFT.unsigned_abs() { seen } else { known };
        self.wall_ahead.store(wall_ahead, Ordering::Relaxed);
        to_system_time(at.saturating_add(wall_ahead))
    }
}

/// Returns the error for a damaged file. `now`: time of the queue's clock, which is outside the valid range. Either the
/// number that is stored for this clock, or the enqueue time of the newest message, is damaged.
fn impossible(now: i64) -> rusqlite::Error {
    let text = format!("its clock stands at {now} ms since 1970, which no clock has written");
    FromSqlError::Other(text.into()).into()
}

/// Reads the stored number of milliseconds by which the queue's clock is ahead of the monotonic clock with this
/// `origin`. `None`: the file has no number for this origin, or has no `clock` table because an earlier version of
/// hostler created it.
fn known(db: &Connection, origin: Option<&str>) -> rusqlite::Result<Option<i64>> {
    let Some(origin) = origin else { return Ok(None) };
    if !db.table_exists(None, "clock")? {
        return Ok(None);
    }
    db.query_row("SELECT ahead FROM clock WHERE origin = ?1", [origin], |row| row.get(0)).optional()
}

/// Sets the queue's clock to the wall-clock time, or to the enqueue time of the newest message if that is later.
/// Returns the number of milliseconds by which the queue's clock is ahead of the monotonic clock. Stores this number in
/// the file if the monotonic clock has an `origin`.
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
    // Both clocks are rounded down to milliseconds. Subtracting one millisecond ensures that the queue's time is not
    // ahead of the wall clock. The time is still not before the enqueue time of the newest message, so that message is
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

/// A unit of work on the file. If the transaction is rolled back, the same job may run a second time.
pub(super) trait Job: Send {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()>;
}

impl<F: FnMut(&Session<'_>) -> rusqlite::Result<()> + Send> Job for F {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        self(db)
    }
}

/// The connection to the file and the queue's clock, as a job uses them.
pub(super) struct Session<'a> {
    pub(super) db: &'a Connection,
    pub(super) time: &'a QueueTime,
}

impl Session<'_> {
    /// Returns the time of the queue's clock in milliseconds.
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
