//! Counts the messages of a queue. The queries read only indexes of the file, and no messages.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::clock::Session;
use hostler_queue::Depth;
use hostler_types::channel::Channel;

/// Returns the message counts of these channels. Counts all channels in one transaction, so that all counts describe
/// the same state of the file.
pub(super) fn depths(db: &Session<'_>, channels: &[Channel]) -> rusqlite::Result<Vec<Depth>> {
    let tx = Transaction::new_unchecked(db, TransactionBehavior::Deferred)?;
    channels.iter().map(|channel| depth(&tx, channel, db.now())).collect()
}

fn depth(db: &Connection, channel: &Channel, now: i64) -> rusqlite::Result<Depth> {
    let dead_lettered = match id(db, &channel.dead_letter_queue())? {
        Some(queue) => count(db, "SELECT count(*) FROM entry WHERE queue = ?1", &[&queue])?,
        None => 0,
    };
    let Some(queue) = id(db, channel.queue())? else {
        let none = Some(0);
        return Ok(Depth { delayed: none, in_flight: none, dead_lettered, missing: true, ..Depth::default() });
    };
    let visible = count(db, "SELECT count(*) FROM entry WHERE queue = ?1 AND visible_at <= ?2", &[&queue, &now])?;
    let blocked = count(db, "SELECT count(*) FROM entry WHERE queue = ?1 AND visible_at IS NULL", &[&queue])?;
    let (later, in_flight): (u32, u32) = db
        .prepare_cached("SELECT count(*), count(lease) FROM entry WHERE queue = ?1 AND visible_at > ?2")?
        .query_row(params![queue, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let oldest: Option<i64> = db
        .prepare_cached("SELECT enqueued_at FROM entry WHERE queue = ?1 ORDER BY enqueued_at LIMIT 1")?
        .query_row([queue], |row| row.get(0))
        .optional()?;
    Ok(Depth {
        // As in SQS, a message that waits for earlier messages of its group counts as visible.
        visible: visible + blocked,
        delayed: Some(u64::from(later - in_flight)),
        in_flight: Some(in_flight.into()),
        dead_lettered,
        missing: false,
        oldest_age: oldest.map(|at| Duration::from_millis(u64::try_from(now.saturating_sub(at)).unwrap_or(0))),
    })
}

fn id(db: &Connection, queue: &str) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT id FROM queue WHERE name = ?1")?.query_row([queue], |row| row.get(0)).optional()
}

fn count(db: &Connection, sql: &str, values: &[&dyn rusqlite::ToSql]) -> rusqlite::Result<u64> {
    db.prepare_cached(sql)?.query_row(values, |row| row.get::<_, u32>(0)).map(u64::from)
}
