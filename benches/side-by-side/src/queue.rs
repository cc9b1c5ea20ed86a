//! The one queue of the server: what is ready, what is out, and when what was deleted had been sent. No I/O.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::wire::{ACTIONS, Action};

/// The queue and its books.
pub struct Queue {
    /// Whether there is always one more message.
    endless: bool,
    /// The number of the next message that is made.
    next: u64,
    /// Numbers of messages that wait, and since when.
    ready: VecDeque<(u64, Instant)>,
    /// Messages that were handed out and not deleted, and when they were sent.
    out: HashMap<u64, Instant>,
    /// Messages deleted.
    pub deleted: u64,
    /// Calls by what they ask for.
    pub calls: [u64; ACTIONS.len()],
    /// When the first message was asked for.
    pub first_receive: Option<Instant>,
    /// When the first message was deleted.
    pub first_delete: Option<Instant>,
    /// How long it took from send to delete, of messages that were fed.
    pub latencies: Vec<Duration>,
}

impl Queue {
    /// A queue that never gets empty, until [`Queue::end`].
    pub fn endless() -> Self {
        Self {
            endless: true,
            next: 0,
            ready: VecDeque::new(),
            out: HashMap::new(),
            deleted: 0,
            calls: [0; ACTIONS.len()],
            first_receive: None,
            first_delete: None,
            latencies: Vec::new(),
        }
    }

    /// From now on it never gets empty again.
    pub fn open(&mut self) {
        self.endless = true;
    }

    /// From now on there is only what comes back and what is fed.
    pub fn end(&mut self) {
        self.endless = false;
    }

    /// A call has arrived.
    pub fn count(&mut self, action: Action) {
        if let Some(count) = self.calls.get_mut(action as usize) {
            *count += 1;
        }
        if action == Action::ReceiveMessage {
            self.first_receive.get_or_insert_with(Instant::now);
        }
    }

    /// Sends a message.
    pub fn feed(&mut self) {
        self.ready.push_back((self.next, Instant::now()));
        self.next += 1;
    }

    /// Hands out up to `max` messages.
    pub fn take(&mut self, max: usize) -> Vec<u64> {
        let now = Instant::now();
        let mut taken = Vec::with_capacity(max);
        while taken.len() < max {
            let (number, sent) = match self.ready.pop_front() {
                Some(ready) => ready,
                None if self.endless => {
                    self.next += 1;
                    (self.next - 1, now)
                }
                None => break,
            };
            self.out.insert(number, sent);
            taken.push(number);
        }
        taken
    }

    /// Whether a receive would bring something.
    pub fn has_more(&self) -> bool {
        self.endless || !self.ready.is_empty()
    }

    /// Messages that are out.
    pub fn in_flight(&self) -> usize {
        self.out.len()
    }

    /// Deletes a message, for the first time or again.
    pub fn delete(&mut self, number: u64) {
        let Some(sent) = self.out.remove(&number) else { return };
        self.deleted += 1;
        let now = Instant::now();
        self.first_delete.get_or_insert(now);
        if !self.endless {
            self.latencies.push(now - sent);
        }
    }

    /// Makes a message visible again.
    pub fn put_back(&mut self, number: u64) {
        if let Some(sent) = self.out.remove(&number) {
            self.ready.push_back((number, sent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_again_counts_once() {
        let mut queue = Queue::endless();
        assert_eq!(queue.take(3), [0, 1, 2]);
        [1, 1, 7].into_iter().for_each(|number| queue.delete(number));
        assert_eq!((queue.deleted, queue.in_flight(), queue.latencies.len()), (1, 2, 0));
    }

    #[test]
    fn after_the_end_there_is_only_what_comes_back_and_what_is_fed() {
        let mut queue = Queue::endless();
        queue.take(2);
        queue.end();
        assert!(queue.take(1).is_empty() && !queue.has_more());
        queue.put_back(1);
        queue.feed();
        assert_eq!(queue.take(10), [1, 2]);
        queue.delete(2);
        assert_eq!(queue.latencies.len(), 1);
        queue.open();
        assert!(queue.has_more() && queue.take(3).len() == 3);
    }
}
