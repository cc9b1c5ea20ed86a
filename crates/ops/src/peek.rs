//! Shows the messages of a queue, above all of a dead-letter queue, and leaves them there.

use std::ops::ControlFlow;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::requeue::{self, Condition, Ended, MoveRequest, Note};
use hostler_queue::{Admin, QueueError};
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// A request to show messages.
#[derive(Debug, Clone)]
pub struct Look {
    /// The queue to read.
    pub at: Channel,
    /// The conditions on a message; all must hold.
    pub conditions: Vec<Condition>,
    /// The most messages to show.
    pub max: u64,
    /// The start of the look, by our clock. Ages are counted up to it.
    pub began: SystemTime,
}

/// The result of showing messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// The reason for the end.
    pub ended: Ended,
    /// Messages that were in the queue and could not be read, by the service's count; zero if the look ended early.
    pub unseen: u64,
    /// Groups of an ordered queue that may have more messages than the service shows.
    pub unfinished: Vec<String>,
}

impl Looked {
    /// Returns the result of a look without unseen messages.
    fn whole(ended: Ended) -> Self {
        Self { ended, unseen: 0, unfinished: Vec::new() }
    }
}

/// Shows each message that meets the conditions.
///
/// A service that shows messages only to their receiver (SQS) has them received, kept leased until all are read, and
/// then given back. This counts as a receive of each message. Leased and delayed messages are not seen. Of an ordered
/// queue only the first ten of each group are seen, since SQS hands out no more of a group while those are leased.
/// `stop` ends the receives; messages already received are given back.
///
/// # Errors
/// [`QueueError`] if the queue cannot be opened. Later errors are in [`Ended`].
pub async fn look(
    broker: &dyn Admin,
    look: Look,
    stop: &CancellationToken,
    show: &mut (dyn FnMut(&Message) + Send),
) -> Result<Looked, QueueError> {
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
}
