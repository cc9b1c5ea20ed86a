//! The queue of the server, without I/O: waiting messages, messages in flight, and latencies of deleted messages.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::wire::{ACTIONS, Action};

/// The queue and its counts.
pub struct Queue {
    /// Set if the queue always has another message.
    endless: bool,
    /// Number of the next new message.
    next: u64,
    /// Numbers of waiting messages, each with its time.
    ready: VecDeque<(u64, Instant)>,
    /// Messages that were delivered and not deleted, each with its send time.
    out: HashMap<u64, Instant>,
    /// Number of deleted messages.
    pub deleted: u64,
    /// Number of calls, by action.
    pub calls: [u64; ACTIONS.len()],
    /// Time of the first receive.
    pub first_receive: Option<Instant>,
    /// Time of the first delete.
    pub first_delete: Option<Instant>,
    /// Times from send to delete of fed messages.
    pub latencies: Vec<Duration>,
}

impl Queue {
    /// Creates a queue that never becomes empty until [`Queue::end`] is called.
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

    /// Makes the queue endless again.
    pub fn open(&mut self) {
        self.endless = true;
    }

    /// Ends the endless supply. From now on, only returned and fed messages are delivered.
    pub fn end(&mut self) {
        self.endless = false;
    }

    /// Counts a call.
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

    /// Delivers up to `max` messages.
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

    /// Returns true if a receive would deliver a message.
    pub fn has_more(&self) -> bool {
        self.endless || !self.ready.is_empty()
    }

    /// Returns the number of messages in flight.
    pub fn in_flight(&self) -> usize {
        self.out.len()
    }

    /// Deletes a message. A repeated delete has no effect.
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
