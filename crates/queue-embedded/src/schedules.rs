//! States of schedules, in the file that their messages are sent to.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::clock::Session;
use super::rows::{text, unreadable};
use super::schema;
use super::send::send;
use hostler_queue::{Advance, Advanced};
use hostler_types::message::Outgoing;
use hostler_types::{ScheduleState, Timestamp};

/// Returns the states of these schedules, in the order of the names. Reads all in one transaction. `None`: the schedule has no
/// state.
pub(super) fn look(db: &Session<'_>, names: &[String]) -> rusqlite::Result<Vec<Option<ScheduleState>>> {
    let tx = Transaction::new_unchecked(db, TransactionBehavior::Deferred)?;
    if !schema::has_schedules(&tx)? {
        return Ok(vec![None; names.len()]);
    }
    names.iter().map(|name| find(&tx, name)).collect()
}

/// Stores the new state of a schedule and sends `batch`, if the schedule has the state that the step starts from. If sending fails,
/// the caller's transaction must be rolled back.
pub(super) fn advance(
    db: &Session<'_>,
    step: &Advance,
    batch: &[Outgoing],
    dedupe_window: Duration,
) -> rusqlite::Result<Advanced> {
    schema::create_schedules(db)?;
    if !step.starts_from(find(db, &step.name)?.as_ref()) {
        return Ok(Advanced::Changed);
    }
    let ScheduleState { definition, handled, sent, seen } = &step.to;
    db.prepare_cached(
        "INSERT OR REPLACE INTO schedule (name, definition, handled, sent, seen) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![step.name, definition, micros(*handled), sent.map(micros), micros(*seen)])?;
    // A step without messages must not create the queue.
    let sent = if batch.is_empty() { Vec::new() } else { send(db, &step.channel, batch, dedupe_window)? };
    Ok(Advanced::Done(sent))
}

fn find(db: &Connection, name: &str) -> rusqlite::Result<Option<ScheduleState>> {
    let sql = "SELECT definition, handled, sent, seen FROM schedule WHERE name = ?1";
    db.prepare_cached(sql)?.query_row([name], read).optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<ScheduleState> {
    let sent: Option<i64> = row.get(2)?;
    Ok(ScheduleState {
        definition: text(row, 0, "definition")?,
        handled: time(row.get(1)?, "handled")?,
        sent: sent.map(|sent| time(sent, "sent")).transpose()?,
        seen: time(row.get(3)?, "seen")?,
    })
}

/// Converts a column to a time.
fn time(micros: i64, column: &str) -> rusqlite::Result<Timestamp> {
    let micros = u64::try_from(micros).map_err(|_| unreadable(column, "holds a time before 1970"))?;
    Ok(Timestamp::from_micros(micros))
}

/// Converts a time to a column. The year 9999 is far from the limit.
fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
