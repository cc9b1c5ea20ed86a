//! The file of a queue: creates the file, or checks that it is a hostler queue, and converts SQLite errors.

use std::cell::Cell;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Transaction, TransactionBehavior, ffi};
use rustix::process::{Resource, getrlimit};

use super::clock::{Clock, QueueTime};
use super::companions::{self, Claim, ClaimError, Foreign, Wal, WalState};
use super::rows::sqlite_code;
use super::schema::{self, Lacking};
use super::{Sharing, Worker};
use hostler_queue::QueueError;

/// Maximum time to wait for a lock that another process holds.
const BUSY: Duration = Duration::from_secs(5);

/// An opened queue file.
pub(super) struct Opened {
    pub(super) db: Connection,
    pub(super) path: PathBuf,
    pub(super) time: QueueTime,
    /// The claim on the file. `None`: there was no file at the path, so this is an empty queue in memory.
    claim: Option<Claim>,
    /// The `-wal` file. `None`: the queue is in memory.
    wal: Option<Wal>,
}

impl Opened {
    /// Checks that the opened file is still at the queue's path, and that its `-wal` is still beside it. A write to a
    /// file that was removed or replaced would be lost.
    pub(super) fn still_there(&self) -> Result<(), QueueError> {
        // An open queue's file contains at least a header, so an empty file was emptied by another process.
        match self.found() {
            _ if self.claim.is_none() => return Ok(()),
            Some(file) if file.len() == 0 => return Err(refusal(&self.path, Foreign::Emptied)),
            Some(_) => return self.wal_fault().map_or(Ok(()), |foreign| Err(refusal(&self.path, foreign))),
            None => {}
        }
        Err(QueueError::Refused(format!(
            "the queue `{}` was removed or replaced by another file while it was open: put it back, \
             or restart hostler to use what is at this path now",
            self.path.display()
        )))
    }

    /// Returns the metadata of the opened file. `None`: the file is no longer at the queue's path.
    fn found(&self) -> Option<Metadata> {
        let found = fs::metadata(&self.path).ok();
        found.filter(|file| self.claim.as_ref().is_some_and(|claim| claim.is_of(file)))
    }

    /// Returns the fault of the `-wal` file. `None`: the `-wal` is as SQLite left it.
    ///
    /// If another program has removed the `-wal`, this process still has the removed file open and can read the
    /// messages in it. No other file contains these messages, so this function writes them into the queue's file.
    fn wal_fault(&self) -> Option<Foreign> {
        let wal = self.wal.as_ref()?;
        let state = wal.state();
        let is_emptied = match state {
            WalState::Filled => return None,
            WalState::Missing => {
                // If this fails, the next check or the end of this process tries again.
                let _ = self.checkpoint("PASSIVE");
                return Some(Foreign::WalRemoved);
            }
            WalState::Overwritten => self.checkpoint("NOOP").is_ok_and(|(pages, _)| pages > 0),
            WalState::Empty => self.checkpoint("NOOP").is_ok_and(|(pages, moved)| pages > moved),
        };
        // SQLite may have written the first message in the meantime.
        (is_emptied && wal.state() == state).then_some(Foreign::WalEmptied)
    }

    /// Returns `true` if the `-wal` that this process has just opened is not the one that other processes have open. If
    /// another program removes that one after the check of the companions, SQLite creates a new one, but goes on with the
    /// shared index of the removed one. A commit would overwrite that index, and the other processes would then write the
    /// wrong pages of the removed `-wal` into the queue's file.
    ///
    /// SQLite never leaves pages in the index when it empties a `-wal`.
    fn has_wal_of_its_own(&self) -> bool {
        let is_empty = || self.wal.as_ref().is_some_and(|wal| wal.state() == WalState::Empty);
        // Another process may have written to an empty `-wal` in the meantime.
        is_empty() && self.checkpoint("NOOP").is_ok_and(|(pages, _)| pages > 0) && is_empty()
    }

    /// Empties an overwritten `-wal` that SQLite ignores. SQLite ignores it if no process had it open when it was
    /// overwritten. If it were not emptied, other processes would conclude that it was overwritten while this process
    /// had it open.
    fn empty_ignored_wal(&self) {
        let is_overwritten = self.wal.as_ref().is_some_and(|wal| wal.state() == WalState::Overwritten);
        if is_overwritten && self.checkpoint("NOOP").is_ok_and(|(pages, _)| pages == 0) {
            let _ = self.checkpoint("TRUNCATE");
        }
    }

