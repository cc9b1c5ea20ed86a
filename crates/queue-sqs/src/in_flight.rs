//! Deliveries in flight, whose leases hold by our own clock, and the ids of finished messages.
//!
//! SQS answers yes to a delete with a stale receipt and keeps the message, so a lease counts as lost when our clock says
//! so; and a message that comes again after it was finished is removed instead of being processed twice. No I/O.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use hostler_queue::LeaseHandle;
use hostler_types::message::Claim;

/// How long the id of a finished message is remembered: longer than copies of a deleted message linger.
const MEMORY: Duration = Duration::from_secs(15 * 60);
/// How many are remembered at most; each costs about 50 bytes.
const MEMORY_COUNT: usize = 50_000;

/// The id of a message. SQS's are UUIDs, which lie in here rather than somewhere else: tens of thousands are remembered, and to look
/// at one that was put away minutes ago is to wait for the memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum MessageId {
    Uuid(Uuid),
    Other(Arc<str>),
}

impl MessageId {
    /// Two are the same only if their texts are.
    pub(super) fn of(text: &str) -> Self {
        let is_its_text = |uuid: &Uuid| uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
        match Uuid::try_parse(text).ok().filter(is_its_text) {
            Some(uuid) => Self::Uuid(uuid),
            None => Self::Other(text.into()),
        }
    }
}

/// One delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leased {
    /// Of which message.
    pub(super) id: MessageId,
    /// Until when it is ours.
    pub(super) until: Instant,
    /// From when SQS counts its 12 hours, or a little before.
    pub(super) since: Instant,
    /// Which receive of the message it is.
    pub(super) attempt: u32,
    /// Where its body lies, if elsewhere.
    pub(super) claim: Option<Arc<Claim>>,
}

/// The deliveries of one queue that are in flight, and its messages that are finished.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    leased: HashMap<LeaseHandle, Leased>,
    finished: Finished,
}

/// The ids of messages that are finished.
///
/// What is searched is a table of numbers, which stays in the CPU's cache; the ids themselves lie in a queue, and most are looked at
/// only when they are forgotten.
#[derive(Debug, Default)]
struct Finished {
    /// Oldest first, with when each may be forgotten.
    ids: VecDeque<(Instant, MessageId)>,
    /// The number of the oldest; each has that of the one before plus one, and after the largest comes 0.
    first: u32,
    /// Their numbers, by the hash of their ids.
    numbers: HashTable<u32>,
    hashes: DefaultHashBuilder,
}

impl InFlight {
    /// Enters a delivery. Those whose lease is over are forgotten on the way.
    pub(super) fn enter(&mut self, lease: LeaseHandle, leased: Leased, now: Instant) {
        if self.leased.len() == self.leased.capacity() {
            self.leased.retain(|_, leased| leased.until > now);
        }
        self.leased.insert(lease, leased);
    }

    /// The delivery, if it is still ours.
    pub(super) fn get(&self, lease: &LeaseHandle, now: Instant) -> Option<&Leased> {
        self.leased.get(lease).filter(|leased| leased.until > now)
    }

    /// The lease was extended.
    pub(super) fn extend(&mut self, lease: &LeaseHandle, until: Instant) {
        if let Some(leased) = self.leased.get_mut(lease) {
            leased.until = until;
        }
    }

    /// The delivery is over.
    pub(super) fn remove(&mut self, lease: &LeaseHandle) -> Option<Leased> {
        self.leased.remove(lease)
    }

    /// The message needs no processing any more, whether or not its removal succeeds.
    pub(super) fn finish(&mut self, id: &MessageId, now: Instant) {
        let finished = &mut self.finished;
        while finished.ids.len() >= MEMORY_COUNT || finished.ids.front().is_some_and(|(until, _)| *until <= now) {
            finished.forget();
        }
        finished.remember(id, now + MEMORY);
    }

    /// Whether the message is finished.
    pub(super) fn is_finished(&self, id: &MessageId) -> bool {
        self.finished.contains(id)
    }
}

impl Finished {
    fn contains(&self, id: &MessageId) -> bool {
        self.contains_hashed(id, self.hashes.hash_one(id))
    }

