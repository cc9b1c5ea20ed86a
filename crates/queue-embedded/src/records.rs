//! Idempotency records, in the file of the queues or in a file of their own.
//!
//! The table is created by the first run, so files of consumers without idempotency have none. Where the table is missing, no
//! record exists.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::MAX_MESSAGE;
use super::clock::Session;
use super::lease::is_of_the_row;
use super::rows::{bytes, due_after, integer, latest_due, millis, optional_bytes, unreadable};
use super::schema;
use super::writer::{Need, Writer};
use hostler_queue::{Begin, Begun, Done, Finish, Hold, LeaseError, MAX_LABEL, QueueError, RecordId, Records, RunEnd};

/// Maximum number of expired records that the start of a run removes. Each run adds at most one record, so the table does not
/// grow beyond the live records.
const REMOVED: i64 = 4;

/// Value of the column `state` while a run holds the record, or after the lease of the run.
const RUNNING: i64 = 0;
/// Value of the column `state` once a run has finished.
const DONE: i64 = 1;

/// The store of the records in one file.
#[derive(Debug)]
pub(super) struct EmbeddedRecords {
    writer: Writer,
}

impl EmbeddedRecords {
    pub(super) fn new(writer: Writer) -> Self {
        Self { writer }
    }

    /// Calls `act` for each entry, in one transaction. `act` returns `false` if the run does not hold its record.
    async fn each<T: Send + 'static>(
        &self,
        need: Need,
        entries: Vec<T>,
        mut act: impl FnMut(&Session<'_>, &T) -> rusqlite::Result<bool> + Send + 'static,
        record: impl Fn(&T) -> RecordId + Send + 'static,
    ) -> Vec<Result<(), LeaseError>> {
        let count = entries.len();
        let done = self.writer.call(need, move |db| {
            if !schema::has_records(db)? {
                return Ok(vec![Err(lost()); entries.len()]);
            }
            entries.iter().map(|entry| result(db, record(entry), act(db, entry))).collect()
        });
        done.await.unwrap_or_else(|error| vec![Err(LeaseError::Retry(error.to_string())); count])
    }
}

#[async_trait]
impl Records for EmbeddedRecords {
    fn max_size(&self) -> usize {
        MAX_MESSAGE
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        self.writer.call(Need::Write, |db| schema::create_records(db)).await
    }

    async fn inspect(&self) -> Result<(), QueueError> {
        let compile = |db: &Session<'_>| if schema::has_records(db)? { db.prepare(FIND).map(drop) } else { Ok(()) };
        self.writer.call(Need::Read, compile).await
    }

    async fn begin(&self, begin: Begin) -> Result<Begun, QueueError> {
        let begun = self.writer.call(Need::Durable, move |db| match start(db, &begin) {
            // Nothing was changed but for the removal of expired records, so the transaction goes on.
            Err(error) if is_of_the_row(&error) => Ok(Err(damage(db, begin.hold.record, &error))),
            begun => begun.map(Ok),
        });
        begun.await?.map_err(QueueError::Refused)
    }

    async fn extend(&self, holds: &[Hold], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.each(Need::Write, holds.to_vec(), move |db, hold| extend(db, *hold, by), |hold| hold.record).await
    }

    async fn finish(&self, batch: Vec<Finish>) -> Vec<Result<(), LeaseError>> {
        let sizes: Vec<_> = batch.iter().map(check_size).collect();
        let fitting: Vec<_> =
            batch.into_iter().zip(&sizes).filter_map(|(it, size)| size.is_ok().then_some(it)).collect();
        let finished = self.each(Need::Durable, fitting, finish, |finish| finish.hold.record).await;
        let mut finished = finished.into_iter();
        sizes.into_iter().map(|size| size.and_then(|()| finished.next().unwrap_or_else(|| Err(lost())))).collect()
    }

    async fn sent(&self, holds: &[Hold]) -> Result<(), QueueError> {
        let holds = holds.to_vec();
        let sent = move |db: &Session<'_>| {
            if schema::has_records(db)? { holds.iter().try_for_each(|hold| sent(db, *hold)) } else { Ok(()) }
        };
        self.writer.call(Need::Write, sent).await
    }

    async fn end(&self, ends: &[(Hold, RunEnd)]) -> Result<(), QueueError> {
        let ends = ends.to_vec();
        let end = move |db: &Session<'_>| {
            if schema::has_records(db)? { ends.iter().try_for_each(|(hold, how)| end(db, *hold, *how)) } else { Ok(()) }
        };
        self.writer.call(Need::Write, end).await
    }
}

