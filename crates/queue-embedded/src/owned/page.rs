//! Reads messages of an owned queue, by the time at which they are due or by their subject.

use rusqlite::{Connection, Row};

use super::{Cursor, Load, Page, Place, Stored, Wanted};
use crate::clock::Session;
use crate::lease::{Entry, SetAside, Source, is_of_the_row, message, set_aside};
use crate::rows::unreadable;

/// State of a row before its content is read.
struct Found {
    enqueued_at: i64,
    seq: i64,
    due: i64,
    attempts: i64,
}

/// Reads a page. Moves messages that cannot be read to the dead-letter queue, and returns them.
pub(super) fn read(db: &Session<'_>, source: &Source, load: &Load) -> rusqlite::Result<(Page, Vec<SetAside>)> {
    let (found, mut has_more) = find(db, source, load)?;
    let (mut page, mut damaged, mut bytes) = (Page::default(), Vec::new(), 0);
    for row in found {
        if bytes >= load.max_bytes {
            has_more = true;
            break;
        }
        if let Wanted::Due { .. } = load.wanted {
            page.end = Some(position(&row));
        }
        match content(db, load.queue, &row) {
            Ok(stored) => {
                bytes += stored.message.body.len();
                page.messages.push(stored);
            }
            Err(error) if is_of_the_row(&error) => {
                let entry = Entry::owned(row.enqueued_at, row.seq, u32::try_from(row.attempts).unwrap_or(0));
                damaged.push(set_aside(db, source, &entry, &error, db.now())?);
            }
            Err(error) => return Err(error),
        }
    }
    page.has_more = has_more;
    Ok((page, damaged))
}

fn position(row: &Found) -> Cursor {
    (row.due, row.enqueued_at, row.seq)
}

/// Finds the rows of a page. Also returns `true` if there are more rows.
fn find(db: &Connection, source: &Source, load: &Load) -> rusqlite::Result<(Vec<Found>, bool)> {
    let mut found = Vec::new();
    let mut collect = |mut rows: rusqlite::Rows<'_>| -> rusqlite::Result<bool> {
        while let Some(row) = rows.next()? {
            let row = Found { enqueued_at: row.get(0)?, seq: row.get(1)?, due: row.get(2)?, attempts: row.get(3)? };
            if load.skip.contains(&row.seq) {
                continue;
            }
            if found.len() == load.max {
                return Ok(true);
            }
            found.push(row);
        }
        Ok(false)
    };
    let has_more = match &load.wanted {
        Wanted::Due { after, until } => {
            let (due, enqueued_at, seq) = after.unwrap_or((i64::MIN, i64::MIN, i64::MIN));
            let mut query = db.prepare_cached(
                "SELECT enqueued_at, seq, visible_at, attempts FROM entry INDEXED BY entry_visible
                 WHERE queue = ?1 AND (visible_at, enqueued_at, seq) > (?2, ?3, ?4) AND visible_at <= ?5
                 ORDER BY visible_at, enqueued_at, seq",
            )?;
            collect(query.query([source.queue, due, enqueued_at, seq, *until])?)?
        }
        Wanted::Parked(subject) => {
            let mut query = db.prepare_cached(
                "SELECT enqueued_at, seq, due_at, attempts FROM entry INDEXED BY entry_group
                 WHERE queue = ?1 AND group_name = ?2 AND visible_at IS NULL ORDER BY seq",
            )?;
            collect(query.query(rusqlite::params![source.queue, &**subject])?)?
        }
    };
    Ok((found, has_more))
}

fn content(db: &Session<'_>, queue: usize, found: &Found) -> rusqlite::Result<Stored> {
    let attempts = u32::try_from(found.attempts).map_err(|_| {
        unreadable("attempts", format_args!("is {} instead of a number from 0 to {}", found.attempts, u32::MAX))
    })?;
    let enqueued_at = db.time.to_wall(found.enqueued_at);
    let read = |row: &Row<'_>| message(row, enqueued_at);
    let message = db
        .prepare_cached("SELECT id, group_name, routing_key, attributes, body FROM content WHERE seq = ?1")?
        .query_row([found.seq], read)?;
    let place = Place { queue, enqueued_at: found.enqueued_at, seq: found.seq };
    Ok(Stored { place, message, attempts, due: found.due })
}

/// Returns the subjects with parked messages. Finds each by one look-up in the index, whatever the number of messages.
pub(super) fn parked_subjects(db: &Connection, sources: &[Source]) -> rusqlite::Result<Vec<(usize, String)>> {
    let mut subjects = Vec::new();
    let mut next = db.prepare_cached(
        "SELECT min(group_name) FROM entry INDEXED BY entry_group
         WHERE queue = ?1 AND group_name IS NOT NULL AND group_name > ?2",
    )?;
    for (queue, source) in sources.iter().enumerate() {
        let mut last = String::new();
        while let Some(subject) =
            next.query_row(rusqlite::params![source.queue, last], |row| row.get::<_, Option<String>>(0))?
        {
            subjects.push((queue, subject.clone()));
            last = subject;
        }
    }
    Ok(subjects)
}