    fn contains_hashed(&self, id: &MessageId, hash: u64) -> bool {
        let of = |number: &u32| self.ids.get(place(self.first, *number));
        self.numbers.find(hash, |number| of(number).is_some_and(|(_, other)| other == id)).is_some()
    }

    /// Remembers one more, unless it is known: then for as long as before.
    fn remember(&mut self, id: &MessageId, until: Instant) {
        let hash = self.hashes.hash_one(id);
        if self.contains_hashed(id, hash) {
            return;
        }
        // There are at most `MEMORY_COUNT`.
        let number = self.first.wrapping_add(self.ids.len() as u32);
        self.ids.push_back((until, id.clone()));
        let Self { ids, first, numbers, hashes } = self;
        let hash_of = |number: &u32| ids.get(place(*first, *number)).map_or(0, |(_, id)| hashes.hash_one(id));
        numbers.insert_unique(hash, number, hash_of);
    }

    /// Forgets the oldest.
    fn forget(&mut self) {
        let Some((_, id)) = self.ids.pop_front() else { return };
        if let Ok(entry) = self.numbers.find_entry(self.hashes.hash_one(&id), |number| *number == self.first) {
            entry.remove();
        }
        self.first = self.first.wrapping_add(1);
    }
}

/// Where in the queue the one of this number lies.
fn place(first: u32, number: u32) -> usize {
    number.wrapping_sub(first) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Receipt;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(text: &str) -> MessageId {
        MessageId::of(text)
    }

    #[test]
    fn ids_are_the_same_only_if_their_texts_are() {
        let uuid = "0192f0a1-7c3e-7b60-8f00-1234567890ab";
        assert!(matches!(id(uuid), MessageId::Uuid(_)));
        assert_eq!(id(uuid), id(uuid));
        let also = [uuid.to_uppercase(), uuid.replace('-', ""), format!("{{{uuid}}}"), format!("urn:uuid:{uuid}")];
        for other in also.iter().map(String::as_str).chain(["", "m-1", "0192f0a1-7c3e-7b60-8f00-1234567890ac"]) {
            assert_ne!(id(other), id(uuid), "{other}");
            assert_eq!(id(other), id(other));
        }
    }

    #[test]
    fn a_lease_holds_until_its_time_or_its_end() {
        let (mut in_flight, now) = (InFlight::default(), Instant::now());
        let lease = Receipt::new("r").lease();
        let leased = Leased { id: id("m"), until: now + SECOND, since: now, attempt: 1, claim: None };
        in_flight.enter(lease.clone(), leased.clone(), now);
        assert_eq!(in_flight.get(&lease, now), Some(&leased));
        assert_eq!(in_flight.get(&lease, now + SECOND), None);
        in_flight.extend(&lease, now + 3 * SECOND);
        assert!(in_flight.get(&lease, now + 2 * SECOND).is_some());
        assert!(in_flight.remove(&lease).is_some());
        assert_eq!(in_flight.get(&lease, now), None);
    }

    #[test]
    fn finished_messages_are_remembered_for_a_while_and_not_without_bound() {
        let (mut in_flight, now) = (InFlight::default(), Instant::now());
        in_flight.finish(&id("a"), now);
        assert!(in_flight.is_finished(&id("a")) && !in_flight.is_finished(&id("b")));
        in_flight.finish(&id("b"), now + MEMORY);
        assert!(!in_flight.is_finished(&id("a")) && in_flight.is_finished(&id("b")));
        for n in 0..MEMORY_COUNT {
            in_flight.finish(&id(&n.to_string()), now + MEMORY);
        }
        assert_eq!((in_flight.finished.numbers.len(), in_flight.finished.ids.len()), (MEMORY_COUNT, MEMORY_COUNT));
        assert!(!in_flight.is_finished(&id("b")));
    }

    #[test]
    fn leases_that_are_over_do_not_pile_up() {
        let (mut in_flight, now) = (InFlight::default(), Instant::now());
        for n in 0..10_000_u32 {
            let at = now + n * SECOND;
            let leased = Leased { id: id("m"), until: at + SECOND, since: at, attempt: 1, claim: None };
            in_flight.enter(Receipt::new(n.to_string()).lease(), leased, at);
        }
        assert!(in_flight.leased.len() < 100, "{}", in_flight.leased.len());
    }
}