    /// Runs a checkpoint, which writes messages from the `-wal` into the queue's file. In the mode `NOOP`, writes
    /// nothing. Returns the number of pages in the `-wal`, and the number of those pages that are already in the
    /// queue's file.
    fn checkpoint(&self, mode: &str) -> rusqlite::Result<(i64, i64)> {
        self.db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
    }

    /// Creates missing indexes if `error` is due to them. Returns `true` if the failed work may be tried again, also
    /// because another process has created the indexes in the meantime.
    pub(super) fn restore_indexes(&self, error: &rusqlite::Error) -> bool {
        Lacking::of(error) == Some(Lacking::Index) && restore_indexes(&self.db, &self.path).is_ok()
    }

    /// Returns the error for a change of the file that keeps hostler from going on.
    pub(super) fn refusal(&self, fault: &str) -> QueueError {
        QueueError::Refused(format!("in the queue `{}`, {fault}", self.path.display()))
    }

    /// Converts an SQLite error on this file.
    pub(super) fn fault(&self, error: &rusqlite::Error) -> QueueError {
        fault(&self.path, error)
    }
}

impl Drop for Opened {
    /// Writes the messages in the `-wal` file to the queue's file if one of the two is no longer at its path. SQLite does
    /// not do so when it closes a file that was moved. Writes nothing from a `-wal` that was emptied, because that would
    /// damage the queue's file. Writes nothing to a file that was deleted if the messages can be read from the `-wal`.
    fn drop(&mut self) {
        match self.found() {
            Some(_) if self.wal_fault() == Some(Foreign::WalEmptied) => {
                let _ = self.db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            }
            None if self.claim.as_ref().is_some_and(|claim| claim.needs_wal_of_deleted(&self.path)) => {}
            // If this fails, the messages stay in the `-wal` file, which is not removed.
            None if self.claim.is_some() => drop(self.checkpoint("TRUNCATE")),
            _ => {}
        }
    }
}

/// Opens the queue at `path`. Creates a missing file.
pub(super) fn open(path: &Path, clock: Arc<dyn Clock>, worker: Worker, sharing: Sharing) -> Result<Opened, QueueError> {
    let claim = companions::claim(path).map_err(|error| unclaimed(path, error))?;
    let db = connect(path, worker, sharing).map_err(|error| error.of(path))?;
    let time = QueueTime::of(&db, clock).map_err(|error| fault(path, &error))?;
    let wal = Wal::of(path).map_err(|error| unclaimed(path, error))?;
    let opened = Opened { db, path: path.to_owned(), time, claim: Some(claim), wal };
    opened.empty_ignored_wal();
    opened.still_there()?;
    if opened.has_wal_of_its_own() {
        return Err(refusal(path, Foreign::WalRemoved));
    }
    Ok(opened)
}

/// Opens the queue read-only. If the file is missing, opens an empty queue in memory instead of creating the file.
pub(super) fn open_to_look(path: &Path, clock: Arc<dyn Clock>) -> Result<Opened, QueueError> {
    let opened = match path.try_exists() {
        Ok(false) => {
            companions::check(path).map_err(|error| unclaimed(path, error))?;
            empty(path, clock).map_err(|error| error.of(path))?
        }
        Ok(true) | Err(_) => open(path, clock, Worker::Thread, Sharing::Processes)?,
    };
    opened.db.pragma_update(None, "query_only", true).map_err(|error| opened.fault(&error))?;
    Ok(opened)
}

/// Opens an empty queue in memory. `path` appears only in error messages.
fn empty(path: &Path, clock: Arc<dyn Clock>) -> Result<Opened, OpenError> {
    let db = Connection::open_in_memory()?;
    create(&db, path)?;
    let time = QueueTime::of(&db, clock)?;
    Ok(Opened { db, path: path.to_owned(), time, claim: None, wal: None })
}

fn refusal(path: &Path, foreign: Foreign) -> QueueError {
    QueueError::Refused(foreign.text(path))
}

