//! The operations of a consumer on messages: takes messages under a lease, extends leases, and settles messages.

mod set_aside;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::time::Instant;

use super::clock::Session;
use super::registration::Registration;
use super::rows::{bytes, due_after, optional_text, read_attributes, text, unreadable, write_attributes};
use super::send::place;
use super::topology::{Target, is_ordered};
use hostler_queue::{Delivery, LeaseError, Receipt, Receive, dead_letter_attributes};
use hostler_types::message::{MAX_ATTRIBUTES, Message, TraceContext};
pub(super) use set_aside::{SetAside, is_of_the_row, set_aside};
use set_aside::{lossy, read_stored, rescue};

/// A queue as opened by its consumer.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) queue: i64,
    /// Name of the channel, which is written into dead letters.
    pub(super) name: String,
    /// Set if the queue was ordered when it was opened.
    pub(super) ordered: bool,
    /// Name of the dead-letter queue. This queue does not necessarily exist.
    pub(super) dead_letter_name: String,
    /// Id of the dead-letter queue, and the number of times that a message may be received before it moves there.
    /// `None`: there is no dead-letter queue.
    pub(super) dead_letter: Option<(i64, u32)>,
    /// Rows of the queue and of its dead-letter queue in the table of queues.
    pub(super) registrations: Vec<Registration>,
}

/// Identifies an entry and the lease under which it was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    enqueued_at: i64,
    seq: i64,
    lease: i64,
}

impl Ticket {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(str::parse);
        let mut next = || parts.next().and_then(Result::ok);
        Some(Self { enqueued_at: next()?, seq: next()?, lease: next()? })
    }

    fn receipt(&self) -> Receipt {
        Receipt::new(format!("{}.{}.{}", self.enqueued_at, self.seq, self.lease))
    }
}

/// Action that settles an entry.
#[derive(Debug)]
pub(super) enum Ending {
    Ack,
    Release(Duration),
    /// Releases the entry without counting the attempt.
    GiveBack(Duration),
    /// Moves the entry to the dead-letter queue with this id, for this reason.
    DeadLetter(i64, String),
}

/// An entry that is due or leased.
pub(super) struct Entry {
    ticket: Ticket,
    attempts: Attempts,
    group: Group,
}

/// The stored number of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempts {
    Counted(u32),
    /// A number that is outside the valid range, so hostler did not write it.
    Damaged(i64),
}

impl Attempts {
    fn of(stored: i64) -> Self {
        u32::try_from(stored).map_or(Self::Damaged(stored), Self::Counted)
    }

    fn counted(self) -> Option<u32> {
        if let Self::Counted(count) = self { Some(count) } else { None }
    }
}

/// State of an entry's group column. The name of the group is not stored here, because the bytes in the file may not be
/// valid text. SQL statements compare the names as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    None,
    Readable,
    /// The bytes are not valid text.
    Damaged,
    /// The group is missing, although the queue is ordered.
    Missing,
}

impl Group {
    fn of(stored: ValueRef<'_>) -> Self {
        match stored.as_str_or_null() {
            Ok(None) => Self::None,
            Ok(Some(_)) => Self::Readable,
            Err(_) => Self::Damaged,
        }
    }
}

/// Returns the time at which the next message of a queue becomes visible, in milliseconds by the queue's clock. If a
/// message is visible already, the time is in the past. `None`: the queue is empty.
pub(super) fn next_visible(db: &Connection, queue: i64) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT min(visible_at) FROM entry INDEXED BY entry_visible WHERE queue = ?1")?
        .query_row([queue], |row| row.get(0))
}

/// Result of one receive call.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) deliveries: Vec<Delivery>,
    /// Number of messages that moved to the dead-letter queue because they were received too often.
    pub(super) buried: usize,
    /// Messages that moved to the dead-letter queue because they cannot be read.
    pub(super) set_aside: Vec<SetAside>,
}

