//! Decides which messages are handed out, and what becomes of the others.

use std::time::{Duration, SystemTime};

use hostler_queue::Delivery;
use tokio::time::Instant;

use super::{Shared, Source};
use crate::unacked::Handed;

/// What becomes of a message that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Hand the message out.
    Deliver,
    /// Dead-letter the message, which was received as often as it may be.
    WearOut,
    /// Remove the message, which the channel's filter refuses.
    Refuse,
    /// Hold the message back for this time.
    Wait(Duration),
}

/// Returns the verdict on a message.
pub(super) fn verdict(source: &Source, message: &Handed<'_>, now: SystemTime) -> Verdict {
    let refuses = source.loose.as_ref().is_some_and(|(exchange, filter)| {
        message.mail.exchange == *exchange && !filter.passes(message.mail.message.routing_key.as_deref())
    });
    if refuses {
        return Verdict::Refuse;
    }
    if source.max_receives.is_some_and(|most| message.attempt > most) && source.dead_letters.is_some() {
        return Verdict::WearOut;
    }
    // An ordered queue holds the message at its place: see the feed.
    let wait = message.mail.not_before.and_then(|at| at.duration_since(now).ok()).filter(|_| !source.ordered);
    wait.filter(|wait| !wait.is_zero()).map_or(Verdict::Deliver, Verdict::Wait)
}

/// Hands out messages that are ready, with a lease from now on. Returns the others that came up, which are now being settled.
pub(super) fn take(shared: &Shared, max: usize, lease: Duration) -> (Vec<Delivery>, Vec<(u64, Verdict)>) {
    let (now, time) = (Instant::now(), SystemTime::now());
    let (mut deliveries, mut others) = (Vec::new(), Vec::new());
    shared.change(|unacked| {
        while deliveries.len() < max
            && let Some(message) = unacked.next()
        {
            let (tag, verdict) = (message.mail.tag, verdict(&shared.source, &message, time));
            if verdict != Verdict::Deliver {
                unacked.set_aside(tag);
                others.push((tag, verdict));
                continue;
            }
            let (message, attempt) = (message.mail.message.clone(), message.attempt);
            let receipt = unacked.lease(tag, now + lease);
            deliveries.push(Delivery { message, receipt, attempt, leased_at: now, not_before: None });
        }
    });
    (deliveries, others)
}