/// Checks that the reply and the unsent messages of a run fit into its record.
pub(super) fn check_size(finish: &Finish) -> Result<(), LeaseError> {
    let size: usize = [&finish.reply, &finish.unsent].into_iter().flatten().map(Vec::len).sum();
    if size <= MAX_MESSAGE {
        return Ok(());
    }
    let text =
        format!("the reply and the messages of the handler have {size} bytes: a record takes at most {MAX_MESSAGE}");
    Err(LeaseError::Unfit(text))
}

/// Records a success as a part of the transaction of an ack.
pub(super) fn commit(db: &Session<'_>, one: &Finish) -> rusqlite::Result<Result<(), LeaseError>> {
    if !schema::has_records(db)? {
        return Ok(Err(lost()));
    }
    result(db, one.hold.record, finish(db, one))
}

/// Converts the result of a change of one record. An error that concerns the row alone leaves the other changes of the
/// transaction valid.
fn result(
    db: &Connection,
    record: RecordId,
    changed: rusqlite::Result<bool>,
) -> rusqlite::Result<Result<(), LeaseError>> {
    match changed {
        Ok(true) => Ok(Ok(())),
        Ok(false) => Ok(Err(lost())),
        Err(error) if is_of_the_row(&error) => Ok(Err(LeaseError::Unfit(damage(db, record, &error)))),
        Err(error) => Err(error),
    }
}

fn lost() -> LeaseError {
    LeaseError::Lost("the idempotency record is gone, or another run has taken over".to_owned())
}

/// Returns the text for a record that hostler did not write.
fn damage(db: &Connection, record: RecordId, error: &rusqlite::Error) -> String {
    format!(
        "the idempotency record x'{}' in the file `{}` is damaged ({error}): delete its row from the table `record`; its key \
         then counts as not processed",
        record.hex(),
        db.path().unwrap_or_default()
    )
}

/// A record whose `ttl` has not passed.
struct Live {
    body: [u8; 32],
    token: i64,
    is_done: bool,
    leased_until: i64,
    reply: Option<Vec<u8>>,
    unsent: Option<Vec<u8>>,
}

const FIND: &str = "SELECT expires_at, body, token, state, leased_until, reply, unsent FROM record WHERE id = ?1";

fn find(db: &Connection, record: RecordId, now: i64) -> rusqlite::Result<Option<Live>> {
    db.prepare_cached(FIND)?.query_row([record.as_bytes()], |row| read(row, now)).optional().map(Option::flatten)
}

fn read(row: &Row<'_>, now: i64) -> rusqlite::Result<Option<Live>> {
    let expires_at = integer(row, 0, "expires_at")?;
    if expires_at < 0 {
        return Err(unreadable("expires_at", format_args!("is {expires_at} instead of a time")));
    }
    if expires_at <= now {
        return Ok(None);
    }
    let body = bytes(row, 1, "body")?;
    let length = body.len();
    let body = body.try_into().map_err(|_| unreadable("body", format_args!("holds {length} bytes instead of 32")))?;
    let is_done = match integer(row, 3, "state")? {
        RUNNING => false,
        DONE => true,
        other => return Err(unreadable("state", format_args!("is {other} instead of {RUNNING} or {DONE}"))),
    };
    let leased_until = integer(row, 4, "leased_until")?;
    if !is_done && !(0..=latest_due(now)).contains(&leased_until) {
        return Err(unreadable("leased_until", format_args!("is {leased_until}, at which no lease ends")));
    }
    Ok(Some(Live {
        body,
        token: integer(row, 2, "token")?,
        is_done,
        leased_until,
        reply: optional_bytes(row, 5, "reply")?,
        unsent: optional_bytes(row, 6, "unsent")?,
    }))
}

