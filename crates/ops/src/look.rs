//! Looks at the messages of a queue, above all of a dead-letter queue, and leaves them there.

use std::ops::ControlFlow;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::requeue::{self, Condition, Ended, Note, Order};
use hostler_queue::{Admin, QueueError};
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// What to look for.
#[derive(Debug, Clone)]
pub struct Look {
    /// The queue to look into.
    pub at: Channel,
    /// What a message has to be; all must hold.
    pub conditions: Vec<Condition>,
    /// Show no more than so many.
    pub max: u64,
    /// When the look begins, by the queue's clock: ages are counted up to it.
    pub began: SystemTime,
}

/// The end of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// How it ended.
    pub ended: Ended,
    /// How many messages were there and could not be looked at, unless the look ended before; as exact as the service counts.
    pub unseen: u64,
    /// Groups of an ordered queue of which there may be more messages than the service shows.
    pub unfinished: Vec<String>,
}

impl Looked {
    /// A look at everything.
    fn whole(ended: Ended) -> Self {
        Self { ended, unseen: 0, unfinished: Vec::new() }
    }
}

/// Shows each message that fits. Where the service shows messages only to who receives them (SQS), they are received, kept
/// leased until all are looked at, and then given back: that counts as a receive on each, what is leased or delayed is not
/// seen, and of an ordered queue only the first ten of each group, as SQS hands out no more of it while those are leased. `stop`: no more is received, and what was is given
/// back.
///
/// # Errors
/// [`QueueError`] if the queue cannot be opened. What goes wrong later is in [`Ended`].
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
    let order = Order { from: at, to: None, conditions, max: Some(max), rate: None, dry_run: true, began };
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
