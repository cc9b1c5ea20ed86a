//! Moves all messages of a file into another one, in batches: the adoption of the store of a dead process.
//!
//! A batch is first stored in the new file, then removed from the old one. If the process is killed in between, both
//! files have it. So the new file remembers the ids of the batch, in the table of deduplication keys, in the same
//! transaction that stores it, until the old file has lost it. Whoever goes on with the old file skips those ids.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::EmbeddedBroker;
use crate::clock::Session;
use crate::topology::find_or_create;
use crate::writer::Need;
use hostler_queue::QueueError;

/// Queue for messages whose queue is not known, because the old file is damaged.
const LOST: &str = "retry-lost";

/// Number of bytes after which a batch takes no further message.
const MOST_BYTES: usize = 16 << 20;

/// A message of the old file. Texts are bytes, because nothing here depends on their being valid.
#[derive(Debug, Clone)]
pub struct Moved {
    /// Name of the queue. `None`: the row of the queue is missing.
    queue: Option<String>,
    key: (i64, i64, i64),
    due_at: i64,
    attempts: i64,
    id: Vec<u8>,
    group: Option<Vec<u8>>,
    routing_key: Option<Vec<u8>>,
    attributes: Option<Vec<u8>>,
    body: Vec<u8>,
}

impl Moved {
    /// Returns the number of bytes that the message takes in memory.
    fn size(&self) -> usize {
        let optional = [&self.group, &self.routing_key, &self.attributes];
        let optional: usize = optional.into_iter().flatten().map(Vec::len).sum();
        size_of::<Self>() + self.id.len() + optional + self.body.len()
    }
}

/// A batch of messages of the old file.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The messages. None: the file has no further ones.
    pub messages: Vec<Moved>,
    /// Time of the old file's clock in milliseconds.
    now: i64,
}

impl EmbeddedBroker {
    /// Reads up to `max` messages, of any queues. Reads fewer if they are large.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn read_batch(&self, max: usize) -> Result<Batch, QueueError> {
        self.writer
            .call(Need::Read, move |db| {
                let mut query = db.prepare_cached(
                    "SELECT CAST(queue.name AS BLOB), entry.queue, entry.enqueued_at, entry.seq, entry.due_at, entry.attempts,
                             coalesce(CAST(content.id AS BLOB), CAST('lost ' || entry.seq AS BLOB)),
                             CAST(content.group_name AS BLOB), CAST(content.routing_key AS BLOB),
                             CAST(content.attributes AS BLOB), coalesce(content.body, x'')
                         FROM entry LEFT JOIN queue ON queue.id = entry.queue
                             LEFT JOIN content ON content.seq = entry.seq
                         LIMIT ?1",
                )?;
                let rows = query.query_map([i64::try_from(max).unwrap_or(i64::MAX)], |row| {
                    Ok(Moved {
                        queue: row.get::<_, Option<Vec<u8>>>(0)?.map(|name| String::from_utf8_lossy(&name).into_owned()),
                        key: (row.get(1)?, row.get(2)?, row.get(3)?),
                        due_at: row.get(4)?,
                        attempts: row.get(5)?,
                        id: row.get(6)?,
                        group: row.get(7)?,
                        routing_key: row.get(8)?,
                        attributes: row.get(9)?,
                        body: row.get(10)?,
                    })
                })?;
                let (mut messages, mut bytes) = (Vec::new(), 0);
                for message in rows {
                    let message: Moved = message?;
                    bytes += message.size();
                    messages.push(message);
                    if bytes >= MOST_BYTES {
                        break;
                    }
                }
                Ok(Batch { messages, now: db.now() })
            })
            .await
    }

    /// Stores a batch of another file, except messages that were stored before, and remembers it. `from`: name of the other
    /// file. `removed`: the batch before, which the other file has lost. Returns the number of messages that were stored.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn store_batch(&self, from: &str, batch: Arc<Batch>, removed: Arc<Batch>) -> Result<usize, QueueError> {
        let scope = scope(from);
        self.writer.call(Need::Durable, move |db| store(db, &scope, &batch, &removed)).await
    }

    /// Removes a batch from this file, which it was read from.
    ///
    /// # Errors
    /// Nothing was removed.
    pub async fn remove_batch(&self, batch: &Batch) -> Result<(), QueueError> {
        let keys: Vec<_> = batch.messages.iter().map(|message| message.key).collect();
        let remove = move |db: &Session<'_>| {
            let mut entry =
                db.prepare_cached("DELETE FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3")?;
            let mut content = db.prepare_cached("DELETE FROM content WHERE seq = ?1")?;
            for (queue, enqueued_at, seq) in &keys {
                entry.execute([queue, enqueued_at, seq])?;
                content.execute([seq])?;
            }
            Ok(())
        };
        self.writer.call(Need::Durable, remove).await
    }

    /// Moves up to `max` entries of a queue to another one of the same file. Messages that waited for their subjects wait for
    /// their times again. Returns the number of moved entries.
    ///
    /// # Errors
    /// Nothing was moved.
    pub async fn move_entries(&self, from: &str, to: &str, max: usize) -> Result<usize, QueueError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let work = move |db: &Session<'_>| {
            let [from, to] = [find_or_create(db, &from, false)?.id, find_or_create(db, &to, false)?.id];
            db.prepare_cached(
                "UPDATE entry SET queue = ?2, group_name = NULL,
                     visible_at = CASE WHEN group_name IS NULL THEN coalesce(visible_at, due_at) ELSE due_at END
                 WHERE (queue, enqueued_at, seq) IN (
                     SELECT queue, enqueued_at, seq FROM entry WHERE queue = ?1 ORDER BY enqueued_at, seq LIMIT ?3
                 )",
            )?
            .execute(params![from, to, i64::try_from(max).unwrap_or(i64::MAX)])
        };
        self.writer.call(Need::Write, work).await
    }

    /// Returns the ids of messages that were stored from another file, and that the other file may still have.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn stored_from(&self, from: &str) -> Result<Vec<Vec<u8>>, QueueError> {
        let scope = scope(from);
        self.writer.call(Need::Read, move |db| Ok(known(db, &scope)?.into_iter().collect())).await
    }

    /// Remembers ids of messages of another file that yet another file has stored.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn remember_stored_from(&self, from: &str, ids: Vec<Vec<u8>>) -> Result<(), QueueError> {
        let scope = scope(from);
        self.writer.call(Need::Durable, move |db| ids.iter().try_for_each(|id| remember(db, &scope, id))).await
    }

    /// Forgets the ids of messages of another file, which is gone.
    ///
    /// # Errors
    /// Nothing was forgotten.
    pub async fn forget_stored_from(&self, from: &str) -> Result<(), QueueError> {
        let scope = scope(from);
        self.writer
            .call(Need::Write, move |db| {
                db.prepare_cached("DELETE FROM dedupe WHERE scope = ?1")?.execute([&scope]).map(drop)
            })
            .await
    }
}

