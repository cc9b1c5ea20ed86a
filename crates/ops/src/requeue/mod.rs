//! Moves messages from one queue to another, above all out of a dead-letter queue; or drops them, or only inspects
//! them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `condition` | conditions on messages, as people write them | none |
//! | `sort` | decides which of a batch move, and in which order | none |
//! | `copy` | the copy of a message, and the answer to its send | none |
//! | `held` | the messages that stay, with their leases | none |
//! | `groups` | the groups of an ordered queue that were seen | none |
//! | `calls` | settles, extends and loads, several calls at once | yes |
//! | `rehearsal` | shows the messages that a drop would remove | yes |
//! | `engine` | the loop: receives, sorts, sends, acks | yes |
//!
//! A message is sent before it is removed, so an end at any point loses none. The dedupe key of the copy makes a second
//! send harmless for 5 minutes, where the queue supports such keys. Messages that stay are kept leased until the end,
//! so that each message is inspected once, and are then released.

pub(super) mod calls;
mod condition;
mod copy;
mod engine;
mod groups;
mod rehearsal;
mod set_aside;
mod sort;

pub use condition::{Condition, InvalidCondition};
pub(super) use engine::look;
pub use engine::run;
pub use rehearsal::rehearse;

use std::time::{Duration, SystemTime};

use hostler_queue::QueueError;
use hostler_types::Rate;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// The lease of messages while they are inspected. A batch takes a small part of it.
pub const LEASE: Duration = Duration::from_secs(60);

/// The most messages that are held because they stay (SQS allows at most 120,000 of a queue in flight).
pub const MAX_HELD: usize = 100_000;

/// A request to move messages.
#[derive(Debug, Clone)]
pub struct MoveRequest {
    /// The queue to take messages from.
    pub from: Channel,
    /// The target: this queue alone, even if it belongs to an exchange. `None`: messages are removed.
    pub to: Option<Channel>,
    /// The conditions on a message; all must hold.
    pub conditions: Vec<Condition>,
    /// The most messages to move.
    pub max: Option<u64>,
    /// The highest rate of sends, or of removals without a target.
    pub rate: Option<Rate>,
    /// Set to only inspect. Each inspection counts as a receive on the queue.
    pub dry_run: bool,
    /// The start of the run, by our clock; it is converted to the queue's clock. Messages sent to `from` later stay,
    /// and so do messages that this run has already moved, so that those which fail again at once do not circulate.
    /// Ages are counted up to this time.
    pub began: SystemTime,
}

/// The counts of the run, so far or at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages sent to the target, or removed without one; in a dry run, those that would be.
    pub moved: u64,
    /// Messages that stay because they do not match.
    pub left: u64,
    /// Messages that stay because they could not be read or sent.
    pub failed: u64,
    /// Moved messages that could not be removed from their queue. They are in both queues, or without a target still in
    /// the first.
    pub doubled: u64,
    /// Messages that were there at the start and were not inspected: beyond the maximum, delayed, leased by others, or
    /// behind a message of their group that stays. Includes messages that were inspected but stay behind such a
    /// message. As exact as the service's count.
    pub not_looked_at: u64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// All messages were inspected, or the maximum is reached.
    Done,
    /// The run was stopped; the batch under way was finished.
    Stopped,
    /// The hold limit is reached: [`MAX_HELD`] messages stay.
    Full,
    /// A queue failed. Messages that were not moved are back in their queue.
    Broken(QueueError),
}

/// A report during a run.
#[derive(Debug)]
pub enum Note<'a> {
    /// The run begins.
    Began {
        /// Messages that may be inspected, by the queue's count.
        total: u64,
    },
    /// The counts have changed.
    Progress(Report),
    /// In a dry run: this message would be moved.
    WouldMove(&'a Message),
    /// This message should move but stays.
    Failed {
        /// The id of the message.
        id: &'a str,
        /// The reason, for a person.
        reason: &'a str,
    },
}