/// Takes messages that are visible now. A message that was received too often, or that cannot be read, moves to the
/// dead-letter queue instead.
pub(super) fn take(db: &Session<'_>, source: &Source, request: Receive) -> rusqlite::Result<Received> {
    let leased_at = Instant::now();
    let now = db.now();
    let until = due_after(now, request.lease);
    let mut taken = Received::default();
    loop {
        let due = due(db, source.queue, now, request.max.saturating_sub(taken.deliveries.len()))?;
        if due.is_empty() {
            return Ok(taken);
        }
        for mut entry in due {
            // A missing group is not a fault if another process has made the queue unordered since this process opened
            // it.
            if source.ordered && entry.group == Group::None && is_ordered(db, source.queue)? {
                entry.group = Group::Missing;
            }
            match (source.dead_letter, entry.attempts) {
                (Some((queue, max)), Attempts::Counted(attempts)) if attempts >= max => {
                    let reason = format!("received {attempts} times without being settled");
                    bury(db, source, &entry, queue, &reason, now)?;
                    taken.buried += 1;
                }
                _ => match hand_out(db, source.queue, &entry, until, leased_at) {
                    Ok(delivery) => taken.deliveries.push(delivery),
                    Err(error) if is_of_the_row(&error) => {
                        taken.set_aside.push(set_aside(db, source, &entry, &error, now)?);
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }
}

fn due(db: &Connection, queue: i64, now: i64, limit: usize) -> rusqlite::Result<Vec<Entry>> {
    db.prepare_cached(
        "SELECT enqueued_at, seq, attempts, group_name FROM entry INDEXED BY entry_visible
         WHERE queue = ?1 AND visible_at <= ?2 ORDER BY visible_at, enqueued_at, seq LIMIT ?3",
    )?
    .query_map(params![queue, now, i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
        let lease = i64::from_ne_bytes(fastrand::u64(..).to_ne_bytes());
        let ticket = Ticket { enqueued_at: row.get(0)?, seq: row.get(1)?, lease };
        Ok(Entry { ticket, attempts: Attempts::of(row.get(2)?), group: Group::of(row.get_ref(3)?) })
    })?
    .collect()
}

fn hand_out(db: &Session<'_>, queue: i64, entry: &Entry, until: i64, leased_at: Instant) -> rusqlite::Result<Delivery> {
    match entry.group {
        Group::None | Group::Readable => {}
        Group::Damaged => return Err(unreadable("group_name", "holds bytes instead of UTF-8 text")),
        Group::Missing => return Err(unreadable("group_name", "is empty, although the queue is ordered")),
    }
    let attempt = match entry.attempts {
        Attempts::Counted(count) => count.saturating_add(1),
        Attempts::Damaged(stored) => {
            let fault = format_args!("is {stored} instead of a number from 0 to {}", u32::MAX);
            return Err(unreadable("attempts", fault));
        }
    };
    let Ticket { enqueued_at, seq, lease } = entry.ticket;
    db.prepare_cached(
        "UPDATE entry SET visible_at = ?4, lease = ?5, attempts = ?6
         WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3",
    )?
    .execute(params![queue, enqueued_at, seq, until, lease, attempt])?;
    let message = db
        .prepare_cached("SELECT id, group_name, routing_key, attributes, body FROM content WHERE seq = ?1")?
        .query_row([seq], |row| message(row, db.time.to_wall(enqueued_at)))?;
    Ok(Delivery {
        message: Arc::new(message),
        receipt: entry.ticket.receipt(),
        attempt,
        leased_at,
        not_before: None,
        job: None,
    })
}

/// Reads a message from a row with the columns id, group_name, routing_key, attributes and body of `content`.
pub(super) fn message(row: &Row<'_>, enqueued_at: SystemTime) -> rusqlite::Result<Message> {
    let attributes = read_attributes(optional_text(row, 3, "attributes")?.as_deref())?;
    Ok(Message {
        id: text(row, 0, "id")?,
        group: optional_text(row, 1, "group_name")?,
        routing_key: optional_text(row, 2, "routing_key")?,
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        body: bytes(row, 4, "body")?.into(),
        enqueued_at,
        claim: None,
    })
}

/// Extends the lease so that it ends `by` from now. Returns `false` if the lease is lost.
pub(super) fn extend(db: &Session<'_>, queue: i64, ticket: Ticket, by: Duration) -> rusqlite::Result<bool> {
    show_in(db, queue, ticket, by, Some(ticket.lease))
}

/// Ends the lease, and makes the message visible after `delay`. Returns `false` if the lease is lost.
pub(super) fn release(db: &Session<'_>, queue: i64, ticket: Ticket, delay: Duration) -> rusqlite::Result<bool> {
    show_in(db, queue, ticket, delay, None)
}

/// Decrements the number of attempts of an entry that was just released, so that the last attempt does not count.
fn uncount(db: &Connection, queue: i64, ticket: Ticket) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE entry SET attempts = max(attempts - 1, 0) WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3",
    )?
    .execute([queue, ticket.enqueued_at, ticket.seq])?;
    Ok(())
}

/// Settles an entry. Returns `false` without any change if the lease is lost.
pub(super) fn settle(db: &Session<'_>, source: &Source, ticket: Ticket, ending: &Ending) -> rusqlite::Result<bool> {
    let now = db.now();
    match ending {
        Ending::Release(delay) => return release(db, source.queue, ticket, *delay),
        Ending::GiveBack(delay) => {
            let is_released = release(db, source.queue, ticket, *delay)?;
            if is_released {
                uncount(db, source.queue, ticket)?;
            }
            return Ok(is_released);
        }
        Ending::Ack if !source.ordered && remove_leased(db, source.queue, ticket, now)? => {
            forget(db, ticket)?;
            return Ok(true);
        }
        Ending::Ack | Ending::DeadLetter(..) => {}
    }
    let Some(mut entry) = leased(db, source.queue, ticket, now)? else { return Ok(false) };
    if source.ordered && entry.group == Group::None {
        entry.group = Group::Missing;
    }
    if let Ending::DeadLetter(queue, reason) = ending {
        bury(db, source, &entry, *queue, reason, now)?;
    } else {
        remove(db, source.queue, &entry, now)?;
        forget(db, ticket)?;
    }
    Ok(true)
}

/// Removes a leased entry without a group in one statement. This is sufficient because no other entry waits for an
/// entry without a group. Returns `false` without any change if the entry has a group, or if the lease is lost.
fn remove_leased(db: &Connection, queue: i64, ticket: Ticket, now: i64) -> rusqlite::Result<bool> {
    let removed = db
        .prepare_cached(
            "DELETE FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND lease = ?4 AND visible_at > ?5
             AND group_name IS NULL",
        )?
        .execute(params![queue, ticket.enqueued_at, ticket.seq, ticket.lease, now])?;
    Ok(removed == 1)
}

/// Deletes the content of a removed entry.
fn forget(db: &Connection, ticket: Ticket) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM content WHERE seq = ?1")?.execute([ticket.seq])?;
    Ok(())
}

/// Makes a leased entry visible after `delay`, and replaces its lease with `lease`. Returns `false` if the lease is
/// lost.
fn show_in(
    db: &Session<'_>,
    queue: i64,
    ticket: Ticket,
    delay: Duration,
    lease: Option<i64>,
) -> rusqlite::Result<bool> {
    let now = db.now();
    let visible_at = due_after(now, delay);
    let changed = db
        .prepare_cached(
            "UPDATE entry SET visible_at = ?6, lease = ?7
             WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND lease = ?4 AND visible_at > ?5",
        )?
        .execute(params![queue, ticket.enqueued_at, ticket.seq, ticket.lease, now, visible_at, lease])?;
    Ok(changed == 1)
}

/// Returns the error for an entry whose lease is lost.
pub(super) fn lost() -> LeaseError {
    LeaseError::Lost("it has ended, or the message was settled".to_owned())
}

fn leased(db: &Connection, queue: i64, ticket: Ticket, now: i64) -> rusqlite::Result<Option<Entry>> {
    db.prepare_cached(
        "SELECT attempts, group_name FROM entry
         WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND lease = ?4 AND visible_at > ?5",
    )?
    .query_row(params![queue, ticket.enqueued_at, ticket.seq, ticket.lease, now], |row| {
        Ok(Entry { ticket, attempts: Attempts::of(row.get(0)?), group: Group::of(row.get_ref(1)?) })
    })
    .optional()
}

/// Removes an entry from its queue, and makes the next entry of its group visible.
fn remove(db: &Connection, queue: i64, entry: &Entry, now: i64) -> rusqlite::Result<()> {
    let Ticket { enqueued_at, seq, .. } = entry.ticket;
    if let Group::Readable | Group::Damaged = entry.group {
        db.prepare_cached(
            "UPDATE entry SET visible_at = max(due_at, ?4) WHERE (queue, enqueued_at, seq) = (
                 SELECT queue, enqueued_at, seq FROM entry INDEXED BY entry_group
                 WHERE queue = ?1 AND seq != ?3 AND group_name = (
                     SELECT group_name FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3
                 ) ORDER BY seq LIMIT 1
             )",
        )?
        .execute(params![queue, enqueued_at, seq, now])?;
    }
    if let Group::Damaged | Group::Missing = entry.group {
        // The entries that wait for this entry still have the original name of the group. The content of this entry may
        // contain that name.
        db.prepare_cached(
            "UPDATE entry SET visible_at = max(due_at, ?3) WHERE visible_at IS NULL AND (queue, enqueued_at, seq) = (
                 SELECT queue, enqueued_at, seq FROM entry INDEXED BY entry_group
                 WHERE queue = ?1 AND seq != ?2 AND group_name = (SELECT group_name FROM content WHERE seq = ?2)
                 ORDER BY seq LIMIT 1
             ) AND NOT EXISTS (
                 SELECT 1 FROM entry AS head INDEXED BY entry_group
                 WHERE head.queue = ?1 AND head.group_name = entry.group_name AND head.visible_at IS NOT NULL
             )",
        )?
        .execute(params![queue, seq, now])?;
    }
    db.prepare_cached("DELETE FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3")?.execute([
        queue,
        enqueued_at,
        seq,
    ])?;
    Ok(())
}

