//! Gathers settlements into batches, and decides when to send each batch. No I/O.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use super::failures::Kind;
use hostler_queue::{Limits, Settlement};
use hostler_types::Backoff;

/// Delays before retries of a settlement that failed temporarily.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// A pending settlement. `I` is the type that identifies its delivery.
#[derive(Debug)]
struct Waiting<I> {
    id: I,
    settlement: Settlement,
    /// Latest time to send the settlement, even if the batch is not full.
    due: Instant,
}

/// Pending settlements of one consumer.
#[derive(Debug)]
pub struct Batcher<I> {
    batch: usize,
    linger: Duration,
    parallel: usize,
    waiting: VecDeque<Waiting<I>>,
    /// Earliest `due` of the settlements in `waiting`.
    due: Option<Instant>,
    /// Settlements that failed temporarily, ordered by the time of their retry. At that time, a settlement moves back
    /// to `waiting`.
    resting: VecDeque<(Instant, Waiting<I>)>,
    /// Consecutive failures, counted separately for each [`Kind`], because one kind may fail while another kind
    /// succeeds.
    streaks: [Streak; Kind::COUNT],
    under_way: usize,
}

/// Consecutive failures of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Streak {
    failures: u32,
    /// Time of the last counted failure.
    failed_at: Option<Instant>,
}

impl<I: Copy + PartialEq> Batcher<I> {
    /// Creates a batcher for a queue with these limits. For an ordered queue, settlements never wait for a fuller
    /// batch, because the next message of a group waits for the settlement.
    pub fn new(limits: Limits, ordered: bool) -> Self {
        Self {
            batch: limits.settle_batch.max(1),
            linger: if ordered { Duration::ZERO } else { limits.settle_linger },
            parallel: limits.parallel_receives.max(1),
            waiting: VecDeque::new(),
            due: None,
            resting: VecDeque::new(),
            streaks: [Streak::default(); Kind::COUNT],
            under_way: 0,
        }
    }

    /// Adds the settlement of the delivery `id`. `lease_ends`: end of the delivery's lease. The settlement is sent
    /// before that time, even if the batch is not full.
    #[inline]
    pub fn push(&mut self, id: I, settlement: Settlement, now: Instant, lease_ends: Option<Instant>) {
        let lingered = now + self.linger;
        let latest = lease_ends.and_then(|end| end.checked_sub(self.linger));
        let due = latest.map_or(lingered, |latest| latest.min(lingered));
        self.wait(Waiting { id, settlement, due });
    }

    #[inline]
    fn wait(&mut self, waiting: Waiting<I>) {
        self.due = Some(self.due.map_or(waiting.due, |due| due.min(waiting.due)));
        self.waiting.push_back(waiting);
    }

    /// Schedules the retry of a settlement that failed temporarily. The delay grows with each consecutive failure of
    /// the same kind. It is at most half of the remaining lease, but at least 200 ms.
    pub fn retry(&mut self, id: I, settlement: Settlement, now: Instant, lease_ends: Option<Instant>) {
        // Failures in the same answer count as one failure.
        let streak = &mut self.streaks[Kind::of(&settlement) as usize];
        if streak.failed_at.replace(now) != Some(now) {
            streak.failures = streak.failures.saturating_add(1);
        }
        let rest = RETRY.ceiling(streak.failures.saturating_sub(1));
        let half = lease_ends.map_or(rest, |end| end.saturating_duration_since(now) / 2);
        let at = now + rest.min(half.max(RETRY.first));
        let place = self.resting.partition_point(|(other, _)| *other <= at);
        self.resting.insert(place, (at, Waiting { id, settlement, due: at }));
    }

    /// Removes and returns the failed moves to the dead-letter queue that wait for a retry.
    pub fn take_failed_copies(&mut self) -> Vec<(I, Settlement)> {
        let is_copy = |(_, waiting): &(Instant, Waiting<I>)| Kind::of(&waiting.settlement) == Kind::Copy;
        let (copies, others) = std::mem::take(&mut self.resting).into_iter().partition(is_copy);
        self.resting = others;
        let copies: VecDeque<_> = copies;
        copies.into_iter().map(|(_, waiting)| (waiting.id, waiting.settlement)).collect()
    }

    /// Resets the count of consecutive failures after a settlement of this kind has succeeded.
    pub(super) fn succeeded(&mut self, kind: Kind) {
        self.streaks[kind as usize] = Streak::default();
    }

    /// Drops the pending settlement of a delivery whose lease is lost. Returns `true` if the delivery had a pending
    /// settlement.
    pub fn withdraw(&mut self, id: I) -> bool {
        let before = self.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.due = self.first_due();
        self.resting.retain(|(_, waiting)| waiting.id != id);
        self.len() < before
    }

