//! Moves messages from one queue to another, above all out of a dead-letter queue back to work; or drops them, or only looks.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `condition` | which messages to move, as a person writes it | none |
//! | `sort` | which of a batch move, and in which order | none |
//! | `copy` | what is sent for a message, and what an answer to it means | none |
//! | `held` | what was looked at and stays, with its leases | none |
//! | `groups` | what a look has seen of the groups of an ordered queue | none |
//! | `calls` | settling, extending and loading, several calls at once | yes |
//! | `rehearsal` | what a drop would remove | yes |
//! | `engine` | the loop: receive, sort, send, ack | yes |
//!
//! A message is sent before it is removed, so that an end at any point loses none; the dedupe key of what is sent makes a
//! repetition harmless for 5 minutes, where the queue knows such keys. What stays is kept leased until the end, so that
//! every message is looked at once, and is then released.

mod calls;
mod condition;
mod copy;
mod engine;
mod groups;
mod held;
mod rehearsal;
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

/// How long messages are leased while they are looked at. A batch takes a small part of it.
pub const LEASE: Duration = Duration::from_secs(60);

/// The most messages that are kept aside because they stay (SQS has at most 120,000 of a queue in flight).
pub const MAX_HELD: usize = 100_000;

/// What to move.
#[derive(Debug, Clone)]
pub struct Order {
    /// The queue to take messages from.
    pub from: Channel,
    /// Where they go: this queue and no other, even if it is one of an exchange. `None`: nowhere, they are removed.
    pub to: Option<Channel>,
    /// What a message has to be; all must hold.
    pub conditions: Vec<Condition>,
    /// Move no more than so many.
    pub max: Option<u64>,
    /// Send no faster than this.
    pub rate: Option<Rate>,
    /// Only look. Each look counts as a receive on the queue.
    pub dry_run: bool,
    /// When the run begins, by our clock. What is sent to `from` later stays, and so does what this run has moved before, so that
    /// messages which fail again at once do not go round for ever; ages are counted up to it. Both go by the queue's clock.
    pub began: SystemTime,
}

/// What has become of the messages, so far or in the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Sent to the target, or removed where there is none; in a dry run, what would be.
    pub moved: u64,
    /// Stay, as they do not match.
    pub left: u64,
    /// Stay, as they could not be read or sent.
    pub failed: u64,
    /// Of those moved: could not be removed from their queue, and so are in both; where there is no target, are still there.
    pub doubled: u64,
    /// Were there at the start and have not been looked at: beyond the maximum, delayed, leased by others, or behind a
    /// message of their group that stays. Those behind one that would move otherwise count here as well. As exact as the
    /// service counts.
    pub not_looked_at: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// All was looked at, or the maximum is reached.
    Done,
    /// It was told to stop; the batch under way was finished.
    Stopped,
    /// So many messages stay that no more could be kept aside: [`MAX_HELD`].
    Full,
    /// A queue failed; what was not moved is back where it was.
    Broken(QueueError),
}

/// What a run tells while it works.
#[derive(Debug)]
pub enum Note<'a> {
    /// It begins; so many messages may be looked at.
    Began {
        /// As the queue counts them.
        total: u64,
    },
    /// The counts have changed.
    Progress(Report),
    /// A dry run: this message would be moved.
    WouldMove(&'a Message),
    /// This message stays though it should be moved.
    Failed {
        /// Which.
        id: &'a str,
        /// Why, for a person.
        reason: &'a str,
    },
}
