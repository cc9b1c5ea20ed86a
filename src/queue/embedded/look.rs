//! Looks at what is in a queue, and leaves it as it is.

use rusqlite::{Connection, params};

use super::lease::message;
use crate::message::Message;

/// How many messages one look reads, so that large ones do not fill the memory.
const PAGE: i64 = 16;

/// The place of a message in its queue: by when it was sent, and then as it came.
pub(super) type Place = (i64, i64);

/// The messages behind this place, the oldest first, each with its own.
pub(super) fn page(db: &Connection, queue: i64, after: Place) -> rusqlite::Result<Vec<(Place, Message)>> {
    db.prepare_cached(
        "SELECT content.id, content.group_name, routing_key, attributes, body, entry.enqueued_at, entry.seq
         FROM entry JOIN content ON content.seq = entry.seq
         WHERE entry.queue = ?1 AND (entry.enqueued_at, entry.seq) > (?2, ?3)
         ORDER BY entry.enqueued_at, entry.seq LIMIT ?4",
    )?
    .query_map(params![queue, after.0, after.1, PAGE], |row| {
        let place: Place = (row.get(5)?, row.get(6)?);
        Ok((place, message(row, place.0)?))
    })?
    .collect()
}
