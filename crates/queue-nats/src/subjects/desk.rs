//! Requests in this process, and their leases. No I/O.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::{Message as NatsMessage, Subject};
use hostler_queue::{Delivery, LeaseError, LeaseHandle, Receipt};
use hostler_types::message::{Message, TraceContext};
use tokio::time::Instant;
use uuid::Uuid;

use crate::headers::{self, ID, NATS_ID};

/// Header with the number of the attempt, from 1 on.
const ATTEMPT: &str = "Hostler-Attempt";

/// Interval at which the sender of a request that waits for a slot hears of it. Shorter than the time for which senders wait.
const WORD: Duration = Duration::from_secs(2);

/// A request in hand.
#[derive(Debug)]
pub(super) struct Asked {
    message: Arc<Message>,
    attempt: u32,
    /// Time at which the request came, or its sender last heard that it waits.
    told_at: Instant,
    /// Subject for the answer. `None`: the sender wants none.
    pub(super) reply: Option<Subject>,
}

/// Requests in this process.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) waiting: VecDeque<Asked>,
    /// Requests that are handed out, with the subjects for their answers and the ends of their leases.
    pub(super) leased: HashMap<u64, (Option<Subject>, Instant)>,
    next: u64,
}

impl Desk {
    pub(super) fn hand_out(&mut self, max: usize, lease: Duration, now: Instant) -> Vec<Delivery> {
        self.leased.retain(|_, (_, until)| *until > now);
        let count = max.min(self.waiting.len());
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        let lease = |Asked { message, attempt, reply, .. }: Asked| {
            self.next += 1;
            self.leased.insert(self.next, (reply, now + lease));
            let receipt = Receipt::new(self.next.to_string());
            Delivery { message, receipt, attempt, leased_at: now, not_before: None, job: None }
        };
        taken.into_iter().map(lease).collect()
    }

    /// Returns the next time at which the sender of a waiting request is to hear that it waits.
    pub(super) fn next_word(&self) -> Option<Instant> {
        self.waiting.iter().filter(|asked| asked.reply.is_some()).map(|asked| asked.told_at + WORD).min()
    }

    /// Returns the subjects for the answers of those who are to hear now that their requests wait. The caller tells them.
    pub(super) fn words(&mut self, now: Instant) -> Vec<Subject> {
        let due = self.waiting.iter_mut().filter(|asked| asked.told_at + WORD <= now);
        let told = due.filter_map(|asked| {
            asked.told_at = now;
            asked.reply.clone()
        });
        told.collect()
    }

    /// Returns the number of a lease that has not ended, and the subject for answers.
    pub(super) fn leased(&mut self, lease: &LeaseHandle, now: Instant) -> Result<(u64, Option<Subject>), LeaseError> {
        let number = lease.as_str().parse().map_err(|_| ended())?;
        let (reply, until) = self.leased.get(&number).ok_or_else(ended)?;
        if *until <= now {
            self.leased.remove(&number);
            return Err(ended());
        }
        Ok((number, reply.clone()))
    }

    /// Extends a lease that has not ended until `until`.
    pub(super) fn extend(&mut self, lease: &LeaseHandle, until: Instant, now: Instant) -> Result<(), LeaseError> {
        let (number, _) = self.leased(lease, now)?;
        let (_, end) = self.leased.get_mut(&number).filter(|_| until > now).ok_or_else(ended)?;
        *end = until;
        Ok(())
    }

    /// Returns the next time at which a lease ends, and its slot is free.
    pub(super) fn next_end(&self, now: Instant) -> Option<Instant> {
        self.leased.values().map(|(_, until)| *until).filter(|until| *until > now).min()
    }

    /// Takes a lease that has not ended out, to answer its request.
    pub(super) fn settle(
        &mut self,
        lease: &LeaseHandle,
        now: Instant,
    ) -> Result<(u64, (Option<Subject>, Instant)), LeaseError> {
        let (number, _) = self.leased(lease, now)?;
        self.leased.remove(&number).map(|lease| (number, lease)).ok_or_else(ended)
    }

    /// Returns `true` if there are more requests than `slots`.
    pub(super) fn is_full(&self, slots: usize, now: Instant) -> bool {
        let running = self.leased.values().filter(|(_, until)| *until > now).count();
        self.waiting.len() + running > slots
    }
}

fn ended() -> LeaseError {
    LeaseError::Lost("it has ended, or the request was answered".to_owned())
}

/// Returns the subject for the answer to a request. `None`: the sender wants none, or names a subject of the server. The server
/// does not check if the sender may use it, so an answer there would be a command with the rights of this user: `+ACK` to `$JS.ACK`
/// removes a message from a stream.
fn answerable(reply: Option<Subject>) -> Option<Subject> {
    let reply = reply?;
    if reply.starts_with('$') {
        tracing::warn!(%reply, "a request names a subject of the server for its answer, and gets none");
        return None;
    }
    Some(reply)
}

