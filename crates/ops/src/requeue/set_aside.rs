//! Messages that were inspected and do not move. They are held: they remain leased until the run ends, so that they are
//! not received again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::LEASE;
use hostler_queue::{LeaseHandle, Receipt};

/// The held messages, each with a number.
#[derive(Debug, Default)]
pub(in super::super) struct SetAside {
    entries: BTreeMap<u64, Entry>,
    /// Ends of leases, with the numbers, by the identities of messages.
    numbers: HashMap<String, BTreeSet<(Instant, u64)>>,
    /// Number of the next message.
    next: u64,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    identity: String,
    receipt: Receipt,
    until: Instant,
}

impl SetAside {
    /// Returns the number of held messages.
    pub(in super::super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Holds a message that is leased until `until`.
    pub(in super::super) fn keep(&mut self, identity: String, receipt: Receipt, until: Instant) {
        let number = self.next;
        self.next += 1;
        self.numbers.entry(identity.clone()).or_default().insert((until, number));
        self.entries.insert(number, Entry { identity, receipt, until });
    }

    /// Returns the number and the lease of the message with this identity whose lease ends first.
    pub(in super::super) fn first(&self, identity: &str) -> Option<(u64, LeaseHandle)> {
        let (_, number) = *self.numbers.get(identity)?.first()?;
        Some((number, self.entries.get(&number)?.receipt.lease()))
    }

    /// Returns the leases to extend now, which are those that end within three quarters of [`LEASE`]. Checks at most
    /// six times per [`LEASE`]. Between these checks, returns nothing.
    pub(in super::super) fn due(&mut self, now: Instant) -> Vec<(u64, LeaseHandle)> {
        if now < *self.looked_at.get_or_insert(now) + LEASE / 6 {
            return Vec::new();
        }
        self.looked_at = Some(now);
        let short = self.entries.iter().filter(|(_, entry)| entry.until < now + LEASE * 3 / 4);
        short.map(|(number, entry)| (*number, entry.receipt.lease())).collect()
    }

    /// Returns the leases of all messages, with their numbers.
    pub(in super::super) fn leases(&self) -> impl Iterator<Item = (u64, LeaseHandle)> {
        self.entries.iter().map(|(number, entry)| (*number, entry.receipt.lease()))
    }

    /// Records the extension of a lease.
    pub(in super::super) fn extended(&mut self, number: u64, until: Instant) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if let Some(numbers) = self.numbers.get_mut(&entry.identity) {
            numbers.remove(&(entry.until, number));
            numbers.insert((until, number));
        }
        entry.until = until;
    }

    /// Removes a message, and returns its identity and its receipt.
    pub(in super::super) fn remove(&mut self, number: u64) -> Option<(String, Receipt)> {
        let Entry { identity, receipt, until } = self.entries.remove(&number)?;
        if let Some(numbers) = self.numbers.get_mut(&identity) {
            numbers.remove(&(until, number));
            if numbers.is_empty() {
                self.numbers.remove(&identity);
            }
        }
        Some((identity, receipt))
    }

    /// Removes and returns the messages with these identities.
    pub(in super::super) fn take(&mut self, identities: &[String]) -> Vec<(String, Receipt)> {
        let numbers = identities.iter().filter_map(|identity| self.numbers.get(identity)).flatten();
        let numbers: Vec<_> = numbers.map(|(_, number)| *number).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Removes and returns all messages.
    pub(in super::super) fn drain(&mut self) -> Vec<(String, Receipt)> {
        self.numbers.clear();
        std::mem::take(&mut self.entries).into_values().map(|entry| (entry.identity, entry.receipt)).collect()
    }
}

/// Returns the duration of lease extensions in a run that has lasted for `lasted`. It equals `lasted`, but is at least
/// [`LEASE`] and at most half of `max_lease`. Therefore, each lease is extended only a few times, even in a long run.
/// If the run crashes, no lease lasts longer than the run did, or longer than [`LEASE`] if the run was short.
pub(in super::super) fn extension(lasted: Duration, max_lease: Duration) -> Duration {
    lasted.max(LEASE).min(max_lease / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_short_leases_are_extended_and_not_at_every_look() {
        let mut held = SetAside::default();
        let start = Instant::now();
        held.keep("short".to_owned(), Receipt::new("1"), start + LEASE);
        held.keep("long".to_owned(), Receipt::new("2"), start + LEASE * 2);
        let numbers = |held: &mut SetAside, after: Duration| -> Vec<u64> {
            held.due(start + after).into_iter().map(|(number, _)| number).collect()
        };
        assert!(numbers(&mut held, Duration::ZERO).is_empty());
        assert!(numbers(&mut held, LEASE / 6).is_empty(), "five sixths are left");
        assert_eq!(numbers(&mut held, LEASE / 3), [0]);
        assert!(numbers(&mut held, LEASE / 3).is_empty(), "asked just now");
        held.extended(0, start + LEASE * 2);
        assert!(numbers(&mut held, LEASE).is_empty());
        assert_eq!(held.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_with_one_identity_are_held_beside_one_another() {
        let (mut held, until) = (SetAside::default(), Instant::now() + LEASE);
        for receipt in ["a1", "a2", "a3"] {
            held.keep("a".to_owned(), Receipt::new(receipt), until);
        }
        assert_eq!((held.len(), held.first("b")), (3, None));
        assert_eq!(held.first("a"), Some((0, Receipt::new("a1").lease())));
        held.extended(0, until + LEASE);
        assert_eq!(held.first("a"), Some((1, Receipt::new("a2").lease())), "the one whose lease ends first");
        held.extended(0, until);
        assert_eq!(held.remove(0), Some(("a".to_owned(), Receipt::new("a1"))));
        assert_eq!((held.first("a"), held.remove(0)), (Some((1, Receipt::new("a2").lease())), None));
        held.keep("b".to_owned(), Receipt::new("b1"), until);
        let taken: Vec<_> = held.take(&["a".to_owned()]).into_iter().map(|(_, receipt)| receipt).collect();
        assert_eq!(taken, ["a2", "a3"].map(Receipt::new));
        assert_eq!(held.drain(), [("b".to_owned(), Receipt::new("b1"))]);
        assert_eq!((held.len(), held.first("b")), (0, None));
    }

    #[test]
    fn extensions_grow_with_the_run() {
        let max = LEASE * 60;
        for (lasted, expected) in [(0, 1), (1, 1), (5, 5), (30, 30), (1000, 30)] {
            assert_eq!(extension(LEASE * lasted, max), LEASE * expected);
        }
    }
}
