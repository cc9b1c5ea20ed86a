//! Queues whose messages one process schedules itself: the stores of the retry service.
//!
//! A consumer takes messages under leases, which costs a write per receive. The owner of a queue remembers in memory
//! which messages it has read, and writes only when a message ends, waits longer or is parked. The rows are those of any
//! other queue, so the commands for queues work on them.
//!
//! A parked message is due, and waits for its subject. Its `group_name` is the subject and the time at which it was due, so
//! the index of the groups finds the parked messages of a subject in the order in which they were due. Its `visible_at` is
//! the time at which the message expires, or null.

mod closed;
mod counts;
mod moving;
mod page;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedBroker;
use super::clock::Session;
use super::lease::{Entry, SetAside, Source, bury};
use super::registration::Registration;
use super::rows::write_attributes;
use super::topology;
use super::writer::{Need, Writer};
pub use counts::Counts;
use hostler_queue::QueueError;
use hostler_types::channel::Channel;
use hostler_types::message::{Attributes, Message};
pub use moving::{Batch, Moved};

/// Identifies a message of an owned queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Index of the queue in the list with which the queues were opened.
    pub queue: usize,
    /// Time at which the message was stored, in milliseconds by the queue's clock.
    pub enqueued_at: i64,
    /// Number of the message in its file.
    pub seq: i64,
}

/// A message to store.
#[derive(Debug, Clone)]
pub struct NewMessage {
    /// Index of the queue.
    pub queue: usize,
    /// Id of the message.
    pub id: String,
    /// Subject of the message, stored as its routing key.
    pub subject: String,
    /// Attributes. Any number of bytes is accepted.
    pub attributes: Attributes,
    /// Body.
    pub body: Bytes,
    /// Number of earlier deliveries.
    pub attempts: u32,
    /// Time at which the message counts as stored, in milliseconds by the queue's clock.
    pub enqueued_at: i64,
    /// Time at which the message is due, in milliseconds by the queue's clock.
    pub due: i64,
    /// Set to park the message if it is due when it is stored.
    pub parked: bool,
}

/// A change of a stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Removes the message.
    Remove(Place),
    /// Makes the message wait until `due`, and stores its number of deliveries.
    Reschedule {
        /// The message.
        place: Place,
        /// Number of deliveries so far.
        attempts: u32,
        /// Time at which the message is due, in milliseconds by the queue's clock.
        due: i64,
    },
    /// Parks the message.
    Park {
        /// The message.
        place: Place,
        /// Subject that the message waits for.
        subject: Arc<str>,
        /// Time at which the message was due, in milliseconds by the queue's clock.
        due: i64,
        /// Time at which the message is among those that are due again: when it expires. `None`: never.
        until: Option<i64>,
    },
    /// Stores the time until which a subject is closed. [`OwnedQueues::closed`] returns it.
    Close {
        /// The subject.
        subject: Arc<str>,
        /// Time in milliseconds by the queue's clock.
        until: i64,
    },
    /// Moves the message to the dead-letter queue.
    DeadLetter {
        /// The message.
        place: Place,
        /// Number of deliveries so far.
        attempts: u32,
        /// The reason, stored with the message.
        reason: String,
    },
}

/// Position in the order in which messages become due: time, time of storing, number.
pub type Cursor = (i64, i64, i64);

/// Messages to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Messages that are due until a time.
    Due {
        /// Position after which to read. `None`: from the beginning.
        after: Option<Cursor>,
        /// Latest time, in milliseconds by the queue's clock.
        until: i64,
    },
    /// Parked messages of a subject, in the order in which they were due.
    Parked(Arc<str>),
    /// Parked messages of any subjects, the first one of each, in the order of the subjects.
    Subjects {
        /// Subject after which to read. Empty: from the beginning.
        after: String,
    },
}

/// A request to read messages of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Index of the queue.
    pub queue: usize,
    /// Messages to read.
    pub wanted: Wanted,
    /// Numbers of messages to leave out.
    pub skip: Arc<HashSet<i64>>,
    /// Maximum number of messages: at least 1.
    pub max: usize,
    /// Number of bytes after which no further message is read.
    pub max_bytes: usize,
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Place of the message.
    pub place: Place,
    /// The message.
    pub message: Message,
    /// Number of deliveries so far.
    pub attempts: u32,
    /// Time at which the message is due, or was when it was parked.
    pub due: i64,
}