impl Entry {
    /// Returns an entry without a lease, as the owner of its queue knows it.
    pub(super) fn owned(enqueued_at: i64, seq: i64, attempts: u32) -> Self {
        let ticket = Ticket { enqueued_at, seq, lease: 0 };
        Self { ticket, attempts: Attempts::Counted(attempts), group: Group::None }
    }

    /// Returns the key of the entry's content.
    pub(super) fn seq(&self) -> i64 {
        self.ticket.seq
    }
}

/// Moves an entry to the dead-letter queue. Only the row in `entry` is replaced, so no body is copied.
pub(super) fn bury(
    db: &Connection,
    source: &Source,
    entry: &Entry,
    dead_letter_queue: i64,
    reason: &str,
    now: i64,
) -> rusqlite::Result<()> {
    let Ticket { enqueued_at, seq, .. } = entry.ticket;
    remove(db, source.queue, entry, now)?;
    let attributes = match read_stored(db, seq) {
        Err(error) if is_of_the_row(&error) => rescue(db, seq)?,
        stored => stored?,
    };
    let group = lossy(db, "group_name", seq)?;
    let attributes =
        dead_letter_attributes(&attributes, reason, &source.name, entry.attempts.counted(), MAX_ATTRIBUTES);
    db.prepare_cached("UPDATE content SET attributes = ?2 WHERE seq = ?1")?
        .execute(params![seq, write_attributes(&attributes)?])?;
    let target = Target { id: dead_letter_queue, ordered: is_ordered(db, dead_letter_queue)? };
    place(db, target, seq, group.as_deref(), enqueued_at, now)
}