fn scope(from: &str) -> String {
    format!("adopted {from}")
}

fn known(db: &Connection, scope: &str) -> rusqlite::Result<HashSet<Vec<u8>>> {
    db.prepare_cached("SELECT CAST(key AS BLOB) FROM dedupe WHERE scope = ?1")?
        .query_map([scope], |row| row.get(0))?
        .collect()
}

fn remember(db: &Connection, scope: &str, id: &[u8]) -> rusqlite::Result<()> {
    // The time keeps senders from removing the row as an old one.
    db.prepare_cached("INSERT OR IGNORE INTO dedupe (scope, key, id, sent_at) VALUES (?1, CAST(?2 AS TEXT), '', ?3)")?
        .execute(params![scope, id, i64::MAX])?;
    Ok(())
}

fn store(db: &Session<'_>, scope: &str, batch: &Batch, removed: &Batch) -> rusqlite::Result<usize> {
    for message in &removed.messages {
        db.prepare_cached("DELETE FROM dedupe WHERE scope = ?1 AND key = CAST(?2 AS TEXT)")?
            .execute(params![scope, message.id])?;
    }
    let known = known(db, scope)?;
    let shift = db.now().saturating_sub(batch.now);
    let mut stored = 0;
    for message in &batch.messages {
        remember(db, scope, &message.id)?;
        if known.contains(&message.id) {
            continue;
        }
        stored += 1;
        let queue = find_or_create(db, message.queue.as_deref().unwrap_or(LOST), false)?.id;
        db.prepare_cached(
            "INSERT INTO content (id, group_name, routing_key, attributes, body)
             VALUES (CAST(?1 AS TEXT), CAST(?2 AS TEXT), CAST(?3 AS TEXT), CAST(?4 AS TEXT), ?5)",
        )?
        .execute(params![message.id, message.group, message.routing_key, message.attributes, message.body])?;
        let seq = db.last_insert_rowid();
        let (_, enqueued_at, _) = message.key;
        let [enqueued_at, due_at] = [enqueued_at, message.due_at].map(|at| at.saturating_add(shift));
        db.prepare_cached(
            "INSERT INTO entry (queue, enqueued_at, seq, visible_at, due_at, attempts) VALUES (?1, ?2, ?3, ?4, ?4, ?5)",
        )?
        .execute(params![queue, enqueued_at, seq, due_at, message.attempts])?;
    }
    Ok(stored)
}
