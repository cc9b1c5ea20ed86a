//! Acks that record the success of a run and send its messages, all or nothing.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::clock::Session;
use super::lease::{self, Ending, Source, Ticket, is_of_the_row};
use super::rows::sqlite_code;
use super::schema::Lacking;
use super::send::send;
use super::{MAX_MESSAGE, records};
use hostler_queue::{Commit, LeaseError};
use hostler_types::message::MAX_ATTRIBUTES;

/// Checks the changes of an ack, and adds the trace contexts to its messages.
pub(super) fn checked(commit: &Arc<Commit>) -> Result<Arc<Commit>, LeaseError> {
    for (_, message) in &commit.messages {
        message.validate(MAX_MESSAGE).map_err(|invalid| LeaseError::Unfit(invalid.to_string()))?;
    }
    commit.finish.as_ref().map_or(Ok(()), records::check_size)?;
    if commit.messages.iter().all(|(_, message)| message.trace.is_none()) {
        return Ok(Arc::clone(commit));
    }
    let mut carrying = Commit::clone(commit);
    carrying.messages.iter_mut().for_each(|(_, message)| message.carry_trace(MAX_ATTRIBUTES));
    Ok(Arc::new(carrying))
}

/// Acks an entry with its other changes. If one of them cannot be made, makes none, and leaves the other changes of the
/// transaction as they are. Returns an outer error only if the whole transaction must be rolled back.
pub(super) fn ack(
    db: &Session<'_>,
    source: &Source,
    ticket: Ticket,
    commit: &Commit,
    dedupe_window: Duration,
) -> rusqlite::Result<Result<(), LeaseError>> {
    db.prepare_cached("SAVEPOINT ack")?.execute([])?;
    let changed = change(db, source, ticket, commit, dedupe_window);
    if !matches!(changed, Ok(Ok(()))) {
        if db.is_autocommit() {
            // SQLite has rolled the transaction back by itself, for example because the disk is full.
            return changed;
        }
        db.prepare_cached("ROLLBACK TO ack")?.execute([])?;
    }
    db.prepare_cached("RELEASE ack")?.execute([])?;
    changed.or_else(|error| failure(db, error).map(Err))
}

fn change(
    db: &Session<'_>,
    source: &Source,
    ticket: Ticket,
    commit: &Commit,
    dedupe_window: Duration,
) -> rusqlite::Result<Result<(), LeaseError>> {
    if !lease::settle(db, source, ticket, &Ending::Ack)? {
        return Ok(Err(lease::lost()));
    }
    if let Some(finish) = &commit.finish
        && let Err(error) = records::commit(db, finish)?
    {
        return Ok(Err(error));
    }
    for batch in commit.messages.chunk_by(|(one, _), (next, _)| one == next) {
        if let Some((channel, _)) = batch.first() {
            send(db, channel, batch.iter().map(|(_, message)| message), dedupe_window)?;
        }
    }
    Ok(Ok(()))
}

/// Converts the error of one ack, whose changes were undone. Returns the error itself if it concerns the layout of the file.
fn failure(db: &Connection, error: rusqlite::Error) -> rusqlite::Result<LeaseError> {
    if Lacking::of(&error).is_some() {
        return Err(error);
    }
    let text = format!("cannot commit the ack to the queue `{}`: {error}", db.path().unwrap_or_default());
    let is_unfit = is_of_the_row(&error)
        || matches!(
            sqlite_code(&error),
            Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
        );
    Ok(if is_unfit { LeaseError::Unfit(text) } else { LeaseError::Retry(text) })
}

#[cfg(test)]
mod tests;