#[cfg(test)]
mod tests {
    use super::super::EmbeddedBroker;
    use hostler_queue::{Admin, Broker, ChannelSpec, Queue, Settlement};
    use hostler_types::message::Outgoing;
    use tokio_util::sync::CancellationToken;

    use super::*;

    async fn receive(queue: &Arc<dyn Queue>) -> Vec<Delivery> {
        let request = Receive { max: 10, wait: Duration::ZERO, lease: Duration::from_secs(30) };
        queue.receive(request, &CancellationToken::new()).await.unwrap()
    }

    fn bodies(deliveries: &[Delivery]) -> Vec<String> {
        let mut bodies: Vec<_> =
            deliveries.iter().map(|one| String::from_utf8_lossy(&one.message.body).into_owned()).collect();
        bodies.sort();
        bodies
    }

    #[tokio::test]
    async fn a_group_that_cannot_be_read_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        let channel = "jobs".parse().unwrap();
        let spec = ChannelSpec { max_receives: Some(9), ordered: true, ..ChannelSpec::new(channel) };
        let queue = broker.open(&spec).await.unwrap();
        let message = |(body, group): (&str, &str)| Outgoing {
            body: body.into(),
            group: Some(group.to_owned()),
            ..Outgoing::default()
        };
        let messages = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c"), ("c2", "c")];
        broker.send(&"jobs".parse().unwrap(), messages.map(message).into()).await;
        let meddler = Connection::open(&path).unwrap();
        let damage = |body: &str, value: &str| {
            let changed = meddler.execute(
                &format!(
                    "UPDATE entry SET group_name = {value} WHERE seq =
                     (SELECT seq FROM content WHERE body = CAST(?1 AS BLOB))"
                ),
                [body],
            );
            assert_eq!(changed.unwrap(), 1);
        };
        // Moves a1 alone into one damaged group. Moves b1 and b2 into another damaged group, in which b2 waits for b1.
        damage("a1", "CAST(x'ff61' AS TEXT)");
        damage("b1", "CAST(x'ff62' AS TEXT)");
        damage("b2", "CAST(x'ff62' AS TEXT)");
        let received = receive(&queue).await;
        assert_eq!(bodies(&received), ["a2", "c1"], "the others go on");
        let dead_lettered = broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].dead_lettered;
        assert_eq!(dead_lettered, 3);

        // A damaged entry that is leased can still be settled, and the next entry of its group becomes visible.
        damage("c1", "CAST(x'ff63' AS TEXT)");
        let acks = received.into_iter().map(|one| Settlement::Ack(one.receipt)).collect();
        assert!(queue.settle(acks).await.iter().all(Result::is_ok));
        assert_eq!(bodies(&receive(&queue).await), ["c2"]);
    }
}
