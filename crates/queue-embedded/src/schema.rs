//! Layout of the queue's file: its tables and indexes. Creates indexes that are missing.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

/// Application id that marks an SQLite file as a hostler queue ("Hstl").
pub(super) const APPLICATION_ID: i32 = 0x4873_746c;

/// Version of the file layout that this hostler reads and writes.
pub(super) const VERSION: i32 = 1;

/// Tables that every queue file has. Does not contain the tables `clock`, `schedule` and `record`, which are created when they
/// are needed.
const TABLES: [&str; 5] = ["queue", "subscription", "content", "entry", "dedupe"];

/// Statements that create the tables.
///
/// A row of `entry` changes at every receive. The bodies, which may be large, are therefore in a separate table
/// `content`.
///
/// In an ordered queue, every entry has a `group_name`. All entries of a group except one are blocked: their
/// `visible_at` is null. When the unblocked entry is removed, the next entry of the group becomes visible. A receive
/// therefore needs only one index look-up, in ordered and other queues alike.
///
/// Times are milliseconds of the queue's own time (`QueueTime`), which all processes share. An entry is leased if it
/// has a `lease` and its `visible_at` is in the future.
const TABLES_SQL: &str = "
    CREATE TABLE queue (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        ordered INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE subscription (
        exchange TEXT NOT NULL,
        queue INTEGER NOT NULL,
        filter TEXT NOT NULL,
        PRIMARY KEY (exchange, queue)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE content (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        group_name TEXT,
        routing_key TEXT,
        attributes TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE entry (
        queue INTEGER NOT NULL,
        enqueued_at INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        visible_at INTEGER,
        due_at INTEGER NOT NULL,
        lease INTEGER,
        attempts INTEGER NOT NULL,
        group_name TEXT,
        PRIMARY KEY (queue, enqueued_at, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE dedupe (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        id TEXT NOT NULL,
        sent_at INTEGER NOT NULL,
        PRIMARY KEY (scope, key)
    ) STRICT, WITHOUT ROWID;
";

/// Names of the indexes, with the statements that create them. The first two are named in queries by `INDEXED BY`, which
/// fail without them. SQLite stores these statements in the file as they are written here.
const INDEXES: [(&str, &str); 3] = [
    ("entry_visible", "CREATE INDEX entry_visible ON entry (queue, visible_at)"),
    ("entry_group", "CREATE INDEX entry_group ON entry (queue, group_name, seq) WHERE group_name IS NOT NULL"),
    ("dedupe_age", "CREATE INDEX dedupe_age ON dedupe (sent_at)"),
];

/// Index of the table of records, which a file has if it has the table. Written like [`INDEXES`].
const RECORD_INDEX: (&str, &str) = ("record_expiry", "CREATE INDEX record_expiry ON record (expires_at)");

/// Creates all tables and indexes in an empty file.
pub(super) fn create(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(TABLES_SQL)?;
    INDEXES.iter().try_for_each(|(_, sql)| db.execute_batch(sql))?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", VERSION)
}

/// Creates the table of schedules, unless it exists. Hosts without schedules never create it, and older hosts leave it alone. Its
/// times are microseconds since 1970 by the wall clock.
pub(super) fn create_schedules(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS schedule (
            name TEXT PRIMARY KEY,
            definition TEXT NOT NULL,
            handled INTEGER NOT NULL,
            sent INTEGER,
            seen INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID",
    )
}

/// Returns `true` if the file has the table of schedules.
pub(super) fn has_schedules(db: &Connection) -> rusqlite::Result<bool> {
    // Not `table_exists`, which does not notice a table that another connection has created.
    db.prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schedule'")?.exists([])
}

/// Creates the table of idempotency records, unless it exists. Files without such records never have it, and older hosts leave it
/// alone.
///
/// `state` is 0 from the start of a run, and 1 once the run has finished. `leased_until` is the end of the run's lease, or the time
/// at which the run has finished. Times are milliseconds of the queue's own time.
///
/// The ids are random. The rows are therefore not in the order of the ids: a success then changes a page that was written lately, and
/// a run writes 40 % fewer bytes to the log than by a table `WITHOUT ROWID`.
pub(super) fn create_records(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS record (
            id BLOB PRIMARY KEY,
            label TEXT NOT NULL,
            body BLOB NOT NULL,
            token INTEGER NOT NULL,
            state INTEGER NOT NULL,
            leased_until INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            reply BLOB,
            unsent BLOB
        ) STRICT;
        CREATE INDEX IF NOT EXISTS record_expiry ON record (expires_at)",
    )
}

/// Returns `true` if the file has the table of idempotency records.
pub(super) fn has_records(db: &Connection) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'record'")?.exists([])
}

/// Returns the name of a table that the file lacks. `None`: the file has all tables.
pub(super) fn missing_table(db: &Connection) -> rusqlite::Result<Option<&'static str>> {
    for table in TABLES {
        if !db.table_exists(None, table)? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Creates the indexes that are missing, and replaces those that are defined in another way. Returns their names.
pub(super) fn restore_indexes(db: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    if damaged_indexes(db)?.is_empty() {
        return Ok(Vec::new());
    }
    let tx = Transaction::new_unchecked(db, TransactionBehavior::Immediate)?;
    // Another process may have created them in the meantime.
    let damaged = damaged_indexes(&tx)?;
    for (name, sql) in &damaged {
        tx.execute_batch(&format!("DROP INDEX IF EXISTS {name}; {sql};"))?;
    }
    tx.commit()?;
    Ok(damaged.into_iter().map(|(name, _)| name).collect())
}

/// Returns the indexes that are missing or defined in another way.
fn damaged_indexes(db: &Connection) -> rusqlite::Result<Vec<(&'static str, &'static str)>> {
    let mut query = db.prepare_cached("SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?1")?;
    let mut damaged = Vec::new();
    let of_records = has_records(db)?.then_some(RECORD_INDEX);
    for (name, sql) in INDEXES.into_iter().chain(of_records) {
        let stored: Option<String> = query.query_row([name], |row| row.get(0)).optional()?.flatten();
        if stored.as_deref() != Some(sql) {
            damaged.push((name, sql));
        }
    }
    Ok(damaged)
}

/// Part of the layout that a query did not find in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lacking {
    /// An index is missing, or defined in another way.
    Index,
    /// A table or a column is missing.
    Table,
}

impl Lacking {
    /// Returns what a failed query did not find. `None`: the query failed for another reason.
    pub(super) fn of(error: &rusqlite::Error) -> Option<Self> {
        let text = message(error)?;
        let is_any = |begins: &[&str]| begins.iter().any(|begin| text.starts_with(begin));
        if is_any(&["no such index", "no query solution"]) {
            Some(Self::Index)
        } else {
            is_any(&["no such table", "no such column"]).then_some(Self::Table)
        }
    }
}

/// Returns SQLite's own text of an error, without the query.
pub(super) fn message(error: &rusqlite::Error) -> Option<&str> {
    match error {
        rusqlite::Error::SqliteFailure(_, text) => text.as_deref(),
        rusqlite::Error::SqlInputError { msg, .. } => Some(msg),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use hostler_queue::{Broker, ChannelSpec, Receive, Settlement};
    use hostler_types::message::Outgoing;
    use tokio_util::sync::CancellationToken;

    use super::super::EmbeddedBroker;
    use super::*;

    const DAMAGE: [&str; 5] = [
        "DROP INDEX entry_visible",
        "DROP INDEX entry_group",
        "DROP INDEX dedupe_age",
        "DROP INDEX entry_visible; CREATE INDEX entry_visible ON entry (attempts)",
        "DROP INDEX entry_group; DROP INDEX entry_visible",
    ];

    fn damaged(path: &Path) -> usize {
        damaged_indexes(&Connection::open(path).unwrap()).unwrap().len()
    }

    #[test]
    fn an_open_creates_missing_indexes() {
        for damage in DAMAGE {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            drop(EmbeddedBroker::open(&path).unwrap());
            assert_eq!(damaged(&path), 0, "a new file has them all");
            Connection::open(&path).unwrap().execute_batch(damage).unwrap();
            assert!(damaged(&path) > 0, "{damage}");
            drop(EmbeddedBroker::open(&path).unwrap());
            assert_eq!(damaged(&path), 0, "{damage}");
        }
    }

    #[tokio::test]
    async fn an_index_that_is_dropped_under_a_consumer_holds_up_nothing() {
        for (ordered, damage) in [false, true].into_iter().flat_map(|ordered| DAMAGE.map(|damage| (ordered, damage))) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            let broker = EmbeddedBroker::open(&path).unwrap();
            let spec = ChannelSpec { ordered, ..ChannelSpec::new("jobs".parse().unwrap()) };
            let queue = broker.open(&spec).await.unwrap();
            let meddler = Connection::open(&path).unwrap();
            let send = async || {
                let sent = broker.send(&spec.channel, vec![Outgoing::default(); 2]).await;
                assert!(sent.iter().all(Result::is_ok), "{damage}: {sent:?}");
            };
            let receive = async || {
                let request = Receive { max: 1, wait: Duration::from_secs(20), lease: Duration::from_secs(30) };
                let received = queue.receive(request, &CancellationToken::new()).await;
                received.unwrap_or_else(|error| panic!("{damage}: {error}")).pop().unwrap()
            };
            send().await;
            let first = receive().await;
            meddler.execute_batch(damage).unwrap();
            let settled = queue.settle(vec![Settlement::Ack(first.receipt)]).await;
            assert!(settled[0].is_ok(), "{damage}: {settled:?}");
            receive().await;
            send().await;
        }
    }
}
