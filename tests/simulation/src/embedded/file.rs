//! The queue's file as others see it: what is in it is told to the judge, and what can go wrong with it does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Notify;

use super::super::judge::Judge;
use super::super::site::until;

/// What makes a change of any entry, or of one, fail.
const BREAK: &str = "
    CREATE TRIGGER broken_update BEFORE UPDATE ON entry WHEN ROW BEGIN SELECT RAISE(ABORT, 'broken'); END;
    CREATE TRIGGER broken_delete BEFORE DELETE ON entry WHEN ROW BEGIN SELECT RAISE(ABORT, 'broken'); END;
";
const MEND: &str = "DROP TRIGGER IF EXISTS broken_update; DROP TRIGGER IF EXISTS broken_delete;";

/// What the file was last seen to hold.
#[derive(Debug, Default)]
struct Seen {
    /// The last `PRAGMA data_version`.
    version: i64,
    /// Messages that were put into the queue, and are in it.
    present: BTreeSet<String>,
    /// How many were put.
    put: usize,
    copied: BTreeSet<String>,
    replied: BTreeSet<String>,
}

/// The file, by connections of its own.
pub struct File {
    pub path: PathBuf,
    judge: Arc<Judge>,
    looks: Mutex<Connection>,
    breaks: Mutex<Connection>,
    seen: Mutex<Seen>,
    changed: Notify,
}

impl File {
    /// Looks at a file that is there.
    pub fn new(path: &Path, judge: Arc<Judge>) -> Self {
        let connect = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let db = Connection::open_with_flags(path, flags).unwrap();
            db.busy_timeout(Duration::ZERO).unwrap();
            Mutex::new(db)
        };
        Self {
            path: path.to_owned(),
            judge,
            looks: connect(),
            breaks: connect(),
            seen: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// A message was put into the queue.
    pub fn put(&self, name: &str) {
        let mut seen = self.seen.lock().unwrap();
        seen.present.insert(name.to_owned());
        seen.put += 1;
        // It may be gone already.
        seen.version = 0;
        drop(seen);
        self.look();
    }

    /// Tells the judge what has changed since the last look: replies, then copies in the dead-letter queue, then what is gone.
    pub fn look(&self) {
        let db = self.looks.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        let version = db.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0)).unwrap();
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

    /// Returns once so many messages were put, and none of them is left.
    pub async fn until_empty(&self, count: usize) {
        let is_empty = || {
            let seen = self.seen.lock().unwrap();
            seen.put >= count && seen.present.is_empty()
        };
        until(&self.changed, is_empty).await;
    }

    /// Locks the file against every change; whether that was possible.
    pub fn lock(&self) -> bool {
        self.breaks.lock().unwrap().execute_batch("BEGIN IMMEDIATE").is_ok()
    }

    /// Ends the lock.
    pub fn unlock(&self) {
        self.breaks.lock().unwrap().execute_batch("ROLLBACK").unwrap();
    }

    /// Makes the change of one entry fail, or of every; whether that was possible.
    pub fn spoil(&self, seq: Option<&str>) -> bool {
        let row = seq.map_or("1".to_owned(), |seq| format!("OLD.seq = {seq}"));
        self.breaks.lock().unwrap().execute_batch(&BREAK.replace("ROW", &row)).is_ok()
    }

    /// Lets entries be changed again.
    pub fn mend(&self) {
        self.breaks.lock().unwrap().execute_batch(MEND).unwrap();
    }

    /// Moves the file away from its path.
    pub fn hide(&self) {
        fs::rename(&self.path, self.aside()).unwrap();
    }

    /// Moves it back.
    pub fn show(&self) {
        fs::rename(self.aside(), &self.path).unwrap();
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("aside")
    }
}
