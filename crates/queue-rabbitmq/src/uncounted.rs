//! Deliveries that do not count as attempts, because the message went back unprocessed, and attempts that ended here and that no
//! copy carries on. No I/O.
//!
//! Servers before 4.3 count each return of a message to its queue (`x-delivery-count`). This process knows the returns that it
//! made itself, and subtracts them. Another process counts several returns as one attempt.

use std::collections::{HashMap, VecDeque};

/// Maximum number of messages to remember. The oldest is forgotten first.
const MOST: usize = 10_000;

/// Returns of messages that do not count.
#[derive(Debug, Default)]
pub(super) struct Uncounted {
    notes: HashMap<String, Note>,
    order: VecDeque<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Note {
    /// The server's count at the last return.
    last: u32,
    /// Number of counted deliveries that do not count.
    total: u32,
    /// Set from a return to the next delivery.
    is_back: bool,
    /// Number of attempts that have ended.
    ended: u32,
}

impl Uncounted {
    /// Notes that a message goes back unprocessed. `count`: the server's count for its delivery.
    pub(super) fn note(&mut self, id: &str, count: u32) {
        let note = self.entry(id);
        (note.last, note.is_back) = (count, true);
    }

    /// Notes that a message goes back after this number of attempts.
    pub(super) fn note_ended(&mut self, id: &str, attempts: u32) {
        self.entry(id).ended = attempts;
    }

    /// Returns the number of attempts that have ended here.
    pub(super) fn ended(&self, id: &str) -> u32 {
        self.notes.get(id).map_or(0, |note| note.ended)
    }

    fn entry(&mut self, id: &str) -> &mut Note {
        if !self.notes.contains_key(id) {
            self.order.push_back(id.to_owned());
            while self.order.len() > MOST {
                self.order.pop_front().map(|oldest| self.notes.remove(&oldest));
            }
        }
        self.notes.entry(id.to_owned()).or_default()
    }

    /// Returns the number of deliveries among the server's count that do not count.
    pub(super) fn of(&mut self, id: &str, count: u32) -> u32 {
        let Some(note) = self.notes.get_mut(id) else { return 0 };
        // Later servers do not count a return.
        note.total += u32::from(note.is_back && count > note.last);
        note.is_back = false;
        note.total.min(count)
    }

    /// Forgets a message that is settled for good.
    pub(super) fn forget(&mut self, id: &str) {
        if self.notes.remove(id).is_some() {
            self.order.retain(|other| other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_returns_that_the_server_counted_are_subtracted() {
        let mut uncounted = Uncounted::default();
        assert_eq!(uncounted.of("a", 3), 0);
        uncounted.note("a", 0);
        assert_eq!(uncounted.of("a", 1), 1, "counted by the server");
        assert_eq!(uncounted.of("a", 2), 1, "this one was an attempt");
        uncounted.note("a", 2);
        assert_eq!(uncounted.of("a", 2), 1, "not counted by the server");
        uncounted.note("a", 2);
        assert_eq!(uncounted.of("a", 3), 2);
        uncounted.forget("a");
        assert_eq!(uncounted.of("a", 3), 0);
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut uncounted = Uncounted::default();
        for n in 0..=MOST {
            uncounted.note(&n.to_string(), 0);
        }
        assert_eq!((uncounted.of("0", 1), uncounted.of("1", 1), uncounted.notes.len()), (0, 1, MOST));
    }
}