/// Messages that were read.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The messages, in their order.
    pub messages: Vec<Stored>,
    /// Set if there are more messages.
    pub has_more: bool,
    /// Position of the last message. `None`: the page is empty, or contains parked messages.
    pub end: Option<Cursor>,
}

/// Changes and reads that happen in one transaction: first the new messages, then the changes, then the reads.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    /// Messages to store. With them, the transaction is on the disk before the turn is answered.
    pub new: Vec<NewMessage>,
    /// Changes, in their order.
    pub steps: Vec<Step>,
    /// Messages to read.
    pub loads: Vec<Load>,
    /// Set if the turn, and all turns before it, must be on the disk before it is answered.
    pub flush: bool,
}

/// The result of a turn.
#[derive(Debug, Clone, Default)]
pub struct Turned {
    /// Places of the new messages, in the order of the turn.
    pub new: Vec<Place>,
    /// The messages that were read, one page for each load.
    pub pages: Vec<Page>,
    /// Set if another process wrote to the file since the last turn with a load.
    pub others_wrote: bool,
}

/// Queues of one file that this process schedules itself. No other process may own the same queues.
#[derive(Debug, Clone)]
pub struct OwnedQueues {
    writer: Writer,
    sources: Arc<Vec<Source>>,
    /// Last value of `PRAGMA data_version`.
    seen: Arc<AtomicI64>,
}

impl EmbeddedBroker {
    /// Opens queues to schedule their messages. Creates missing queues, and the queue for the dead letters of all of
    /// them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn own(&self, channels: &[Channel], dead_letters: &Channel) -> Result<OwnedQueues, QueueError> {
        let (names, dead): (Vec<_>, _) = (channels.to_vec(), dead_letters.queue().to_owned());
        let open = move |db: &Session<'_>| {
            let dead_letter = topology::find_or_create(db, &dead, false)?.id;
            let source = |channel: &Channel| {
                let queue = topology::find_or_create(db, channel.queue(), false)?.id;
                Ok(Source {
                    queue,
                    name: channel.to_string(),
                    ordered: false,
                    dead_letter_name: dead.clone(),
                    dead_letter: Some((dead_letter, u32::MAX)),
                    registrations: vec![Registration { id: queue, name: channel.queue().to_owned() }],
                })
            };
            names.iter().map(source).collect::<rusqlite::Result<Vec<_>>>()
        };
        let sources = self.writer.call(Need::Durable, open).await?;
        Ok(OwnedQueues { writer: self.writer.clone(), sources: Arc::new(sources), seen: Arc::default() })
    }
}

impl OwnedQueues {
    /// Returns the time of the queue's clock in milliseconds.
    pub fn now(&self) -> i64 {
        self.writer.now()
    }

    /// Carries out a turn in one transaction.
    ///
    /// # Errors
    /// Nothing was changed and nothing was read.
    pub async fn turn(&self, turn: Turn) -> Result<Turned, QueueError> {
        let need = if turn.new.is_empty() && !turn.flush { Need::Write } else { Need::Durable };
        let (sources, seen) = (Arc::clone(&self.sources), Arc::clone(&self.seen));
        let work = move |db: &Session<'_>| carry_out(db, &sources, seen.load(Ordering::Relaxed), &turn);
        let CarriedOut { turned, set_aside, version } = self.writer.call(need, work).await?;
        // Not before the commit: a turn that is rolled back must tell again that others wrote.
        if let Some(version) = version {
            self.seen.store(version, Ordering::Relaxed);
        }
        for (queue, message) in set_aside {
            message.log(self.sources.get(queue).map_or("", |source| &source.name));
        }
        Ok(turned)
    }

    /// Returns the subjects that have parked messages, each with the index of its queue.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn parked(&self) -> Result<Vec<(usize, String)>, QueueError> {
        let sources = Arc::clone(&self.sources);
        self.writer.call(Need::Read, move |db| page::parked_subjects(db, &sources)).await
    }
}

/// The result of a turn, before it is committed.
struct CarriedOut {
    turned: Turned,
    /// Messages that were moved to the dead-letter queue because they cannot be read, with the indexes of their queues.
    set_aside: Vec<(usize, SetAside)>,
    /// Value of `PRAGMA data_version`, if it was read.
    version: Option<i64>,
}