fn unclaimed(path: &Path, error: ClaimError) -> QueueError {
    match error {
        ClaimError::Foreign(foreign) => refusal(path, foreign),
        ClaimError::Io(file, error) => cannot_open(&file, &error),
    }
}

fn cannot_open(path: &Path, error: &io::Error) -> QueueError {
    let cure = match error.kind() {
        io::ErrorKind::NotFound => "create its folder, or name another path",
        io::ErrorKind::IsADirectory => "it is a folder; name a file in it",
        io::ErrorKind::InvalidInput => "name another path",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the file, its -wal and -shm files, and its folder must be writable for this user"
        }
        _ => "hostler must be able to read and write the file, its -wal and -shm files, and its folder",
    };
    QueueError::Refused(format!("cannot open the queue `{}`: {error}; {cure}", path.display()))
}

enum OpenError {
    Sql(rusqlite::Error),
    Refused(String),
}

impl OpenError {
    fn of(self, path: &Path) -> QueueError {
        match self {
            Self::Sql(error) => fault(path, &error),
            Self::Refused(text) => QueueError::Refused(text),
        }
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

fn connect(path: &Path, worker: Worker, sharing: Sharing) -> Result<Connection, OpenError> {
    let mut db =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_handler((worker == Worker::Thread).then_some(wait_for_lock as fn(i32) -> bool))?;
    db.set_prepared_statement_cache_capacity(64);
    // Otherwise SQLite compiles a statement again whenever one of its parameters that could matter for the query plan
    // changes, such as the parameter of a LIMIT.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if sharing == Sharing::None {
        // Must come before the first access: SQLite then needs no memory that it shares with other processes.
        db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    }
    if db.is_readonly(MAIN_DB)? {
        return Err(OpenError::Refused(format!("the queue `{}` is read-only for this user", path.display())));
    }
    // A single transaction prevents another process from creating the queue between the queries.
    let fresh = is_fresh(&*Transaction::new_unchecked(&db, TransactionBehavior::Deferred)?, path)?;
    if !use_wal(&db)? {
        let text = format!("the queue `{}` must be on a local disk: SQLite cannot share it here", path.display());
        return Err(OpenError::Refused(text));
    }
    db.execute_batch(
        "PRAGMA journal_size_limit = 67108864; PRAGMA wal_autocheckpoint = 4000; PRAGMA cache_size = -8192; \
         PRAGMA temp_store = MEMORY;",
    )?;
    if fresh {
        create(&db, path)?;
    }
    restore_indexes(&db, path)?;
    Ok(db)
}

/// Returns `true` if the file is empty. Fails if the file contains anything other than a hostler queue.
fn is_fresh(db: &Connection, path: &Path) -> Result<bool, OpenError> {
    let application: i32 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let objects: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (schema::APPLICATION_ID, schema::VERSION) => match schema::missing_table(db)? {
            Some(table) => Err(OpenError::Refused(damaged(path, &format!("its table `{table}` is missing")))),
            None => Ok(false),
        },
        (schema::APPLICATION_ID, _) => Err(OpenError::Refused(format!(
            "the queue `{}` has layout {version}, this hostler knows {}: use the hostler that wrote it, or another path",
            path.display(),
            schema::VERSION
        ))),
        (0, 0) if objects == 0 => Ok(true),
        _ => {
            let text = format!("`{}` is a database, but not a hostler queue: name another path", path.display());
            Err(OpenError::Refused(text))
        }
    }
}

/// Creates the tables. If another process has created the tables in the meantime, changes nothing.
fn create(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let tx = Transaction::new_unchecked(db, TransactionBehavior::Immediate)?;
    if is_fresh(&tx, path)? {
        schema::create(&tx)?;
    }
    Ok(tx.commit()?)
}

/// Creates the indexes that are missing, and logs their names.
fn restore_indexes(db: &Connection, path: &Path) -> rusqlite::Result<()> {
    let restored = schema::restore_indexes(db)?;
    if !restored.is_empty() {
        let (path, indexes) = (path.display(), restored.join(", "));
        tracing::warn!(%path, indexes, "the queue's file lacked indexes; they were created anew");
    }
    Ok(())
}

