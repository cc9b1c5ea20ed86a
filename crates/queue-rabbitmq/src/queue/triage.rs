//! Decides which messages are handed out, and what becomes of the others.

use std::time::{Duration, SystemTime};

use hostler_queue::Delivery;
use tokio::time::Instant;

use super::Source;
use super::shared::Shared;
use crate::envelope::Mail;
use crate::unacked::{FREE_RETURNS, Handed, Key};

/// Decision on a message that is ready.
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
        let mail = message.mail;
        mail.exchange == *exchange && !filter.passes(mail.message.routing_key.as_deref()) && !mail.has_other_keys()
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

/// Returns `true` if a message that no handler has seen may go back as it is. Servers before 4.3 count that as a delivery. Many
/// returns would count as attempts, so from some number on a copy goes, whose deliveries are counted anew. The copy goes to the
/// tail of the queue. A dead-letter queue has no use for the count, and is looked at often.
pub(super) fn goes_back_free(source: &Source, mail: &Mail) -> bool {
    mail.deliveries < FREE_RETURNS || source.channel.of_dead_letters().is_some()
}

/// Hands out messages that are ready, with a lease from now on. Returns the others that came up, which are now being settled.
pub(super) fn take(shared: &Shared, max: usize, lease: Duration) -> (Vec<Delivery>, Vec<(Key, Verdict)>) {
    let (now, time) = (Instant::now(), SystemTime::now());
    let (mut deliveries, mut others) = (Vec::new(), Vec::new());
    shared.change(|unacked| {
        while deliveries.len() < max
            && let Some(message) = unacked.next()
        {
            let (tag, verdict) = (message.mail.tag, verdict(&shared.source, &message, time));
            if verdict != Verdict::Deliver {
                others.push((unacked.set_aside(tag), verdict));
                continue;
            }
            let (message, attempt) = (message.mail.message.clone(), message.attempt);
            let receipt = unacked.lease(tag, now + lease);
            deliveries.push(Delivery { message, receipt, attempt, leased_at: now, not_before: None, job: None });
        }
    });
    (deliveries, others)
}

#[cfg(test)]
mod tests {
    use hostler_types::channel::Filter;
    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;

    fn source(channel: &str) -> Source {
        Source {
            channel: channel.parse().unwrap(),
            is_for_command: true,
            queue: channel.to_owned(),
            dead_letters: Some("dead".to_owned()),
            max_receives: Some(5),
            ordered: false,
            loose: None,
            window: 16,
        }
    }

    /// A message with this number of deliveries, as the server counts them.
    fn mail(deliveries: i64) -> Mail {
        let mut delivery = lapin::message::Delivery::mock(1, "".into(), "jobs".into(), deliveries > 0, b"x".to_vec());
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(deliveries));
        delivery.properties = BasicProperties::default().with_headers(headers);
        Mail::read(delivery, |_| false, false, SystemTime::now())
    }

    /// Each host returns the message unprocessed, and the next one has no notes about it.
    #[test]
    fn a_message_that_no_handler_has_seen_is_never_worn_out_by_returns() {
        let (jobs, now) = (source("jobs"), SystemTime::now());
        let mut count = 0;
        for _ in 0..50 {
            let (mut unacked, instant) = (crate::unacked::Unacked::new(false), Instant::now());
            unacked.delivered(mail(count), None, instant);
            let message = unacked.next().unwrap();
            assert_eq!(verdict(&jobs, &message, now), Verdict::Deliver, "{count}");
            assert!(message.attempt <= 2, "{}", message.attempt);
            assert_eq!(message.certain, 0, "a copy carries no attempt on");
            // The server counts the deliveries of a copy anew.
            count = if goes_back_free(&jobs, message.mail) { count + 1 } else { 0 };
        }
        assert!(goes_back_free(&source("jobs-dlq"), &mail(900)), "a look leaves dead letters in their place");
    }

    /// The server sends a message to the queues of all keys that its producer names, by whichever it came.
    #[test]
    fn a_message_that_came_by_another_key_is_not_removed() {
        let filter = Filter::Exact(vec!["EU".to_owned()]);
        let shop = Source { loose: Some(("shop".to_owned(), filter)), ..source("jobs") };
        let verdict_on = |key: &str, headers: FieldTable| {
            let mut delivery = lapin::message::Delivery::mock(1, "shop".into(), key.into(), false, b"x".to_vec());
            delivery.properties = BasicProperties::default().with_headers(headers);
            let mut unacked = crate::unacked::Unacked::new(false);
            unacked.delivered(Mail::read(delivery, |_| false, false, SystemTime::now()), None, Instant::now());
            verdict(&shop, &unacked.next().unwrap(), SystemTime::now())
        };
        let mut copied = FieldTable::default();
        copied.insert("CC".into(), AMQPValue::FieldArray(vec![AMQPValue::LongString("EU".into())].into()));
        assert_eq!(verdict_on("EU", FieldTable::default()), Verdict::Deliver);
        assert_eq!(verdict_on("US", FieldTable::default()), Verdict::Refuse);
        assert_eq!(verdict_on("US", copied), Verdict::Deliver);
    }

    #[test]
    fn a_message_that_takes_its_hosts_down_is_worn_out() {
        let (jobs, now) = (source("jobs"), SystemTime::now());
        let verdict_after = |deliveries| {
            let mut unacked = crate::unacked::Unacked::new(false);
            unacked.delivered(mail(deliveries), None, Instant::now());
            verdict(&jobs, &unacked.next().unwrap(), now)
        };
        assert_eq!([verdict_after(7), verdict_after(8)], [Verdict::Deliver, Verdict::WearOut]);
    }
}