/// Reads a request.
pub(super) fn asked(message: NatsMessage, now: Instant) -> Asked {
    let NatsMessage { subject, reply, payload, headers, .. } = message;
    let headers = headers.unwrap_or_default();
    let word = |name: &str| headers.get(name).map(|value| value.as_str());
    let attempt = word(ATTEMPT).and_then(|text| text.trim().parse().ok()).unwrap_or(1).max(1);
    let mut attributes = headers::attributes(&headers);
    attributes.remove(ATTEMPT);
    let id = word(ID).or_else(|| word(NATS_ID)).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let message = Message {
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        enqueued_at: SystemTime::now(),
        routing_key: Some(subject.to_string()),
        ..Message::new(id, payload)
    };
    Asked { message: Arc::new(message), attempt, told_at: now, reply: answerable(reply) }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    fn request(reply: Option<&str>, attempt: Option<&str>) -> NatsMessage {
        let mut headers = HeaderMap::new();
        headers.insert("tenant", "7");
        if let Some(attempt) = attempt {
            headers.insert(ATTEMPT, attempt);
        }
        NatsMessage {
            subject: "webhooks.a".into(),
            reply: reply.map(Into::into),
            payload: "body".into(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn a_request_becomes_a_message_with_its_subject_and_its_attempt() {
        let first = asked(request(Some("inbox"), None), Instant::now());
        assert_eq!((first.attempt, first.message.routing_key.as_deref()), (1, Some("webhooks.a")));
        assert_eq!(first.message.attributes.keys().collect::<Vec<_>>(), ["tenant"]);
        assert_eq!(first.reply.as_deref(), Some("inbox"));
        let third = asked(request(None, Some("3")), Instant::now());
        assert_eq!((third.attempt, third.message.attributes.len(), third.reply), (3, 1, None));
        assert_eq!(asked(request(None, Some("many")), Instant::now()).attempt, 1);
    }

    #[test]
    fn no_request_has_its_answer_take_effect_as_a_command() {
        for reply in
            ["$JS.ACK.jobs.hostler.1.7.7.1700000000000000000.0", "$JS.API.STREAM.PURGE.jobs", "$SYS.REQ.SERVER"]
        {
            assert_eq!(asked(request(Some(reply), None), Instant::now()).reply, None, "{reply}");
        }
        for reply in ["_INBOX.a.b", "answers.$JS"] {
            assert_eq!(asked(request(Some(reply), None), Instant::now()).reply.as_deref(), Some(reply));
        }
    }

    #[test]
    fn nothing_is_answered_after_the_lease() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        desk.waiting.push_back(asked(request(Some("inbox"), None), Instant::now()));
        let delivery = desk.hand_out(10, Duration::from_secs(30), now).remove(0);
        let lease = delivery.receipt.lease();
        assert_eq!(desk.leased(&lease, now).map(|(_, reply)| reply.is_some()), Ok(true));
        assert!(desk.leased(&lease, now + Duration::from_secs(30)).is_err());
        assert!(desk.leased(&lease, now).is_err(), "for good");
    }

    #[test]
    fn the_sender_of_a_request_that_waits_for_a_slot_hears_of_it() {
        let (mut desk, now, second) = (Desk::default(), Instant::now(), Duration::from_secs(1));
        assert_eq!(desk.next_word(), None);
        desk.waiting.push_back(asked(request(None, None), now));
        assert_eq!(desk.next_word(), None, "it wants no answer");
        desk.waiting.push_back(asked(request(Some("one"), None), now));
        desk.waiting.push_back(asked(request(Some("two"), None), now + second));
        assert_eq!(desk.next_word(), Some(now + WORD));
        assert!(desk.words(now + WORD - second).is_empty());
        assert_eq!(desk.words(now + WORD), ["one".into()]);
        assert_eq!(desk.next_word(), Some(now + WORD + second));
        assert_eq!(desk.words(now + 2 * WORD), ["one".into(), "two".into()]);
        desk.hand_out(3, 30 * second, now);
        assert_eq!((desk.next_word(), desk.words(now + 9 * WORD)), (None, Vec::new()), "its lease keeps it");
    }

    #[test]
    fn a_lease_that_has_ended_stays_ended() {
        let (mut desk, now, second) = (Desk::default(), Instant::now(), Duration::from_secs(1));
        (0..2).for_each(|_| desk.waiting.push_back(asked(request(Some("inbox"), None), Instant::now())));
        let [one, other] = [0, 0].map(|_| desk.hand_out(1, 30 * second, now).remove(0).receipt.lease());
        assert_eq!(desk.next_end(now), Some(now + 30 * second));
        assert_eq!(desk.extend(&one, now + 40 * second, now + 10 * second), Ok(()));
        assert!(desk.extend(&one, now + 11 * second, now + 12 * second).is_err(), "the answer took too long");
        assert!(desk.extend(&other, now + 60 * second, now + 30 * second).is_err());
        assert_eq!(desk.next_end(now + 30 * second), Some(now + 40 * second));
        assert_eq!(desk.next_end(now + 40 * second), None);
    }

    #[test]
    fn requests_that_run_and_that_wait_take_the_slots() {
        let (mut desk, now, lease) = (Desk::default(), Instant::now(), Duration::from_secs(30));
        (0..3).for_each(|_| desk.waiting.push_back(asked(request(None, None), Instant::now())));
        let taken = desk.hand_out(2, lease, now);
        assert!(desk.is_full(2, now) && !desk.is_full(3, now));
        assert!(desk.settle(&taken[0].receipt.lease(), now).is_ok());
        assert!(!desk.is_full(2, now), "one is answered");
        assert!(desk.settle(&taken[0].receipt.lease(), now).is_err(), "once");
        assert!(!desk.is_full(1, now + lease), "leases that have ended hold no slot");
    }
}