/// Enables SQLite's write-ahead log. Returns `false` if the filesystem does not support the log. Waits while another
/// process holds a lock, because SQLite does not call the busy handler for this operation.
#[allow(clippy::disallowed_methods, reason = "the release of another process's file lock causes no event")]
fn use_wal(db: &Connection) -> rusqlite::Result<bool> {
    let started = Instant::now();
    loop {
        let mode = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match mode {
            Err(error) if is_busy(&error) && started.elapsed() < BUSY => thread::sleep(Duration::from_millis(2)),
            mode => return Ok(mode?.eq_ignore_ascii_case("wal")),
        }
    }
}

/// Busy handler: waits 1 ms before SQLite's next attempt to acquire a lock. Returns `false` after [`BUSY`], which makes
/// SQLite give up. SQLite's own busy handler may sleep for 100 ms between attempts, which would delay a receive call.
#[allow(clippy::disallowed_methods, reason = "the release of another process's file lock causes no event")]
fn wait_for_lock(tries: i32) -> bool {
    thread_local!(static ASKED_FIRST: Cell<Option<Instant>> = const { Cell::new(None) });
    let now = Instant::now();
    if tries == 0 {
        ASKED_FIRST.set(Some(now));
    }
    thread::sleep(Duration::from_millis(1));
    ASKED_FIRST.get().is_some_and(|first| now.duration_since(first) < BUSY)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Converts an SQLite error on the queue `file` into the error for the caller.
fn fault(file: &Path, error: &rusqlite::Error) -> QueueError {
    let path = file.display();
    let refused = |text| QueueError::Refused(text);
    let text = schema::message(error).map_or_else(|| error.to_string(), str::to_owned);
    match Lacking::of(error) {
        Some(Lacking::Index) => {
            return QueueError::Unavailable(format!(
                "the queue `{path}` lacks an index ({text}), and it cannot be created anew: make sure that the disk has free \
                 space and that no other program has locked the file"
            ));
        }
        Some(Lacking::Table) => return refused(damaged(file, &text)),
        None => {}
    }
    match sqlite_code(error) {
        // While a process creates a queue, the file is empty and locked, but only for milliseconds. The busy handler
        // waits longer. If the file is empty and still locked after the wait, the file was emptied after its creation.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
            if fs::metadata(file).is_ok_and(|file| file.len() == 0) =>
        {
            refused(Foreign::Emptied.text(file))
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            QueueError::Unavailable(format!("another process has locked the queue `{path}`"))
        }
        Some(ErrorCode::DiskFull) => {
            QueueError::Unavailable(format!("the disk of the queue `{path}` is full: free some space"))
        }
        Some(ErrorCode::NotADatabase) => {
            refused(format!("`{path}` is not a hostler queue: set queue.embedded.path to another file"))
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            refused(format!("cannot write the queue `{path}` ({error}): its folder must be writable for this user"))
        }
        // Another command may have created an empty `-wal` in place of one that was removed.
        Some(ErrorCode::SystemIoFailure)
            if extended_code(error) == ffi::SQLITE_IOERR_SHORT_READ && WalState::of(file) != WalState::Filled =>
        {
            refused(Foreign::WalEmptied.text(file))
        }
        Some(ErrorCode::SystemIoFailure) => {
            let limit = getrlimit(Resource::Fsize).current;
            QueueError::Unavailable(format!(
                "the queue `{path}` failed: {error}; check that its disk works and has free space{}",
                size_hint(limit)
            ))
        }
        // An error without an SQLite code concerns a stored value that hostler did not write.
        Some(ErrorCode::DatabaseCorrupt) | None => refused(damaged(file, &text)),
        Some(_) => QueueError::Unavailable(format!("the queue `{path}` failed: {text}")),
    }
}

/// Returns a hint about `limit`, the maximum file size, for the message of an I/O error. SQLite does not tell which I/O
/// errors are due to this limit.
fn size_hint(limit: Option<u64>) -> String {
    let hint =
        |limit| format!("; if a file has reached the limit of its size ({limit} bytes), raise that (`ulimit -f`)");
    limit.map(hint).unwrap_or_default()
}

fn extended_code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(ffi::SQLITE_OK, |error| error.extended_code)
}

fn damaged(file: &Path, how: &str) -> String {
    format!(
        "the queue `{}` is damaged ({how}): put a sound copy in its place; or, to give up its messages and those in \
         its -wal file, move it away with its -wal and -shm files to start with an empty one",
        file.display()
    )
}

#[cfg(test)]
mod tests;
