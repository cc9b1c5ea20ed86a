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

/// Like [`PREPARE`], for the records of keys, whose changes fail with those of all entries, or of an entry that does not exist.
const PREPARE_RECORDS: &str = "
    CREATE TRIGGER broken_record BEFORE UPDATE ON record WHEN EXISTS (SELECT 1 FROM broken WHERE ifnull(seq, -1) = -1)
    BEGIN SELECT RAISE(ABORT, 'broken'); END;
";

/// Number of an entry that does not exist.
pub const RECORDS: &str = "-1";

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
    /// Tokens of the runs whose success is recorded.
    recorded: BTreeSet<i64>,
    /// Numbers of the entries of messages that runs have sent.
    arrived: BTreeSet<i64>,
    /// Names of messages by their ids.
    names: BTreeMap<String, String>,
}

/// The queue file, with separate connections.
pub struct File {
    pub path: PathBuf,
    judge: Arc<Judge>,
    /// Set if the file keeps records of keys.
    is_keyed: bool,
    looks: Mutex<Connection>,
    breaks: Mutex<Connection>,
    seen: Mutex<Seen>,
    changed: Notify,
}

impl File {
    /// Opens an existing file. `is_keyed`: it keeps records of keys.
    pub fn new(path: &Path, judge: Arc<Judge>, is_keyed: bool) -> Self {
        let connect = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let db = Connection::open_with_flags(path, flags).unwrap();
            db.busy_timeout(Duration::ZERO).unwrap();
            Mutex::new(db)
        };
        let breaks = connect();
        breaks.lock().unwrap().execute_batch(PREPARE).unwrap();
        if is_keyed {
            breaks.lock().unwrap().execute_batch(PREPARE_RECORDS).unwrap();
        }
        let (path, seen, changed) = (path.to_owned(), Mutex::default(), Notify::new());
        Self { path, judge, is_keyed, looks: connect(), breaks, seen, changed }
    }

    /// Records the name of a message.
    pub fn identify(&self, id: &str, name: &str) {
        self.seen.lock().unwrap().names.insert(id.to_owned(), name.to_owned());
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
        // All is read as it is at one time.
        let snapshot = db.unchecked_transaction().unwrap();
        if self.is_keyed {
            self.look_at_records(&db, &mut seen);
        }
        let mut queues = BTreeMap::<String, BTreeSet<String>>::new();
        let mut select = db
            .prepare_cached(
                "SELECT queue.name, coalesce(json_extract(attributes, '$.name'), CAST(body AS TEXT)),
                     json_extract(attributes, '$.correlation-id') FROM entry JOIN content USING (seq) JOIN queue ON queue.id = queue",
            )
            .unwrap();
        let mut rows = select.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let answered = row.get::<_, Option<String>>(2).unwrap();
            let name = answered.and_then(|id| seen.names.get(&id).cloned());
            queues.entry(row.get(0).unwrap()).or_default().insert(name.unwrap_or_else(|| row.get(1).unwrap()));
        }
        drop(rows);
        drop(select);
        drop(snapshot);
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

    /// Reports successes that were recorded, and then messages of runs that have arrived.
    fn look_at_records(&self, db: &Connection, seen: &mut Seen) {
        let mut select = db.prepare_cached("SELECT id, token FROM record WHERE state = 1").unwrap();
        let done = select.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?))).unwrap();
        for (record, token) in done.map(Result::unwrap) {
            if seen.recorded.insert(token) {
                self.judge.recorded_in(&record, token);
            }
        }
        let mut select = db
            .prepare_cached(
                "SELECT seq, CAST(body AS TEXT) FROM entry JOIN content USING (seq) JOIN queue ON queue.id = queue WHERE queue.name = 'out'",
            )
            .unwrap();
        let sent = select.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).unwrap();
        for (seq, body) in sent.map(Result::unwrap) {
            if seen.arrived.insert(seq) {
                self.judge.arrived(&body);
            }
        }
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