fn start(db: &Session<'_>, begin: &Begin) -> rusqlite::Result<Begun> {
    if !schema::has_records(db)? {
        schema::create_records(db)?;
    }
    let now = db.now();
    remove_expired(db, now)?;
    let Begin { hold, body, .. } = begin;
    let begun = match find(db, hold.record, now)? {
        None => Begun::Started,
        Some(found) if found.body != *body => return Ok(Begun::OtherBody),
        Some(Live { is_done: true, token, reply, unsent, .. }) => {
            return Ok(Begun::Done(Done { hold: Hold { token, ..*hold }, reply, unsent }));
        }
        Some(found) if found.token == hold.token => Begun::Started,
        Some(found) if found.leased_until > now => {
            return Ok(Begun::Busy(Duration::from_millis(found.leased_until.abs_diff(now))));
        }
        Some(_) if !begin.takes_over => return Ok(Begun::Unknown),
        Some(_) => Begun::TakenOver,
    };
    store(db, begin, now)?;
    Ok(begun)
}

/// Makes the run hold its record.
fn store(db: &Connection, begin: &Begin, now: i64) -> rusqlite::Result<()> {
    let leased_until = due_after(now, begin.lease);
    let expires_at = now.saturating_add(millis(begin.ttl)).max(leased_until);
    let label = &begin.label[..begin.label.floor_char_boundary(MAX_LABEL)];
    let Hold { record, token } = begin.hold;
    db.prepare_cached(
        "INSERT INTO record (id, label, body, token, state, leased_until, expires_at) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET label = ?2, body = ?3, token = ?4, state = 0, leased_until = ?5, expires_at = ?6,
         reply = NULL, unsent = NULL",
    )?
    .execute(params![record.as_bytes(), label, begin.body, token, leased_until, expires_at])?;
    Ok(())
}

/// Removes the records that expired first. Leaves damaged times alone.
fn remove_expired(db: &Connection, now: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM record WHERE id IN (
             SELECT id FROM record INDEXED BY record_expiry WHERE expires_at BETWEEN 0 AND ?1 ORDER BY expires_at LIMIT ?2
         )",
    )?
    .execute([now, REMOVED])?;
    Ok(())
}

/// Extends the lease of a run. Returns `false` if the run does not hold its record.
fn extend(db: &Session<'_>, hold: Hold, by: Duration) -> rusqlite::Result<bool> {
    let now = db.now();
    let changed = db
        .prepare_cached(
            "UPDATE record SET leased_until = ?4, expires_at = max(expires_at, ?4)
             WHERE id = ?1 AND token = ?2 AND state = 0 AND expires_at > ?3",
        )?
        .execute(params![hold.record.as_bytes(), hold.token, now, due_after(now, by)])?;
    if changed == 0 {
        // Distinguishes a damaged row.
        find(db, hold.record, now)?;
    }
    Ok(changed == 1)
}

/// Records a success. Returns `false` if the run does not hold its record. A success that the same run has recorded before is left
/// as it is.
fn finish(db: &Session<'_>, finish: &Finish) -> rusqlite::Result<bool> {
    let Finish { hold, ttl, reply, unsent } = finish;
    let now = db.now();
    let changed = db
        .prepare_cached(
            "UPDATE record SET state = 1, leased_until = ?3, expires_at = ?4, reply = ?5, unsent = ?6
             WHERE id = ?1 AND token = ?2 AND state = 0 AND expires_at > ?3",
        )?
        .execute(params![hold.record.as_bytes(), hold.token, now, now.saturating_add(millis(*ttl)), reply, unsent])?;
    if changed == 1 {
        return Ok(true);
    }
    let found = find(db, hold.record, now)?;
    Ok(found.is_some_and(|found| found.is_done && found.token == hold.token))
}

fn sent(db: &Connection, hold: Hold) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE record SET unsent = NULL WHERE id = ?1 AND token = ?2 AND state = 1")?
        .execute(params![hold.record.as_bytes(), hold.token])?;
    Ok(())
}

fn end(db: &Session<'_>, hold: Hold, how: RunEnd) -> rusqlite::Result<()> {
    match how {
        RunEnd::Forget => db
            .prepare_cached("DELETE FROM record WHERE id = ?1 AND token = ?2 AND state = 0")?
            .execute(params![hold.record.as_bytes(), hold.token]),
        RunEnd::Lapse => db
            .prepare_cached(
                "UPDATE record SET leased_until = min(leased_until, ?3) WHERE id = ?1 AND token = ?2 AND state = 0",
            )?
            .execute(params![hold.record.as_bytes(), hold.token, db.now()]),
    }
    .map(drop)
}

#[cfg(test)]
pub(super) mod tests;
