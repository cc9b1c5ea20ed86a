//! Messages that were inspected and do not move. They are held: they remain leased until the run ends, so that they are
//! not received again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::LEASE;
use hostler_queue::{LeaseHandle, Receipt};

/// The held messages, by id.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    entries: HashMap<String, Entry>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    receipt: Receipt,
    until: Instant,
}

impl SetAside {
    /// Returns the number of held messages.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Holds a message that is leased until `until`. Returns `false` if the message was already held. In that case, its
    /// earlier lease was lost.
    pub(super) fn keep(&mut self, id: &str, receipt: Receipt, until: Instant) -> bool {
        self.entries.insert(id.to_owned(), Entry { receipt, until }).is_none()
    }

    /// Returns `true` if this message is held.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.entries.contains_key(id)
    }

    /// Returns the leases to extend now, which are those that end within three quarters of [`LEASE`]. Checks at most
    /// six times per [`LEASE`]. Between these checks, returns nothing.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(String, LeaseHandle)> {
        if now < *self.looked_at.get_or_insert(now) + LEASE / 6 {
            return Vec::new();
        }
        self.looked_at = Some(now);
        let short = self.entries.iter().filter(|(_, entry)| entry.until < now + LEASE * 3 / 4);
        short.map(|(id, entry)| (id.clone(), entry.receipt.lease())).collect()
    }

    /// Records the extension of a lease.
    pub(super) fn extended(&mut self, id: &str, until: Instant) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.until = until;
        }
    }

    /// Removes and returns these messages.
    pub(super) fn take(&mut self, ids: &[String]) -> Vec<(String, Receipt)> {
        ids.iter().filter_map(|id| Some((id.clone(), self.entries.remove(id)?.receipt))).collect()
    }

    /// Removes and returns all messages.
    pub(super) fn drain(&mut self) -> Vec<(String, Receipt)> {
        self.entries.drain().map(|(id, entry)| (id, entry.receipt)).collect()
    }
}

/// Returns the duration of lease extensions in a run that has lasted for `lasted`. It equals `lasted`, but is at least
/// [`LEASE`] and at most half of `max_lease`. Therefore, each lease is extended only a few times, even in a long run.
/// If the run crashes, no lease lasts longer than the run did, or longer than [`LEASE`] if the run was short.
pub(super) fn extension(lasted: Duration, max_lease: Duration) -> Duration {
    lasted.max(LEASE).min(max_lease / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_short_leases_are_extended_and_not_at_every_look() {
        let mut held = SetAside::default();
        let start = Instant::now();
        assert!(held.keep("short", Receipt::new("1"), start + LEASE));
        assert!(held.keep("long", Receipt::new("2"), start + LEASE * 2));
        let ids = |held: &mut SetAside, after: Duration| -> Vec<String> {
            held.due(start + after).into_iter().map(|(id, _)| id).collect()
        };
        assert!(ids(&mut held, Duration::ZERO).is_empty());
        assert!(ids(&mut held, LEASE / 6).is_empty(), "five sixths are left");
        assert_eq!(ids(&mut held, LEASE / 3), ["short"]);
        assert!(ids(&mut held, LEASE / 3).is_empty(), "asked just now");
        held.extended("short", start + LEASE * 2);
        assert!(ids(&mut held, LEASE).is_empty());
        assert_eq!(held.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_again_is_known_and_has_its_new_receipt() {
        let mut held = SetAside::default();
        let until = Instant::now() + LEASE;
        assert!(held.keep("a", Receipt::new("old"), until));
        assert!(held.contains("a") && !held.contains("b"));
        assert!(!held.keep("a", Receipt::new("new"), until));
        assert_eq!(held.drain(), [("a".to_owned(), Receipt::new("new"))]);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn extensions_grow_with_the_run() {
        let max = LEASE * 60;
        for (lasted, expected) in [(0, 1), (1, 1), (5, 5), (30, 30), (1000, 30)] {
            assert_eq!(extension(LEASE * lasted, max), LEASE * expected);
        }
    }
}
