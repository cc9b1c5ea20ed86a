//! Shows the messages that a drop would remove. Receives messages only if the service has no other way to show them.

use std::ops::ControlFlow;

use tokio_util::sync::CancellationToken;

use super::sort::{Sorter, Verdict};
use super::{Ended, MoveRequest, Note, run};
use crate::Look;
use hostler_queue::{Admin, QueueError};
use hostler_types::BoxFuture;
use hostler_types::message::Message;

/// Calls `show` with each message that a drop would remove. Returns the reason why the operation ended, and the number
/// of messages that were not inspected. For an ordered queue, this number includes messages that follow an unmoved
/// message of their group.
///
/// # Errors
/// [`QueueError`]: the queue cannot be opened. Later errors are in [`Ended`].
pub fn rehearse<'a>(
    broker: &'a dyn Admin,
    look: Look,
    stop: &'a CancellationToken,
    show: &'a mut (dyn FnMut(&Message) + Send),
) -> BoxFuture<'a, Result<(Ended, u64), QueueError>> {
    Box::pin(async move {
        let Look { at, conditions, max, began } = look;
        let ordered = broker.open_stored(&at).await?.is_ordered();
        let mut sorter = Sorter::new(conditions.clone(), broker.on_its_clock(began), ordered);
        let (mut left, mut behind) = (max, 0);
        let mut each = |message: &Message| {
            behind += u64::from(sorter.is_behind(message));
            if sorter.judge(message) == Verdict::Move {
                show(message);
                left = left.saturating_sub(1);
            }
            if left == 0 || stop.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if broker.peek(&at, &mut each).await? {
            return Ok((if stop.is_cancelled() { Ended::Stopped } else { Ended::Done }, behind));
        }
        let order = MoveRequest { from: at, to: None, conditions, max: Some(max), rate: None, dry_run: true, began };
        let mut tell = |note: Note<'_>| {
            if let Note::WouldMove(message) = note {
                show(message);
            }
        };
        run(broker, order, stop, &mut tell).await.map(|(report, ended)| (ended, report.not_looked_at))
    })
}
