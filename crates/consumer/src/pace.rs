//! The pace of polling: how many receives at once, how large, and how long to rest after an error. No I/O.

use tokio::time::{Duration, Instant};

use hostler_queue::Limits;

/// The first rest after a failed receive; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// The longest rest after a failed receive.
const MAX_BACKOFF: Duration = Duration::from_secs(20);

/// When a consumer polls.
#[derive(Debug)]
pub struct Pace {
    limits: Limits,
    /// The most messages worth asking for at once.
    batch: usize,
    ordered: bool,
    under_way: usize,
    /// Whether the last receive brought something, so that more at once may be worth it.
    busy: bool,
    failures: u32,
    rest_until: Option<Instant>,
    /// Since when there are free slots, but too few for a full receive.
    gathering_since: Option<Instant>,
}

impl Pace {
    /// The pace for a queue with these limits.
    ///
    /// A receive of an ordered queue may bring several of one group, and those behind its head may go back untouched,
    /// with a receive more on their count. So it asks for one message at first, and for one more after each receive that
    /// brought no group twice.
    pub fn new(limits: Limits, ordered: bool) -> Self {
        let batch = if ordered { 1 } else { limits.receive_batch.max(1) };
        Self { limits, batch, ordered, under_way: 0, busy: false, failures: 0, rest_until: None, gathering_since: None }
    }

    /// How many messages to ask for in a receive that starts now, given so many free slots of `all`; `None`: do not start
    /// one. A call costs the same for one message as for a full batch, so a busy consumer lets slots gather for a while.
    pub fn start(&mut self, free: usize, all: usize, now: Instant) -> Option<usize> {
        if self.rest_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rest_until = None;
        let at_once = if self.busy { self.limits.parallel_receives.max(1) } else { 1 };
        if free == 0 || self.under_way >= at_once {
            return None;
        }
        let batch = self.batch;
        let since = *self.gathering_since.get_or_insert(now);
        if self.busy && free < batch.min(all) && now < since + self.limits.settle_linger {
            return None;
        }
        self.gathering_since = None;
        self.under_way += 1;
        Some(free.min(batch))
    }

    /// A receive brought so many messages, and so many of them that wait behind others of their group.
    pub fn received(&mut self, count: usize, followers: usize) {
        if self.ordered && count > 0 {
            self.batch = if followers > 0 { 1 } else { self.limits.receive_batch.min(self.batch + 1).max(1) };
        }
        self.under_way = self.under_way.saturating_sub(1);
        self.busy = count > 0;
        self.failures = 0;
    }

    /// A receive failed; how long to rest. `jitter` is a random number from 0 to 1.
    pub fn failed(&mut self, now: Instant, jitter: f64) -> Duration {
        self.under_way = self.under_way.saturating_sub(1);
        self.busy = false;
        let ceiling = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(8)).min(MAX_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        // Half of it at least: a queue that is down should not be asked at once, by anyone.
        let rest = ceiling.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.rest_until = Some(now + rest);
        rest
    }

    /// How many receives are under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// When a rest or a gathering of slots ends, if there is one.
    pub fn next_at(&self) -> Option<Instant> {
        self.rest_until.or(self.gathering_since.map(|since| since + self.limits.settle_linger))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace::new(
            Limits {
                receive_batch: 10,
                settle_batch: 10,
                settle_linger: Duration::ZERO,
                max_wait: Duration::ZERO,
                max_lease: Duration::ZERO,
                parallel_receives: 3,
            },
            false,
        )
    }

    #[test]
    fn an_ordered_queue_is_asked_for_few_of_a_group() {
        let (mut pace, now) = (Pace::new(pace().limits, true), Instant::now());
        for (asked, followers) in [(1, 0), (2, 0), (3, 2), (1, 0), (2, 1), (1, 0)] {
            assert_eq!(pace.start(64, 64, now), Some(asked));
            pace.received(asked, followers);
        }
        for _ in 0..20 {
            pace.start(64, 64, now);
            pace.received(1, 0);
        }
        assert_eq!(pace.start(64, 64, now), Some(10));
    }

    #[test]
    fn one_poll_while_idle_and_more_after_one_that_brought_something() {
        let (mut pace, now) = (pace(), Instant::now());
        assert_eq!(pace.start(64, 64, now), Some(10));
        assert_eq!(pace.start(54, 64, now), None);
        pace.received(10, 0);
        assert_eq!([54, 44, 34, 24].map(|free| pace.start(free, 64, now)), [Some(10), Some(10), Some(10), None]);
        pace.received(0, 0);
        assert_eq!(pace.start(64, 64, now), None, "two are still under way");
    }

    #[test]
    fn a_busy_consumer_lets_slots_gather_for_a_full_receive() {
        let linger = Duration::from_millis(100);
        let mut pace = Pace::new(Limits { settle_linger: linger, ..pace().limits }, false);
        let now = Instant::now();
        assert_eq!(pace.start(3, 64, now), Some(3), "an idle one does not wait");
        pace.received(3, 0);
        assert_eq!(pace.start(3, 64, now), None);
        assert_eq!(pace.next_at(), Some(now + linger));
        assert_eq!(pace.start(10, 64, now), Some(10));
        pace.received(10, 0);
        assert_eq!(pace.start(3, 64, now), None);
        assert_eq!(pace.start(4, 64, now + linger), Some(4));
        pace.received(4, 0);
        assert_eq!(pace.start(4, 4, now), Some(4), "all there are");
    }

    #[test]
    fn never_asks_for_more_than_there_are_slots() {
        let (mut pace, now) = (pace(), Instant::now());
        assert_eq!(pace.start(0, 64, now), None);
        assert_eq!(pace.start(3, 64, now), Some(3));
    }

    #[test]
    fn errors_back_off_to_twenty_seconds_and_a_success_forgets_them() {
        let (mut pace, now) = (pace(), Instant::now());
        let rests: Vec<_> = (0..7)
            .map(|_| {
                pace.start(1, 64, now + Duration::from_secs(3600));
                pace.failed(now, 1.0).as_secs()
            })
            .collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 20, 20]);
        assert_eq!(pace.start(1, 64, now), None);
        assert_eq!(pace.start(1, 64, now + Duration::from_secs(20)), Some(1));
        pace.received(0, 0);
        assert_eq!(pace.failed(now, 0.0), Duration::from_millis(500));
    }
}
