//! Counts the messages of owned queues in steps, so that turns can come in between.

use rusqlite::params;

use super::OwnedQueues;
use crate::clock::Session;
use crate::writer::Need;
use hostler_queue::QueueError;

/// Number of messages that one step reads.
const STEP: i64 = 10_000;

/// Numbers of messages of all owned queues together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are due, in flight or wait for their subject.
    pub visible: u64,
    /// Messages that are due later.
    pub delayed: u64,
    /// Messages in the dead-letter queue.
    pub dead_lettered: u64,
    /// Time at which the oldest message was stored, in milliseconds by the queue's clock. Dead letters do not count.
    pub oldest: Option<i64>,
}

impl OwnedQueues {
    /// Counts the messages. A message that moves in the meantime may be counted twice, or not at all.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn count(&self) -> Result<Counts, QueueError> {
        let mut counts = Counts::default();
        for source in &*self.sources {
            self.count_queue(source.queue, |enqueued_at, is_due| {
                if is_due {
                    counts.visible += 1
                } else {
                    counts.delayed += 1
                }
                counts.oldest = Some(counts.oldest.map_or(enqueued_at, |oldest| oldest.min(enqueued_at)));
            })
            .await?;
        }
        if let Some((dead_letters, _)) = self.sources.first().and_then(|source| source.dead_letter) {
            self.count_queue(dead_letters, |_, _| counts.dead_lettered += 1).await?;
        }
        Ok(counts)
    }

    async fn count_queue(&self, queue: i64, mut each: impl FnMut(i64, bool)) -> Result<(), QueueError> {
        let mut after = (i64::MIN, i64::MIN);
        loop {
            let step = move |db: &Session<'_>| {
                let now = db.now();
                let mut query = db.prepare_cached(
                    "SELECT enqueued_at, seq, visible_at FROM entry
                     WHERE queue = ?1 AND (enqueued_at, seq) > (?2, ?3) ORDER BY enqueued_at, seq LIMIT ?4",
                )?;
                let rows = query.query_map(params![queue, after.0, after.1, STEP], |row| {
                    let visible_at: Option<i64> = row.get(2)?;
                    Ok((row.get(0)?, row.get(1)?, visible_at.is_none_or(|at| at <= now)))
                })?;
                rows.collect::<rusqlite::Result<Vec<(i64, i64, bool)>>>()
            };
            let rows = self.writer.call(Need::Read, step).await?;
            let Some(&(enqueued_at, seq, _)) = rows.last() else { return Ok(()) };
            after = (enqueued_at, seq);
            rows.into_iter().for_each(|(enqueued_at, _, is_due)| each(enqueued_at, is_due));
        }
    }

    /// Returns the number of bytes of the file that are in use. Space that removed messages left is not.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn used_bytes(&self) -> Result<u64, QueueError> {
        let work = |db: &Session<'_>| {
            let read = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            let pages = read("page_count")?.saturating_sub(read("freelist_count")?);
            Ok(u64::try_from(pages.saturating_mul(read("page_size")?)).unwrap_or(0))
        };
        self.writer.call(Need::Read, work).await
    }
}
