//! Moves messages that cannot be read to the dead-letter queue. Otherwise, these messages would block later messages.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Entry, Source, bury};
use crate::rows::{optional_text, read_attributes, sqlite_code, write_attributes};
use crate::topology::find_or_create;
use hostler_types::message::{AttributeValue, Attributes};

/// Maximum number of bytes of unreadable attributes to copy to the dead letter as text.
const KEPT: usize = 4096;

/// Name of the attribute that contains the stored text of unreadable attributes.
const UNREADABLE: &str = "hostler-unreadable-attributes";

/// A message that was set aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    /// Id of the message, with replacement characters for unreadable bytes.
    pub(crate) id: String,
    /// Name of the dead-letter queue to which the unreadable message was moved.
    pub(crate) queue: String,
    pub(crate) reason: String,
}

impl SetAside {
    /// Logs that the message was moved. Must be called only after the transaction that moved the message was committed.
    pub(crate) fn log(&self, channel: &str) {
        let Self { id, queue, reason } = self;
        tracing::error!(channel, message_id = id, dead_letter_queue = queue, reason, "unreadable message set aside");
    }
}

/// Returns `true` if an error concerns a single row rather than the file: the row contains a value that hostler did not
/// write, or the row is missing.
pub(crate) fn is_of_the_row(error: &rusqlite::Error) -> bool {
    sqlite_code(error).is_none()
}

/// Moves an entry that cannot be read to the dead-letter queue. If the queue has no dead-letter queue, creates one,
/// because the entry would otherwise block later messages.
pub(crate) fn set_aside(
    db: &Connection,
    source: &Source,
    entry: &Entry,
    error: &rusqlite::Error,
    now: i64,
) -> rusqlite::Result<SetAside> {
    let queue = source.dead_letter_name.clone();
    let target = match source.dead_letter {
        Some((target, _)) => target,
        None => find_or_create(db, &queue, source.ordered)?.id,
    };
    let id = lossy(db, "id", entry.seq())?.unwrap_or_default();
    let reason = match error {
        rusqlite::Error::QueryReturnedNoRows => "its content is missing in the queue's file".to_owned(),
        error => format!("it cannot be read from the queue's file: {error}"),
    };
    rescue(db, entry.seq())?;
    bury(db, source, entry, target, &reason, now)?;
    Ok(SetAside { id, queue, reason })
}

/// Rewrites the parts of an entry's content that cannot be read, and preserves as much of the content as possible.
/// Returns the new attributes.
pub(crate) fn rescue(db: &Connection, seq: i64) -> rusqlite::Result<Attributes> {
    let (id, group, key) = (lossy(db, "id", seq)?, lossy(db, "group_name", seq)?, lossy(db, "routing_key", seq)?);
    let attributes = match read_stored(db, seq) {
        Ok(readable) => readable,
        Err(_) => unreadable(lossy(db, "attributes", seq)?),
    };
    db.execute(
        "INSERT INTO content (seq, id, group_name, routing_key, attributes, body) VALUES (?1, ?2, ?3, ?4, ?5, x'')
         ON CONFLICT (seq) DO UPDATE SET id = ?2, group_name = ?3, routing_key = ?4, attributes = ?5",
        params![seq, id.unwrap_or_default(), group, key, write_attributes(&attributes)?],
    )?;
    Ok(attributes)
}

/// Reads the stored attributes of a message.
pub(crate) fn read_stored(db: &Connection, seq: i64) -> rusqlite::Result<Attributes> {
    db.prepare_cached("SELECT attributes FROM content WHERE seq = ?1")?
        .query_row([seq], |row| read_attributes(optional_text(row, 0, "attributes")?.as_deref()))
}

/// Returns attributes that contain the stored text of unreadable attributes, cut to [`KEPT`] bytes. Returns no
/// attributes if there is no text.
fn unreadable(stored: Option<String>) -> Attributes {
    let kept = stored.map(|mut text| {
        text.truncate(text.floor_char_boundary(KEPT));
        (UNREADABLE.to_owned(), AttributeValue::Text(text))
    });
    kept.into_iter().collect()
}

/// Returns a text column of a message's content, with replacement characters for invalid bytes. `None`: the column is
/// null, or the content is missing.
pub(crate) fn lossy(db: &Connection, column: &str, seq: i64) -> rusqlite::Result<Option<String>> {
    let bytes: Option<Option<Vec<u8>>> = db
        .query_row(&format!("SELECT CAST({column} AS BLOB) FROM content WHERE seq = ?1"), [seq], |row| row.get(0))
        .optional()?;
    Ok(bytes.flatten().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}
