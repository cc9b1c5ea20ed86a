//! Reads the messages of a queue without changing them.

use std::time::SystemTime;

use rusqlite::{Row, params};

use super::clock::Session;
use super::lease::is_of_the_row;
use super::lease::message;
use hostler_queue::REASON_ATTRIBUTE;
use hostler_types::message::{AttributeValue, Attributes, Message};

/// Maximum number of messages per page. Limits the memory that large messages need.
const PAGE: i64 = 16;

/// Position of a message in its queue: send time and sequence number.
pub(super) type Place = (i64, i64);

/// Returns a page of messages after the position `after`, oldest first, each with its position.
pub(super) fn page(db: &Session<'_>, queue: i64, after: Place) -> rusqlite::Result<Vec<(Place, Message)>> {
    db.prepare_cached(
        "SELECT content.id, content.group_name, routing_key, attributes, body, entry.enqueued_at, entry.seq
         FROM entry JOIN content ON content.seq = entry.seq
         WHERE entry.queue = ?1 AND (entry.enqueued_at, entry.seq) > (?2, ?3)
         ORDER BY entry.enqueued_at, entry.seq LIMIT ?4",
    )?
    .query_map(params![queue, after.0, after.1, PAGE], |row| {
        let place: Place = (row.get(5)?, row.get(6)?);
        let enqueued_at = db.time.to_wall(place.0);
        match message(row, enqueued_at) {
            Err(error) if is_of_the_row(&error) => Ok((place, stand_in(row, enqueued_at, &error)?)),
            message => Ok((place, message?)),
        }
    })?
    .collect()
}

/// Returns a message with the readable parts of a row that cannot be read completely. An attribute of the message
/// contains the reason.
fn stand_in(row: &Row<'_>, enqueued_at: SystemTime, error: &rusqlite::Error) -> rusqlite::Result<Message> {
    let text = |column| -> rusqlite::Result<Option<String>> {
        let bytes = row.get_ref(column)?.as_bytes_or_null().unwrap_or_default();
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    let reason = AttributeValue::Text(format!("it cannot be read from the queue's file: {error}"));
    Ok(Message {
        id: text(0)?.unwrap_or_default(),
        group: text(1)?,
        routing_key: text(2)?,
        trace: None,
        attributes: Attributes::from([(REASON_ATTRIBUTE.to_owned(), reason)]),
        body: row.get_ref(4)?.as_bytes_or_null().unwrap_or_default().unwrap_or_default().to_vec().into(),
        enqueued_at,
        claim: None,
    })
}
