//! Closed subjects: the times until which receivers have asked for no further messages. They are rows of the table of
//! deduplication keys, whose time is the end. Senders remove rows whose time has passed.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::OwnedQueues;
use crate::EmbeddedBroker;
use crate::clock::Session;
use crate::rows::millis;
use crate::writer::Need;
use hostler_queue::QueueError;

/// Scope of closed subjects in the table of deduplication keys.
const CLOSED: &str = "closed";

/// Stores the time until which a subject is closed.
pub(super) fn close(db: &Connection, subject: &[u8], until: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO dedupe (scope, key, id, sent_at) VALUES (?1, CAST(?2 AS TEXT), '', ?3)
         ON CONFLICT (scope, key) DO UPDATE SET sent_at = ?3",
    )?
    .execute(params![CLOSED, subject, until])?;
    Ok(())
}

/// Removes the rows of subjects that are open again.
pub(super) fn forget_open(db: &Session<'_>) -> rusqlite::Result<()> {
    // The sign makes SQLite use the index of the times, and not read all rows of the scope.
    db.prepare_cached("DELETE FROM dedupe WHERE +scope = ?1 AND sent_at <= ?2")?
        .execute(params![CLOSED, db.now()])
        .map(drop)
}

fn closed(db: &Session<'_>) -> rusqlite::Result<Vec<(String, i64)>> {
    let mut query =
        db.prepare_cached("SELECT CAST(key AS BLOB), sent_at FROM dedupe WHERE scope = ?1 AND sent_at > ?2")?;
    let rows = query.query_map(params![CLOSED, db.now()], |row| {
        let subject: Vec<u8> = row.get(0)?;
        Ok((String::from_utf8_lossy(&subject).into_owned(), row.get(1)?))
    })?;
    rows.collect()
}

impl OwnedQueues {
    /// Returns the subjects that are closed, each with the time in milliseconds by the queue's clock. Removes those whose
    /// time has passed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn closed(&self) -> Result<Vec<(String, i64)>, QueueError> {
        let work = |db: &Session<'_>| {
            forget_open(db)?;
            closed(db)
        };
        self.writer.call(Need::Write, work).await
    }
}

impl EmbeddedBroker {
    /// Returns the subjects that are closed, and for how much longer.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn closed_subjects(&self) -> Result<Vec<(String, Duration)>, QueueError> {
        let work = |db: &Session<'_>| {
            let now = db.now();
            let rest = |until: i64| Duration::from_millis(u64::try_from(until.saturating_sub(now)).unwrap_or(0));
            Ok(closed(db)?.into_iter().map(|(subject, until)| (subject, rest(until))).collect())
        };
        self.writer.call(Need::Read, work).await
    }

    /// Stores that subjects are closed for so long. Returns the times by this queue's clock. A subject that is already closed
    /// for longer stays so.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn close_subjects(&self, subjects: Vec<(String, Duration)>) -> Result<Vec<(String, i64)>, QueueError> {
        let work = move |db: &Session<'_>| {
            let (now, known) = (db.now(), closed(db)?.into_iter().collect::<HashMap<_, _>>());
            let mut stored = Vec::with_capacity(subjects.len());
            for (subject, rest) in &subjects {
                let until = now.saturating_add(millis(*rest));
                let until = known.get(subject).map_or(until, |at| until.max(*at));
                close(db, subject.as_bytes(), until)?;
                stored.push((subject.clone(), until));
            }
            Ok(stored)
        };
        self.writer.call(Need::Durable, work).await
    }
}
