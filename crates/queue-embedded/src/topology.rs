//! Queues, and the exchanges that send messages to queues.

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{read_filter, text, write_filter};
use hostler_queue::{ChannelSpec, DEFAULT_GROUP};
use hostler_types::channel::{Channel, Filter};

/// A queue to which messages are sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) id: i64,
    pub(super) ordered: bool,
}

/// Destination of messages to a channel.
pub(super) enum Route {
    Queue(Target),
    /// Every subscribed queue whose filter matches the message.
    Exchange(Vec<(Target, Filter)>),
}

/// The queue of a channel, and its dead-letter queue if one exists.
pub(super) struct Queues {
    pub(super) queue: Target,
    pub(super) dead_letters: Option<Target>,
}

/// Creates the missing resources of a consumer: queue, dead-letter queue and subscription. Leaves existing resources
/// unchanged.
pub(super) fn declare(db: &Connection, spec: &ChannelSpec) -> rusqlite::Result<Queues> {
    let queue = find_or_create(db, spec.channel.queue(), spec.ordered)?;
    let dead_letters = match spec.max_receives {
        Some(_) => Some(find_or_create(db, &spec.channel.dead_letter_queue(), spec.ordered)?),
        None => None,
    };
    if let Some(exchange) = spec.channel.exchange() {
        subscribe(db, exchange, queue, &spec.filter)?;
    }
    Ok(Queues { queue, dead_letters })
}

/// Creates the missing resources of a consumer, and changes existing resources to match the consumer's settings.
pub(super) fn establish(db: &Connection, spec: &ChannelSpec) -> rusqlite::Result<Queues> {
    let queues = declare(db, spec)?;
    for target in std::iter::once(queues.queue).chain(queues.dead_letters) {
        if target.ordered != spec.ordered {
            reorder(db, target.id, spec.ordered)?;
        }
    }
    if let Some(exchange) = spec.channel.exchange() {
        db.execute(
            "UPDATE subscription SET filter = ?3 WHERE exchange = ?1 AND queue = ?2",
            params![exchange, queues.queue.id, write_filter(&spec.filter)?],
        )?;
    }
    Ok(queues)
}

/// Subscribes a queue to an exchange, unless a subscription exists.
fn subscribe(db: &Connection, exchange: &str, queue: Target, filter: &Filter) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR IGNORE INTO subscription (exchange, queue, filter) VALUES (?1, ?2, ?3)")?
        .execute(params![exchange, queue.id, write_filter(filter)?])?;
    Ok(())
}

/// Returns the filter of a queue's subscription to an exchange. `None`: the queue is not subscribed.
pub(super) fn subscription(db: &Connection, exchange: &str, queue: &str) -> rusqlite::Result<Option<Filter>> {
    db.prepare_cached(
        "SELECT subscription.filter FROM subscription JOIN queue ON queue.id = subscription.queue
         WHERE subscription.exchange = ?1 AND queue.name = ?2",
    )?
    .query_row([exchange, queue], |row| read_filter(&text(row, 0, "filter")?))
    .optional()
}

pub(super) fn find(db: &Connection, name: &str) -> rusqlite::Result<Option<Target>> {
    db.prepare_cached("SELECT id, ordered FROM queue WHERE name = ?1")?
        .query_row([name], |row| Ok(Target { id: row.get(0)?, ordered: row.get(1)? }))
        .optional()
}

pub(super) fn find_or_create(db: &Connection, name: &str, ordered: bool) -> rusqlite::Result<Target> {
    if let Some(target) = find(db, name)? {
        return Ok(target);
    }
    db.execute("INSERT INTO queue (name, ordered) VALUES (?1, ?2)", params![name, ordered])?;
    Ok(Target { id: db.last_insert_rowid(), ordered })
}

/// Makes a queue and its messages ordered or unordered. Needed because a queue may have been created by a sender, which
/// does not know whether the consumer requires an ordered queue.
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

/// Returns the destination of messages to `channel`. If the queue of the channel is missing, creates it, unless the
/// channel is the bare name of an exchange. Without a queue, a message that is sent before the first start of the
/// consumer would be lost.
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
    subscribe(db, exchange, target, &Filter::All)?;
    subscriptions(db, exchange).map(Route::Exchange)
}

fn subscriptions(db: &Connection, exchange: &str) -> rusqlite::Result<Vec<(Target, Filter)>> {
    db.prepare_cached(
        "SELECT queue.id, queue.ordered, subscription.filter
         FROM subscription JOIN queue ON queue.id = subscription.queue WHERE subscription.exchange = ?1",
    )?
    .query_map([exchange], |row| {
        let target = Target { id: row.get(0)?, ordered: row.get(1)? };
        Ok((target, read_filter(&text(row, 2, "filter")?)?))
    })?
    .collect()
}

/// Returns `true` if the queue keeps the order within groups.
pub(super) fn is_ordered(db: &Connection, queue: i64) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT ordered FROM queue WHERE id = ?1")?.query_row([queue], |row| row.get(0))
}

/// Returns the names of all channels. A queue that is subscribed to several exchanges occurs only once, with the
/// exchange that is first in alphabetical order.
pub(super) fn channels(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.prepare(
        "SELECT coalesce(min(subscription.exchange) || '.', '') || queue.name
         FROM queue LEFT JOIN subscription ON subscription.queue = queue.id GROUP BY queue.id ORDER BY queue.name",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Returns the bare names of all queues. For each subscription of a queue, also returns the name `<exchange>.<queue>`.
pub(super) fn destinations(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.prepare(
        "SELECT name FROM queue
         UNION SELECT subscription.exchange || '.' || queue.name
         FROM subscription JOIN queue ON queue.id = subscription.queue ORDER BY 1",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}
