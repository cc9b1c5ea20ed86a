//! Which queues there are, and which exchanges feed them.

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{read_filter, write_filter};
use crate::channel::{Channel, Filter};
use crate::queue::{ChannelSpec, DEFAULT_GROUP};

/// A queue that messages can be put into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) id: i64,
    pub(super) ordered: bool,
}

/// Where a message to a channel goes.
pub(super) enum Route {
    Queue(Target),
    /// To each of these whose filter passes.
    Exchange(Vec<(Target, Filter)>),
}

/// Declares what a consumer needs: its queue, dead-letter queue and subscription. Answers the ids of the two queues.
pub(super) fn declare(db: &Connection, spec: &ChannelSpec) -> rusqlite::Result<(i64, Option<i64>)> {
    let queue = declare_queue(db, spec.channel.queue(), spec.ordered)?;
    let dead_letter = match spec.max_receives {
        Some(_) => Some(declare_queue(db, &spec.channel.dead_letter_queue(), spec.ordered)?),
        None => None,
    };
    if let Some(exchange) = spec.channel.exchange() {
        db.execute(
            "INSERT INTO subscription (exchange, queue, filter) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET filter = excluded.filter",
            params![exchange, queue, write_filter(&spec.filter)?],
        )?;
    }
    Ok((queue, dead_letter))
}

fn declare_queue(db: &Connection, name: &str, ordered: bool) -> rusqlite::Result<i64> {
    let target = find_or_create(db, name, ordered)?;
    if target.ordered != ordered {
        reorder(db, target.id, ordered)?;
    }
    Ok(target.id)
}

pub(super) fn find(db: &Connection, name: &str) -> rusqlite::Result<Option<Target>> {
    db.prepare_cached("SELECT id, ordered FROM queue WHERE name = ?1")?
        .query_row([name], |row| Ok(Target { id: row.get(0)?, ordered: row.get(1)? }))
        .optional()
}

fn find_or_create(db: &Connection, name: &str, ordered: bool) -> rusqlite::Result<Target> {
    if let Some(target) = find(db, name)? {
        return Ok(target);
    }
    db.execute("INSERT INTO queue (name, ordered) VALUES (?1, ?2)", params![name, ordered])?;
    Ok(Target { id: db.last_insert_rowid(), ordered })
}

/// A sender may come before the consumer that says what kind of queue it is, so a queue with messages can change.
fn reorder(db: &Connection, queue: i64, ordered: bool) -> rusqlite::Result<()> {
    db.execute("UPDATE queue SET ordered = ?2 WHERE id = ?1", params![queue, ordered])?;
    if ordered {
        db.execute(
            "UPDATE entry SET group_name = (
                 SELECT coalesce(content.group_name, ?2) FROM content WHERE content.seq = entry.seq
             ) WHERE queue = ?1",
            params![queue, DEFAULT_GROUP],
        )?;
        db.execute(
            "UPDATE entry SET visible_at = NULL, lease = NULL WHERE queue = ?1 AND EXISTS (
                 SELECT 1 FROM entry AS earlier
                 WHERE earlier.queue = ?1 AND earlier.group_name = entry.group_name AND earlier.seq < entry.seq
             )",
            [queue],
        )?;
    } else {
        db.execute(
            "UPDATE entry SET group_name = NULL, visible_at = coalesce(visible_at, due_at) WHERE queue = ?1",
            [queue],
        )?;
    }
    Ok(())
}

/// Where messages to `channel` go. What a sender names comes into being: a message must not be lost because its
/// consumer has not been started yet.
pub(super) fn route(db: &Connection, channel: &Channel) -> rusqlite::Result<Route> {
    let Some(exchange) = channel.exchange() else {
        if let Some(target) = find(db, channel.queue())? {
            return Ok(Route::Queue(target));
        }
        let subscriptions = subscriptions(db, channel.queue())?;
        if !subscriptions.is_empty() {
            return Ok(Route::Exchange(subscriptions));
        }
        return find_or_create(db, channel.queue(), false).map(Route::Queue);
    };
    let target = find_or_create(db, channel.queue(), false)?;
    db.prepare_cached("INSERT OR IGNORE INTO subscription (exchange, queue, filter) VALUES (?1, ?2, ?3)")?
        .execute(params![exchange, target.id, write_filter(&Filter::All)?])?;
    subscriptions(db, exchange).map(Route::Exchange)
}

fn subscriptions(db: &Connection, exchange: &str) -> rusqlite::Result<Vec<(Target, Filter)>> {
    db.prepare_cached(
        "SELECT queue.id, queue.ordered, subscription.filter
         FROM subscription JOIN queue ON queue.id = subscription.queue WHERE subscription.exchange = ?1",
    )?
    .query_map([exchange], |row| {
        let target = Target { id: row.get(0)?, ordered: row.get(1)? };
        Ok((target, read_filter(row.get_ref(2)?.as_str()?)?))
    })?
    .collect()
}

/// Whether the queue keeps the order within groups.
pub(super) fn is_ordered(db: &Connection, queue: i64) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT ordered FROM queue WHERE id = ?1")?.query_row([queue], |row| row.get(0))
}

/// The names of all channels; a queue of several exchanges goes by the first.
pub(super) fn channels(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.prepare(
        "SELECT coalesce(min(subscription.exchange) || '.', '') || queue.name
         FROM queue LEFT JOIN subscription ON subscription.queue = queue.id GROUP BY queue.id ORDER BY queue.name",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}
