//! Gathers messages that may start into batches. No I/O.
//!
//! A batch is closed when it has as many messages or bytes as it may have, when the next message would exceed its bytes, or when its
//! oldest message has waited for long enough. The event loop takes a batch only while a slot is free.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use tokio::time::{Duration, Instant};

use hostler_config as config;

/// A message that waits for its batch.
#[derive(Debug)]
struct Waiting<I> {
    id: I,
    size: u64,
    since: Instant,
}

/// Messages of one consumer that wait for a batch, in the order in which they were added. `I` is the type that identifies
/// a delivery.
#[derive(Debug)]
pub struct Gather<I> {
    max: usize,
    wait: Duration,
    bytes: u64,
    /// The messages by their turns, which count from 0.
    waiting: BTreeMap<u64, Waiting<I>>,
    turns: HashMap<I, u64>,
    next_turn: u64,
    /// Sum of the sizes of all waiting messages, in bytes.
    size: u64,
}

impl<I: Copy + Eq + Hash> Gather<I> {
    /// Creates a gatherer without messages.
    pub fn new(batch: config::Batch) -> Self {
        let config::Batch { max, wait, bytes, .. } = batch;
        let (waiting, turns) = (BTreeMap::new(), HashMap::new());
        Self { max: max.max(1), wait, bytes, waiting, turns, next_turn: 0, size: 0 }
    }

    /// Adds the message `id` of `size` bytes, which came at `now`.
    pub fn push(&mut self, id: I, size: u64, now: Instant) {
        self.remove(id);
        self.waiting.insert(self.next_turn, Waiting { id, size, since: now });
        self.turns.insert(id, self.next_turn);
        self.next_turn += 1;
        self.size = self.size.saturating_add(size);
    }

    /// Removes a message that goes back or has lost its lease. Does nothing if the message does not wait here.
    pub fn remove(&mut self, id: I) {
        let Some(turn) = self.turns.remove(&id) else { return };
        if let Some(waiting) = self.waiting.remove(&turn) {
            self.size = self.size.saturating_sub(waiting.size);
        }
    }

    /// Removes and returns the next batch. `None`: no batch is closed yet. `at_once`: `true` if a batch that is not full is not
    /// to wait either.
    pub fn next(&mut self, at_once: bool, now: Instant) -> Option<Vec<I>> {
        let is_due = at_once || self.due_at().is_some_and(|at| at <= now);
        // The common case: no need to add up sizes.
        if !is_due && self.waiting.len() < self.max && self.size < self.bytes {
            return None;
        }
        let (mut size, mut members) = (0_u64, Vec::new());
        for waiting in self.waiting.values() {
            size = size.saturating_add(waiting.size);
            if members.len() == self.max || (size > self.bytes && !members.is_empty()) {
                break;
            }
            members.push(waiting.id);
        }
        members.iter().for_each(|id| self.remove(*id));
        (!members.is_empty()).then_some(members)
    }

    /// Returns the time at which the oldest message has waited for long enough. `None`: no message waits.
    pub fn due_at(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, oldest)| oldest.since + self.wait)
    }

    /// Returns `true` if the waiting messages fill the bytes of as many batches as may start.
    pub fn fills(&self, batches: usize) -> bool {
        self.size >= self.bytes.saturating_mul(u64::try_from(batches).unwrap_or(u64::MAX)) && !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_config::OnTrap;

    const SECOND: Duration = Duration::from_secs(1);

    fn gather(max: usize, wait: Duration, bytes: u64) -> Gather<u64> {
        Gather::new(config::Batch { max, wait, bytes, on_trap: OnTrap::Singly })
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        let (mut gather, now) = (gather(2, SECOND, 100), Instant::now());
        gather.push(1, 10, now);
        assert_eq!(gather.next(false, now), None);
        gather.push(2, 10, now);
        gather.push(3, 10, now);
        assert_eq!(gather.next(false, now), Some(vec![1, 2]));
        assert_eq!(gather.next(false, now), None);
        assert_eq!(gather.next(true, now), Some(vec![3]));
        assert_eq!((gather.next(true, now), gather.due_at()), (None, None));
    }

    #[test]
    fn the_oldest_message_decides_how_long_a_batch_waits() {
        let (mut gather, now) = (gather(10, 2 * SECOND, 100), Instant::now());
        gather.push(1, 1, now);
        gather.push(2, 1, now + SECOND);
        assert_eq!(gather.due_at(), Some(now + 2 * SECOND));
        assert_eq!(gather.next(false, now + SECOND), None);
        assert_eq!(gather.next(false, now + 2 * SECOND), Some(vec![1, 2]));
        gather.push(3, 1, now);
        gather.push(4, 1, now + SECOND);
        gather.remove(3);
        assert_eq!(gather.due_at(), Some(now + 3 * SECOND));
    }

    #[test]
    fn a_batch_has_no_more_bytes_than_it_may_unless_one_message_has() {
        let (mut gather, now) = (gather(10, SECOND, 100), Instant::now());
        for (id, size) in [(1, 60), (2, 40), (3, 1), (4, 500), (5, 100)] {
            gather.push(id, size, now);
        }
        assert!(gather.fills(7) && !gather.fills(8));
        let batches: Vec<_> = std::iter::from_fn(|| gather.next(false, now)).collect();
        assert_eq!(batches, [vec![1, 2], vec![3], vec![4], vec![5]]);
        assert!(!gather.fills(0), "nothing waits");
    }

    /// Plays random steps, and compares with a list.
    #[test]
    fn every_message_leaves_once_in_order_and_in_time() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (max, bytes, wait) = (random.usize(1..8), random.u64(1..50), random.u32(0..4) * SECOND);
            let (mut gather, mut now) = (gather(max, wait, bytes), Instant::now());
            let mut model: Vec<(u64, u64, Instant)> = Vec::new();
            for id in 0..200 {
                now += random.u32(0..2) * SECOND / 2;
                match random.u8(0..8) {
                    0 => {
                        if let Some(index) = (!model.is_empty()).then(|| random.usize(0..model.len())) {
                            gather.remove(model.remove(index).0);
                        }
                    }
                    _ => {
                        let size = random.u64(0..30);
                        gather.push(id, size, now);
                        model.push((id, size, now));
                    }
                }
                // Sometimes no slot is free.
                while random.bool() {
                    let Some(batch) = gather.next(false, now) else {
                        let size: u64 = model.iter().map(|one| one.1).sum();
                        let oldest = model.first().map(|one| one.2);
                        assert!(model.len() < max && size < bytes && oldest.is_none_or(|at| now < at + wait));
                        break;
                    };
                    let taken: Vec<_> = model.drain(..batch.len()).collect();
                    assert_eq!(batch, taken.iter().map(|one| one.0).collect::<Vec<_>>());
                    let size: u64 = taken.iter().map(|one| one.1).sum();
                    assert!(batch.len() <= max && (size <= bytes || batch.len() == 1), "seed {seed}");
                }
            }
            assert_eq!(gather.waiting.len(), model.len());
            assert_eq!(gather.size, model.iter().map(|one| one.1).sum::<u64>());
        }
    }
}