    /// Returns the next batch, if one must be sent at `now`. `more_to_come`: `true` if more settlements may join the
    /// batch, because handlers are running.
    pub fn next(&mut self, now: Instant, more_to_come: bool) -> Option<Vec<(I, Settlement)>> {
        while self.resting.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, waiting)) = self.resting.pop_front() {
                self.wait(waiting);
            }
        }
        let time_is_up = now >= self.due?;
        let full = self.waiting.len() >= self.batch;
        if self.under_way >= self.parallel || !(full || time_is_up || !more_to_come) {
            return None;
        }
        self.under_way += 1;
        let count = self.waiting.len().min(self.batch);
        let batch = self.waiting.drain(..count).map(|waiting| (waiting.id, waiting.settlement)).collect();
        self.due = self.first_due();
        Some(batch)
    }

    fn first_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// Records that the queue has answered a batch.
    pub fn answered(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Returns the time at which the next batch may become due. An event may make a batch due earlier.
    pub fn next_at(&self) -> Option<Instant> {
        let lingering = self.due.filter(|_| self.under_way < self.parallel);
        let resting = self.resting.front().map(|(at, _)| *at);
        lingering.into_iter().chain(resting).min()
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.resting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Receipt;

    const LINGER: Duration = Duration::from_millis(100);

    fn batcher(ordered: bool) -> Batcher<u32> {
        let limits = Limits {
            receive_batch: 10,
            settle_batch: 10,
            settle_linger: LINGER,
            max_wait: Duration::ZERO,
            max_lease: Duration::ZERO,
            parallel_receives: 2,
            max_release: Duration::MAX,
        };
        Batcher::new(limits, ordered)
    }

    fn ack(id: u32) -> Settlement {
        Settlement::Ack(Receipt::new(id.to_string()))
    }

    fn ids(batch: Option<Vec<(u32, Settlement)>>) -> Vec<u32> {
        batch.into_iter().flatten().map(|(id, _)| id).collect()
    }

    #[test]
    fn sends_at_a_full_batch_or_after_the_linger_or_when_nothing_more_can_come() {
        let now = Instant::now();
        let mut batcher = batcher(false);
        for id in 0..9 {
            batcher.push(id, ack(id), now, None);
        }
        assert!(ids(batcher.next(now, true)).is_empty());
        assert_eq!(batcher.next_at(), Some(now + LINGER));
        batcher.push(9, ack(9), now, None);
        assert_eq!(ids(batcher.next(now, true)).len(), 10);

        batcher.push(10, ack(10), now, None);
        assert_eq!(ids(batcher.next(now + LINGER, true)), [10]);
        batcher.answered();
        batcher.push(11, ack(11), now, None);
        assert_eq!(ids(batcher.next(now, false)), [11]);
    }

    #[test]
    fn a_settlement_does_not_wait_for_others_until_its_lease_ends() {
        let now = Instant::now();
        let mut batcher = batcher(false);
        batcher.push(1, ack(1), now, Some(now + 10 * LINGER));
        assert_eq!(batcher.next_at(), Some(now + LINGER));
        batcher.push(2, ack(2), now, Some(now + LINGER + LINGER / 4));
        assert_eq!(batcher.next_at(), Some(now + LINGER / 4));
        assert!(ids(batcher.next(now, true)).is_empty());
        assert_eq!(ids(batcher.next(now + LINGER / 4, true)), [1, 2]);
        assert_eq!(batcher.next_at(), None);
        batcher.push(3, ack(3), now, Some(now + LINGER / 2));
        assert_eq!(ids(batcher.next(now, true)), [3]);
    }

    #[test]
    fn an_ordered_queue_does_not_wait() {
        let now = Instant::now();
        let mut batcher = batcher(true);
        batcher.push(1, ack(1), now, None);
        assert_eq!(ids(batcher.next(now, true)), [1]);
    }

    #[test]
    fn a_settlement_that_failed_comes_again_and_can_be_withdrawn() {
        let now = Instant::now();
        let mut batcher = batcher(true);
        batcher.retry(1, ack(1), now, None);
        batcher.retry(2, ack(2), now, None);
        assert!(ids(batcher.next(now, false)).is_empty());
        assert_eq!(batcher.next_at(), Some(now + RETRY.first));
        assert!(batcher.withdraw(1));
        assert!(!batcher.withdraw(1));
        assert_eq!(ids(batcher.next(now + RETRY.first, false)), [2]);
    }

    #[test]
    fn failures_in_a_row_rest_ever_longer_but_not_beyond_half_of_what_is_left() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut batcher = batcher(false);
        let mut rest = |at: u32, lease_ends: Option<u32>| {
            let now = start + at * second;
            batcher.retry(1, ack(1), now, lease_ends.map(|end| start + end * second));
            let rest = batcher.next_at().map(|at| at - now);
            assert!(batcher.withdraw(1));
            rest.map(|rest| rest.as_millis())
        };
        let rests: Vec<_> = (0..7).map(|at| rest(at, None)).collect();
        assert_eq!(rests, [200, 400, 800, 1600, 3200, 5000, 5000].map(Some));
        assert_eq!([rest(10, Some(14)), rest(20, Some(20))], [Some(2000), Some(200)]);
        batcher.succeeded(Kind::Removal);
        batcher.retry(1, ack(1), start, None);
        assert_eq!(batcher.next_at(), Some(start + RETRY.first));
    }

    #[test]
    fn a_release_that_works_does_not_hurry_removals_that_fail() {
        let (start, mut batcher) = (Instant::now(), batcher(false));
        for at in 0..5 {
            batcher.retry(1, ack(1), start + at * RETRY.longest, None);
            assert!(batcher.withdraw(1));
            batcher.succeeded(Kind::Release);
        }
        let now = start + 5 * RETRY.longest;
        batcher.retry(1, ack(1), now, None);
        assert_eq!(batcher.next_at(), Some(now + RETRY.longest));
    }

    #[test]
    fn no_more_calls_at_once_than_the_queue_likes() {
        let now = Instant::now();
        let mut batcher = batcher(true);
        for id in 0..3 {
            batcher.push(id, ack(id), now, None);
            assert_eq!(ids(batcher.next(now, false)).len(), usize::from(id < 2));
        }
        batcher.answered();
        assert_eq!(ids(batcher.next(now, false)), [2]);
    }
}
