//! Shows the messages of a queue, usually a dead-letter queue, without removing them.

use std::ops::ControlFlow;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::requeue::{self, Condition, Ended, MoveRequest, Note};
use hostler_queue::{Admin, QueueError};
use hostler_types::BoxFuture;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// A request to show messages.
#[derive(Debug, Clone)]
pub struct Look {
    /// The queue to read.
    pub at: Channel,
    /// Conditions, all of which a message must meet.
    pub conditions: Vec<Condition>,
    /// Maximum number of messages to show.
    pub max: u64,
    /// Start time of the operation, by our clock. Ages are relative to this time.
    pub began: SystemTime,
}

/// Result of showing messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// Reason why the operation ended.
    pub ended: Ended,
    /// Number of messages in the queue that could not be read, based on the service's message count. Zero if the
    /// operation ended early.
    pub unseen: u64,
    /// Groups of an ordered queue that may have more messages than the service returned.
    pub unfinished: Vec<String>,
}

impl Looked {
    /// Returns a result that reports no unread messages.
    fn whole(ended: Ended) -> Self {
        Self { ended, unseen: 0, unfinished: Vec::new() }
    }
}

/// Passes each message that meets the conditions to `show`.
///
/// Some services, for example SQS, show messages only to a receiver. With such a service, messages are received, kept
/// leased until all have been read, and then given back. The service counts each of these messages as received once
/// more. Messages that are delayed or leased by others are not shown. At most ten messages of each group in an ordered
/// queue are shown, because SQS returns no more while these ten are leased. If `stop` is cancelled, receiving ends, and
/// received messages are given back.
///
/// # Errors
/// [`QueueError`]: the queue cannot be opened. Later errors are in [`Ended`].
pub fn look<'a>(
    broker: &'a dyn Admin,
    look: Look,
    stop: &'a CancellationToken,
    show: &'a mut (dyn FnMut(&Message) + Send),
) -> BoxFuture<'a, Result<Looked, QueueError>> {
    Box::pin(async move {
        let Look { at, conditions, max, began } = look;
        let mut left = max;
        let mut each = |message: &Message| {
            if conditions.iter().all(|condition| condition.holds(message, began)) {
                show(message);
                left = left.saturating_sub(1);
            }
            if left == 0 || stop.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if broker.peek(&at, &mut each).await? {
            return Ok(Looked::whole(if stop.is_cancelled() { Ended::Stopped } else { Ended::Done }));
        }
        let order = MoveRequest { from: at, to: None, conditions, max: Some(max), rate: None, dry_run: true, began };
        let mut tell = |note: Note<'_>| {
            if let Note::WouldMove(message) = note {
                show(message);
            }
        };
        let (report, ended, unfinished) = requeue::look(broker, order, stop, &mut tell).await?;
        if ended != Ended::Done || report.moved >= max || report.not_looked_at == 0 {
            return Ok(Looked::whole(ended));
        }
        Ok(Looked { ended, unseen: report.not_looked_at, unfinished })
    })
}
