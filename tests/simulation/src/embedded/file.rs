//! Queue file as seen from outside: reports its content to the judge, and simulates faults of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Notify;

use super::super::judge::Judge;
use super::super::site::until;

/// SQL that prepares the file for [`File::spoil`]. The triggers stay, because every new or dropped trigger would make all processes
/// prepare their statements again.
const PREPARE: &str = "
    CREATE TABLE broken (seq INTEGER);
    CREATE TRIGGER broken_update BEFORE UPDATE ON entry WHEN EXISTS (SELECT 1 FROM broken WHERE ifnull(seq, OLD.seq) = OLD.seq)
    BEGIN SELECT RAISE(ABORT, 'broken'); END;
    CREATE TRIGGER broken_delete BEFORE DELETE ON entry WHEN EXISTS (SELECT 1 FROM broken WHERE ifnull(seq, OLD.seq) = OLD.seq)
    BEGIN SELECT RAISE(ABORT, 'broken'); END;
";

/// Content of the file at the last inspection.
#[derive(Debug, Default)]
struct Seen {
    /// Last value of `PRAGMA data_version`.
    version: i64,
    /// Messages that were sent to the queue and are still there.
    present: BTreeSet<String>,
    /// Number of messages that were sent.
    put: usize,
    copied: BTreeSet<String>,
    replied: BTreeSet<String>,
}

/// The queue file, with separate connections.
pub struct File {
    pub path: PathBuf,
    judge: Arc<Judge>,
    looks: Mutex<Connection>,
    breaks: Mutex<Connection>,
    seen: Mutex<Seen>,
    changed: Notify,
}

impl File {
    /// Opens an existing file.
    pub fn new(path: &Path, judge: Arc<Judge>) -> Self {
        let connect = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let db = Connection::open_with_flags(path, flags).unwrap();
            db.busy_timeout(Duration::ZERO).unwrap();
            Mutex::new(db)
        };
        let breaks = connect();
        breaks.lock().unwrap().execute_batch(PREPARE).unwrap();
        Self { path: path.to_owned(), judge, looks: connect(), breaks, seen: Mutex::default(), changed: Notify::new() }
    }

    /// Records that a message was sent to the queue.
    pub fn put(&self, name: &str) {
        let mut seen = self.seen.lock().unwrap();
        seen.present.insert(name.to_owned());
        seen.put += 1;
        // The message may already have been removed.
        seen.version = 0;
        drop(seen);
        self.look();
    }

    /// Reports the changes since the last inspection to the judge: replies, then copies in the dead-letter queue, then removed
    /// messages.
    pub fn look(&self) {
        let db = self.looks.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        let mut version = db.prepare_cached("PRAGMA data_version").unwrap();
        let version = version.query_row([], |row| row.get::<_, i64>(0)).unwrap();
        if version == seen.version {
            return;
        }
        seen.version = version;
        let mut queues = BTreeMap::<String, BTreeSet<String>>::new();
        let mut select = db
            .prepare_cached(
                "SELECT queue.name, CAST(body AS TEXT) FROM entry JOIN content USING (seq) JOIN queue ON queue.id = queue",
            )
            .unwrap();
        let mut rows = select.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            queues.entry(row.get(0).unwrap()).or_default().insert(row.get(1).unwrap());
        }
        let held = |queue: &str| queues.get(queue).cloned().unwrap_or_default();
        for name in held("replies") {
            if seen.replied.insert(name.clone()) {
                self.judge.replied(&name);
            }
        }
        for name in held("work-dlq") {
            if seen.copied.insert(name.clone()) {
                self.judge.copied(&name);
            }
        }
        let work = held("work");
        let gone: Vec<_> = seen.present.difference(&work).cloned().collect();
        for name in gone {
            seen.present.remove(&name);
            self.judge.removed(&name);
        }
        drop(seen);
        self.changed.notify_waiters();
    }

    /// Returns when `count` messages have been sent and none is left.
    pub async fn until_empty(&self, count: usize) {
        let is_empty = || {
            let seen = self.seen.lock().unwrap();
            seen.put >= count && seen.present.is_empty()
        };
        until(&self.changed, is_empty).await;
    }

    /// Locks the file against all changes. Returns true on success.
    pub fn lock(&self) -> bool {
        self.breaks.lock().unwrap().execute_batch("BEGIN IMMEDIATE").is_ok()
    }

    /// Releases the lock.
    pub fn unlock(&self) {
        self.breaks.lock().unwrap().execute_batch("ROLLBACK").unwrap();
    }

    /// Makes changes of one entry, or of all entries, fail. Returns true on success.
    pub fn spoil(&self, seq: Option<&str>) -> bool {
        self.breaks.lock().unwrap().execute("INSERT INTO broken VALUES (?1)", [seq]).is_ok()
    }

    /// Allows changes of entries again.
    pub fn mend(&self) {
        self.breaks.lock().unwrap().execute_batch("DELETE FROM broken").unwrap();
    }

    /// Moves the file away from its path.
    pub fn hide(&self) {
        fs::rename(&self.path, self.aside()).unwrap();
    }

    /// Moves the file back to its path.
    pub fn show(&self) {
        fs::rename(self.aside(), &self.path).unwrap();
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("aside")
    }
}
