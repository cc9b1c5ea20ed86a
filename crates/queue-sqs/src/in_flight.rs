//! Deliveries in flight, whose leases are timed by our own clock, and the ids of finished messages.
//!
//! SQS confirms a delete with a stale receipt, but does not delete the message. Therefore, a lease counts as lost as
//! soon as it has expired by our own clock. If a finished message is delivered again, it is deleted and not processed a
//! second time. No I/O.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use hostler_queue::LeaseHandle;
use hostler_types::message::Claim;

/// Period for which the id of a finished message is remembered. Must be longer than the period in which SQS may still
/// deliver a copy of a deleted message.
const MEMORY: Duration = Duration::from_secs(15 * 60);
/// Maximum number of remembered ids. Each id takes about 50 bytes.
const MEMORY_COUNT: usize = 50_000;

/// Id of a message. SQS uses UUIDs, which are stored in the enum itself and not behind a pointer. Tens of thousands of
/// ids are remembered, and following a pointer to an id that was stored minutes ago would cause a CPU cache miss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum MessageId {
    Uuid(Uuid),
    Other(Arc<str>),
}

impl MessageId {
    /// Creates a message id from a string. Equal strings give equal ids. Different strings give different ids, even if
    /// both are spellings of the same UUID.
    pub(super) fn of(text: &str) -> Self {
        let is_its_text = |uuid: &Uuid| uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
        match Uuid::try_parse(text).ok().filter(is_its_text) {
            Some(uuid) => Self::Uuid(uuid),
            None => Self::Other(text.into()),
        }
    }
}

/// A delivery and its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leased {
    /// Id of the message.
    pub(super) id: MessageId,
    /// End of the lease.
    pub(super) until: Instant,
    /// Start of the receive call. SQS counts the maximum lease of 12 hours (AWS limit) from this time or slightly
    /// later.
    pub(super) since: Instant,
    /// Number of this attempt, counted from 1. If the message was delayed, the times that it was received before its
    /// start time do not count.
    pub(super) attempt: u32,
    /// Location of the body. Set if the body is stored outside the message.
    pub(super) claim: Option<Arc<Claim>>,
}

/// The deliveries in flight and the finished messages of one queue.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    leased: HashMap<LeaseHandle, Leased>,
    finished: Finished,
}

/// Ids of finished messages.
///
/// A lookup searches a table of small numbers, which stays in the CPU cache. The ids themselves are in a separate list.
/// Most of them are not read again until they are removed from the list.
#[derive(Debug, Default)]
struct Finished {
    /// Ids, oldest first, each with the time when it may be forgotten.
    ids: VecDeque<(Instant, MessageId)>,
    /// Number of the oldest id. Ids are numbered consecutively and wrap around to 0.
    first: u32,
    /// Numbers of the ids, in a table that is searched by the hash of an id.
    numbers: HashTable<u32>,
    hashes: DefaultHashBuilder,
}

impl InFlight {
    /// Adds a delivery. If the map of deliveries is full, first removes all deliveries with expired leases, so that the
    /// map grows only if necessary.
    pub(super) fn enter(&mut self, lease: LeaseHandle, leased: Leased, now: Instant) {
        if self.leased.len() == self.leased.capacity() {
            self.leased.retain(|_, leased| leased.until > now);
        }
        self.leased.insert(lease, leased);
    }

    /// Returns the delivery if its lease has not expired.
    pub(super) fn get(&self, lease: &LeaseHandle, now: Instant) -> Option<&Leased> {
        self.leased.get(lease).filter(|leased| leased.until > now)
    }

    /// Records the new end of an extended lease.
    pub(super) fn extend(&mut self, lease: &LeaseHandle, until: Instant) {
        if let Some(leased) = self.leased.get_mut(lease) {
            leased.until = until;
        }
    }

    /// Removes a delivery that was settled.
    pub(super) fn remove(&mut self, lease: &LeaseHandle) -> Option<Leased> {
        self.leased.remove(lease)
    }

    /// Marks a message as finished. It must not be processed again, even if its removal from the queue fails.
    pub(super) fn finish(&mut self, id: &MessageId, now: Instant) {
        let finished = &mut self.finished;
        while finished.ids.len() >= MEMORY_COUNT || finished.ids.front().is_some_and(|(until, _)| *until <= now) {
            finished.forget();
        }
        finished.remember(id, now + MEMORY);
    }

    /// Returns `true` if the message is finished.
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

    /// Remembers an id until `until`. If the id is already remembered, `until` has no effect.
    fn remember(&mut self, id: &MessageId, until: Instant) {
        let hash = self.hashes.hash_one(id);
        if self.contains_hashed(id, hash) {
            return;
        }
        // At most `MEMORY_COUNT` ids are stored, so the cast loses nothing.
        let number = self.first.wrapping_add(self.ids.len() as u32);
        self.ids.push_back((until, id.clone()));
        let Self { ids, first, numbers, hashes } = self;
        let hash_of = |number: &u32| ids.get(place(*first, *number)).map_or(0, |(_, id)| hashes.hash_one(id));
        numbers.insert_unique(hash, number, hash_of);
    }

    /// Forgets the oldest id.
    fn forget(&mut self) {
        let Some((_, id)) = self.ids.pop_front() else { return };
        if let Ok(entry) = self.numbers.find_entry(self.hashes.hash_one(&id), |number| *number == self.first) {
            entry.remove();
        }
        self.first = self.first.wrapping_add(1);
    }
}

/// Returns the position in [`Finished::ids`] of the id with this number.
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
