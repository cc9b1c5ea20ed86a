//! Reads messages of an owned queue, by the time at which they are due or by their subject.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Cursor, Load, Page, Place, Stored, Wanted};
use crate::clock::Session;
use crate::lease::{Entry, SetAside, Source, is_of_the_row, message, set_aside};
use crate::rows::unreadable;
use hostler_types::message::Message;

/// Number of bytes that a message takes in memory besides its attributes and its body.
const OVERHEAD: usize = 512;

/// State of a row before its content is read.
struct Found {
    position: Cursor,
    due: i64,
    attempts: i64,
}

/// Reads a page. Moves messages that cannot be read to the dead-letter queue, and returns them.
pub(super) fn read(db: &Session<'_>, source: &Source, load: &Load) -> rusqlite::Result<(Page, Vec<SetAside>)> {
    let (found, mut has_more) = match &load.wanted {
        Wanted::Due { after, until } => find_due(db, source, load, *after, *until)?,
        Wanted::Parked(subject) => find_parked(db, source, load, subject)?,
        Wanted::Subjects { after } => find_subjects(db, source, load, after)?,
    };
    let (mut page, mut damaged, mut bytes) = (Page::default(), Vec::new(), 0);
    for row in found {
        if bytes >= load.max_bytes {
            has_more = true;
            break;
        }
        if let Wanted::Due { .. } = load.wanted {
            page.end = Some(row.position);
        }
        match content(db, load.queue, &row) {
            Ok(stored) => {
                bytes += size(&stored.message);
                page.messages.push(stored);
            }
            Err(error) if is_of_the_row(&error) => {
                let (_, enqueued_at, seq) = row.position;
                let entry = Entry::owned(enqueued_at, seq, u32::try_from(row.attempts).unwrap_or(0));
                damaged.push(set_aside(db, source, &entry, &error, db.now())?);
            }
            Err(error) => return Err(error),
        }
    }
    page.has_more = has_more;
    Ok((page, damaged))
}

/// Returns the number of bytes that a message takes in memory.
fn size(message: &Message) -> usize {
    let attributes: usize = message.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    OVERHEAD + attributes + message.body.len()
}

/// Returns the group of a parked message. The groups of a subject are sorted by the time at which its messages were due.
pub(super) fn parked_group(subject: &str, due: i64) -> String {
    format!("{subject} {:016x}", due.max(0))
}

/// Returns the subject of a group of parked messages. A subject has no spaces.
fn subject_of(group: &str) -> &str {
    group.rsplit_once(' ').map_or(group, |(subject, _)| subject)
}

/// Returns texts before and after all groups of a subject.
fn bounds(subject: &str) -> (String, String) {
    (format!("{subject} "), format!("{subject}!"))
}

/// Reads the columns that all queries have: the time by which the rows are sorted, and the rest.
fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let position = (row.get::<_, Option<i64>>(0)?.unwrap_or_default(), row.get(1)?, row.get(2)?);
    Ok(Found { position, due: row.get(3)?, attempts: row.get(4)? })
}

/// Collects the rows of a query that the load does not leave out. Also returns `true` if there are more rows.
fn collect(mut rows: rusqlite::Rows<'_>, load: &Load) -> rusqlite::Result<(Vec<Found>, bool)> {
    let mut rest = Vec::new();
    while let Some(row) = rows.next()? {
        if load.skip.contains(&row.get(2)?) {
            continue;
        }
        if rest.len() == load.max {
            return Ok((rest, true));
        }
        rest.push(found(row)?);
    }
    Ok((rest, false))
}

fn find_due(
    db: &Connection,
    source: &Source,
    load: &Load,
    after: Option<Cursor>,
    until: i64,
) -> rusqlite::Result<(Vec<Found>, bool)> {
    let (due, enqueued_at, seq) = after.unwrap_or((i64::MIN, i64::MIN, i64::MIN));
    let mut query = db.prepare_cached(
        "SELECT visible_at, enqueued_at, seq, CASE WHEN group_name IS NULL THEN visible_at ELSE due_at END, attempts
         FROM entry INDEXED BY entry_visible
         WHERE queue = ?1 AND (visible_at, enqueued_at, seq) > (?2, ?3, ?4) AND visible_at <= ?5
         ORDER BY visible_at, enqueued_at, seq",
    )?;
    collect(query.query([source.queue, due, enqueued_at, seq, until])?, load)
}

fn find_parked(db: &Connection, source: &Source, load: &Load, subject: &str) -> rusqlite::Result<(Vec<Found>, bool)> {
    let (first, last) = bounds(subject);
    let mut query = db.prepare_cached(
        "SELECT visible_at, enqueued_at, seq, due_at, attempts FROM entry INDEXED BY entry_group
         WHERE queue = ?1 AND group_name > ?2 AND group_name < ?3 ORDER BY group_name, seq",
    )?;
    collect(query.query(params![source.queue, first, last])?, load)
}

/// Finds the first parked message of each subject. Costs one look-up in the index for each, whatever the number of
/// messages.
fn find_subjects(db: &Connection, source: &Source, load: &Load, after: &str) -> rusqlite::Result<(Vec<Found>, bool)> {
    let mut next = db.prepare_cached(
        "SELECT visible_at, enqueued_at, seq, due_at, attempts, group_name FROM entry INDEXED BY entry_group
         WHERE queue = ?1 AND group_name > ?2 ORDER BY group_name, seq LIMIT 1",
    )?;
    let mut after = if after.is_empty() { String::new() } else { bounds(after).1 };
    let mut rest = Vec::new();
    let read = |row: &Row<'_>| Ok((found(row)?, row.get::<_, String>(5)?));
    while let Some((found, group)) = next.query_row(params![source.queue, after], read).optional()? {
        if rest.len() == load.max {
            return Ok((rest, true));
        }
        after = bounds(subject_of(&group)).1;
        let (.., seq) = found.position;
        if !load.skip.contains(&seq) {
            rest.push(found);
        }
    }
    Ok((rest, false))
}

fn content(db: &Session<'_>, queue: usize, found: &Found) -> rusqlite::Result<Stored> {
    let attempts = u32::try_from(found.attempts).map_err(|_| {
        unreadable("attempts", format_args!("is {} instead of a number from 0 to {}", found.attempts, u32::MAX))
    })?;
    let (_, at, seq) = found.position;
    let enqueued_at = db.time.to_wall(at);
    let read = |row: &Row<'_>| message(row, enqueued_at);
    let message = db
        .prepare_cached("SELECT id, group_name, routing_key, attributes, body FROM content WHERE seq = ?1")?
        .query_row([seq], read)?;
    Ok(Stored { place: Place { queue, enqueued_at: at, seq }, message, attempts, due: found.due })
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
        while let Some(group) = next.query_row(params![source.queue, last], |row| row.get::<_, Option<String>>(0))? {
            let subject = subject_of(&group);
            last = bounds(subject).1;
            subjects.push((queue, subject.to_owned()));
        }
    }
    Ok(subjects)
}
