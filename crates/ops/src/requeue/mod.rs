//! Moves messages from one queue to another, usually out of a dead-letter queue. Can also drop messages, or only
//! inspect them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `condition` | parses and evaluates conditions on messages | none |
//! | `sort` | decides which messages of a batch move, and in which order | none |
//! | `copy` | creates the copy of a message, and interprets the queue's answer to it | none |
//! | `set_aside` | unmoved messages with their leases | none |
//! | `unremoved` | messages that were sent and not yet removed | none |
//! | `groups` | the groups of an ordered queue from which messages were received | none |
//! | `calls` | settles, extends and loads in parallel calls | yes |
//! | `rehearsal` | shows the messages that a drop would remove | yes |
//! | `engine` | the requeue loop: receives, sorts, sends, removes | yes |
//!
//! A message is sent before it is removed, so no message is lost if the run ends at any point. If the queue supports
//! dedupe keys, the key of the copy makes a second send harmless for 5 minutes. Unmoved messages remain leased until
//! the end of the run, so that each message is inspected once. Then they are released.

pub(super) mod calls;
mod condition;
mod copy;
mod engine;
mod groups;
mod rehearsal;
pub(super) mod set_aside;
mod sort;
mod unremoved;

pub use condition::{Condition, InvalidCondition};
pub(super) use engine::look;
pub use engine::run;
pub use rehearsal::rehearse;

use std::time::{Duration, SystemTime};

use hostler_queue::QueueError;
use hostler_types::Rate;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// Lease of received messages during a run. Processing a batch takes a small part of this time.
pub const LEASE: Duration = Duration::from_secs(60);

/// Maximum number of unmoved messages to hold. Below the SQS limit of 120,000 messages in flight per queue.
pub const MAX_HELD: usize = 100_000;

/// A request to move messages.
#[derive(Debug, Clone)]
pub struct MoveRequest {
    /// Source queue.
    pub from: Channel,
    /// Target queue. If the channel has an exchange, the exchange is not used. `None`: messages are removed instead.
    pub to: Option<Channel>,
    /// Conditions, all of which a message must meet.
    pub conditions: Vec<Condition>,
    /// Maximum number of messages to move.
    pub max: Option<u64>,
    /// Maximum rate at which messages are sent or, if there is no target, removed.
    pub rate: Option<Rate>,
    /// Set to only inspect messages. The service counts each inspected message as received once more.
    pub dry_run: bool,
    /// Start time of the run. Ages are relative to this time. The caller sets it by our clock, and the run converts it
    /// to the clock of the queue service.
    ///
    /// Messages that were sent to `from` after this time do not move. Neither do messages that this run has moved and
    /// that were then dead-lettered again. Otherwise, a message that fails immediately could circulate without end.
    pub began: SystemTime,
}

/// Counts of a run, so far or at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of messages that were sent to the target. If there is no target, the number of removed messages. In a dry
    /// run, the number of messages that would move.
    pub moved: u64,
    /// Number of messages that did not move, because they do not meet the conditions.
    pub left: u64,
    /// Number of messages that did not move, because they could not be read or sent.
    pub failed: u64,
    /// Number of moved messages that could not be removed from the source. They are in both queues. If there is no
    /// target, they are still in the source. Where several messages may have the same id, such a message is sent or
    /// removed once more when it is received again, and counts as moved each time.
    pub doubled: u64,
    /// Number of messages that were in the source at the start of the run but were not inspected, because they exceed
    /// the maximum, are delayed, are leased by others, or follow an unmoved message of their group. Also counts
    /// messages that were inspected but did not move because they follow an unmoved message of their group. The number
    /// is derived from the service's message count, and is only as exact as that count.
    pub not_looked_at: u64,
}

/// Reason why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// All messages were inspected, or the maximum is reached.
    Done,
    /// The run was stopped, after the batch in progress was finished.
    Stopped,
    /// [`MAX_HELD`] messages are held, so no more can be inspected.
    Full,
    /// A queue failed. Unmoved messages are back in their queue.
    Broken(QueueError),
}

/// An event of a run.
#[derive(Debug)]
pub enum Note<'a> {
    /// The run begins.
    Began {
        /// Number of messages to inspect, according to the service's count.
        total: u64,
    },
    /// The counts have changed.
    Progress(Report),
    /// In a dry run: this message would move.
    WouldMove(&'a Message),
    /// This message should move but cannot.
    Failed {
        /// Id of the message.
        id: &'a str,
        /// Human-readable reason.
        reason: &'a str,
    },
}
