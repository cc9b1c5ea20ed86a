//! Adds messages to queues, and records their deduplication keys.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::clock::Session;
use super::rows::{due_after, millis, write_attributes};
use super::topology::{Route, Target, route};
use hostler_queue::{DEFAULT_GROUP, Sent};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;

/// Sends messages to a channel. If sending fails, the caller's transaction must be rolled back.
pub(super) fn send<'m>(
    db: &Session<'_>,
    channel: &Channel,
    batch: impl IntoIterator<Item = &'m Outgoing>,
    dedupe_window: Duration,
) -> rusqlite::Result<Vec<Sent>> {
    let route = route(db, channel)?;
    let scope = match &route {
        Route::Queue(_) => format!("queue {}", channel.queue()),
        Route::Exchange(_) => format!("exchange {}", channel.exchange().unwrap_or(channel.queue())),
    };
    let now = db.now();
    forget_keys(db, now.saturating_sub(millis(dedupe_window)))?;
    batch.into_iter().map(|message| send_one(db, &route, &scope, message, now)).collect()
}

fn send_one(db: &Connection, route: &Route, scope: &str, message: &Outgoing, now: i64) -> rusqlite::Result<Sent> {
    let id = Uuid::now_v7().to_string();
    if let Some(key) = &message.dedupe {
        if let Some(first) = known_key(db, scope, key)? {
            return Ok(Sent { id: first, queues: Some(0) });
        }
        db.prepare_cached("INSERT INTO dedupe (scope, key, id, sent_at) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![scope, key, id, now])?;
    }
    let targets: Vec<Target> = match route {
        Route::Queue(target) => vec![*target],
        Route::Exchange(subscriptions) => subscriptions
            .iter()
            .filter(|(_, filter)| filter.passes(message.routing_key.as_deref()))
            .map(|(target, _)| *target)
            .collect(),
    };
    for target in &targets {
        insert(db, *target, message, &id, now)?;
    }
    Ok(Sent { id, queues: Some(targets.len()) })
}

fn insert(db: &Connection, target: Target, message: &Outgoing, id: &str, now: i64) -> rusqlite::Result<()> {
    let group = message.group.as_deref().or(target.ordered.then_some(DEFAULT_GROUP));
    db.prepare_cached(
        "INSERT INTO content (id, group_name, routing_key, attributes, body) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![id, group, message.routing_key, write_attributes(&message.attributes)?, message.body])?;
    let due_at = due_after(now, message.delay);
    place(db, target, db.last_insert_rowid(), group, now, due_at)
}

/// Adds an entry for existing content to a queue. The entry becomes visible at `due_at`. If the group of the entry has
/// other entries, the new entry is blocked until these entries have been removed.
pub(super) fn place(
    db: &Connection,
    target: Target,
    seq: i64,
    group: Option<&str>,
    enqueued_at: i64,
    due_at: i64,
) -> rusqlite::Result<()> {
    // A message that was sent before the queue became ordered may have no group.
    let group = target.ordered.then(|| group.unwrap_or(DEFAULT_GROUP));
    let blocked = match group {
        Some(group) => db
            .prepare_cached("SELECT 1 FROM entry WHERE queue = ?1 AND group_name = ?2 LIMIT 1")?
            .exists(params![target.id, group])?,
        None => false,
    };
    let visible_at = (!blocked).then_some(due_at);
    db.prepare_cached(
        "INSERT INTO entry (queue, enqueued_at, seq, visible_at, due_at, attempts, group_name)
         VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6)",
    )?
    .execute(params![target.id, enqueued_at, seq, visible_at, due_at, group])?;
    Ok(())
}

fn known_key(db: &Connection, scope: &str, key: &str) -> rusqlite::Result<Option<String>> {
    db.prepare_cached("SELECT id FROM dedupe WHERE scope = ?1 AND key = ?2")?
        .query_row([scope, key], |row| row.get(0))
        .optional()
}

fn forget_keys(db: &Connection, before: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM dedupe WHERE sent_at <= ?1")?.execute([before])?;
    Ok(())
}