/// Carries out a turn. `seen`: value of `PRAGMA data_version` at the last turn that read it.
fn carry_out(db: &Session<'_>, sources: &[Source], seen: i64, turn: &Turn) -> rusqlite::Result<CarriedOut> {
    let (mut turned, mut set_aside, mut version) = (Turned::default(), Vec::new(), None);
    for message in &turn.new {
        if let Some(source) = sources.get(message.queue) {
            turned.new.push(insert(db, source, message)?);
        }
    }
    for step in &turn.steps {
        apply(db, sources, step)?;
    }
    if turn.flush {
        closed::forget_open(db)?;
    }
    if turn.flush && turn.new.is_empty() && turn.steps.is_empty() {
        // A transaction that changes nothing would not be flushed, and neither would those before it.
        apply(db, sources, &Step::Close { subject: "".into(), until: db.now() })?;
    }
    if !turn.loads.is_empty() {
        let found: i64 = db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        turned.others_wrote = found != seen;
        version = Some(found);
    }
    for load in &turn.loads {
        if let Some(source) = sources.get(load.queue) {
            let (page, damaged) = page::read(db, source, load)?;
            turned.pages.push(page);
            set_aside.extend(damaged.into_iter().map(|message| (load.queue, message)));
        }
    }
    Ok(CarriedOut { turned, set_aside, version })
}

pub(super) fn insert(db: &Connection, source: &Source, message: &NewMessage) -> rusqlite::Result<Place> {
    db.prepare_cached("INSERT INTO content (id, routing_key, attributes, body) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![message.id, message.subject, write_attributes(&message.attributes)?, message.body.as_ref()])?;
    let seq = db.last_insert_rowid();
    let is_parked = message.parked && message.due <= message.enqueued_at;
    let group = is_parked.then(|| page::parked_group(&message.subject, message.due));
    let visible_at = (!is_parked).then_some(message.due);
    db.prepare_cached(
        "INSERT INTO entry (queue, enqueued_at, seq, visible_at, due_at, attempts, group_name)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![source.queue, message.enqueued_at, seq, visible_at, message.due, message.attempts, group])?;
    Ok(Place { queue: message.queue, enqueued_at: message.enqueued_at, seq })
}

/// Changes a stored message. Does nothing if another process has removed the message.
fn apply(db: &Session<'_>, sources: &[Source], step: &Step) -> rusqlite::Result<()> {
    let source = |place: &Place| sources.get(place.queue);
    match step {
        Step::Remove(place) => {
            let Some(source) = source(place) else { return Ok(()) };
            let removed = db
                .prepare_cached("DELETE FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3")?
                .execute([source.queue, place.enqueued_at, place.seq])?;
            if removed == 1 {
                db.prepare_cached("DELETE FROM content WHERE seq = ?1")?.execute([place.seq])?;
            }
        }
        Step::Reschedule { place, attempts, due } => {
            let Some(source) = source(place) else { return Ok(()) };
            db.prepare_cached(
                "UPDATE entry SET visible_at = ?4, due_at = ?4, attempts = ?5, lease = NULL, group_name = NULL
                 WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3",
            )?
            .execute(params![source.queue, place.enqueued_at, place.seq, due, attempts])?;
        }
        Step::Park { place, subject, due, until } => {
            let Some(source) = source(place) else { return Ok(()) };
            let group = page::parked_group(subject, *due);
            db.prepare_cached(
                "UPDATE entry SET visible_at = ?4, due_at = ?5, lease = NULL, group_name = ?6
                 WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3",
            )?
            .execute(params![source.queue, place.enqueued_at, place.seq, until, due, group])?;
        }
        Step::Close { subject, until } => {
            closed::close(db, subject.as_bytes(), *until)?;
        }
        Step::DeadLetter { place, attempts, reason } => {
            let Some(source) = source(place) else { return Ok(()) };
            let is_there: Option<i64> = db
                .prepare_cached("SELECT 1 FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3")?
                .query_row([source.queue, place.enqueued_at, place.seq], |row| row.get(0))
                .optional()?;
            if let (Some(_), Some((dead_letters, _))) = (is_there, source.dead_letter) {
                let entry = Entry::owned(place.enqueued_at, place.seq, *attempts);
                bury(db, source, &entry, dead_letters, reason, db.now())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
