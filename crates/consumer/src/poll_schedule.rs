//! Poll schedule: decides when to start a receive call, and how many messages to request. Also tracks why no receive
//! call starts, and when that reason last changed. No I/O.
//!
//! After each event, the event loop asks the schedule for the next step. While the next step is a receive call, the
//! loop starts the call and asks again. Whether a call starts, and with how many messages, depends on the numbers of
//! free slots and unsettled messages, the rate limit, the operator's pause, the breaker, the calls in progress, and the
//! delay after an error. A busy consumer also waits until several slots are free.

use tokio::time::{Duration, Instant};

use super::Spec;
use super::admission::Admission;
use super::status::Status;
use hostler_queue::{Limits, Receive};
use hostler_types::{Backoff, Bucket};

/// Delays after failed receive calls.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(20));

/// Minimum time for which receive calls must have been refused before the consumer gives up. A queue that was just
/// created may not yet be known to all servers of the queue service.
const CERTAIN: Duration = Duration::from_secs(3);

/// Period after the start in which refused receive calls can end the consumer. Later refusals are retried.
const START: Duration = Duration::from_secs(30);

/// Minimum time without a receive for which the queue is told to rest. For a shorter time, messages that the service sent
/// ahead would go back and come again for nothing.
const LONG: Duration = Duration::from_secs(10);

/// Next step of the event loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start this receive call, and query the schedule again.
    Receive(Receive),
    /// Query the schedule again at this time, or after the next event if an event comes first.
    At(Instant),
    /// Query the schedule again after an event.
    Event,
    /// Let the queue rest, and query the schedule again at this time, or after the next event if an event comes first.
    /// Returned once, when the rate limit begins to prevent receives for a long time. The loop itself lets the queue rest
    /// on a pause, an open breaker and a drain, because these also stop receives in progress.
    Rest(Instant),
}

/// Counts of a consumer's deliveries, by state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Number of deliveries that hold a slot.
    pub(super) occupied: usize,
    /// Number of deliveries whose guest is running.
    pub(super) running: usize,
    /// Number of unfinished deliveries.
    pub(super) in_hand: usize,
}

/// Result of the last receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    /// No receive call has ended yet, or only the first one has ended, without messages. The first call does not wait
    /// for messages, so its empty result does not mean that the queue is empty.
    Unknown,
    /// The last receive call returned no messages, or failed.
    Nothing,
    /// The last receive call returned messages, so the queue may contain enough messages for several calls at the same
    /// time.
    Messages,
}

/// Reason why no receive call starts. The health check expects the consumer to poll unless the reason is
/// [`Self::Held`]. The delay after an error and a wait for settlements count as [`Self::Free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// No reason, or a receive call is in progress.
    Free,
    /// All slots are taken, but no handler is running. Either the processing-timeout hook is deciding, or messages are
    /// waiting for the first message of their FIFO group. Both waits are bounded, so the health check still expects a
    /// poll.
    Taken,
    /// The consumer is not required to poll, because it is paused, the breaker is open, the rate limit is exhausted, or
    /// handlers are running in all slots.
    Held,
}

/// Poll schedule of one consumer.
#[derive(Debug)]
pub(super) struct PollSchedule {
    limits: Limits,
    ordered: bool,
    concurrency: usize,
    lease: Duration,
    wait: Duration,
    bucket: Option<Bucket>,
    /// Maximum number of messages for one receive call.
    batch: usize,
    under_way: usize,
    /// Number of slots reserved for receive calls in progress.
    promised: usize,
    brought: Brought,
    /// Number of consecutive failed receive calls.
    failures: u32,
    rest_until: Option<Instant>,
    /// Time at which a receive call could first have started. Since then, a busy consumer has been waiting for more
    /// free slots, to request a full batch.
    gathering_since: Option<Instant>,
    started_at: Instant,
    /// Time of the first refused receive call. Used only until a receive call has succeeded.
    refused_since: Option<Instant>,
    last_poll_at: Option<Instant>,
    hold: Hold,
    could_poll_since: Option<Instant>,
    /// Set from the step [`Next::Rest`] until the next receive.
    rests: bool,
}

impl PollSchedule {
    /// Creates the schedule of a consumer that starts at `now`, for a queue with these limits.
    ///
    /// A receive call to an ordered queue may return several messages of one group. The messages after the first may
    /// have to go back, although their receive count has increased. Therefore, the schedule starts with calls for one
    /// message. The batch grows by one message after each call that returns no group twice.
    pub(super) fn new(spec: &Spec, limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            ordered: spec.ordered,
            concurrency: spec.concurrency,
            lease: spec.lease,
            wait: limits.max_wait.min(spec.longest_poll),
            bucket: spec.rate_limit.map(|rate| Bucket::empty(rate, now)),
            batch: if spec.ordered { 1 } else { limits.receive_batch.max(1) },
            under_way: 0,
            promised: 0,
            brought: Brought::Unknown,
            failures: 0,
            rest_until: None,
            gathering_since: None,
            started_at: now,
            refused_since: None,
            last_poll_at: None,
            hold: Hold::Free,
            could_poll_since: None,
            rests: false,
        }
    }

    /// Returns the next step at `now`. If the step is a receive call, the call counts as in progress from now on.
    pub(super) fn next<I: Copy + PartialEq>(&mut self, load: Load, admission: &Admission<I>, now: Instant) -> Next {
        let tokens = self.bucket.as_mut().map_or(usize::MAX, |bucket| bucket.available(now));
        let room = admission.room(self.promised).min(tokens);
        if let Some(max) = self.begin(self.free(load).min(room), now) {
            if let Some(bucket) = &mut self.bucket {
                bucket.take(max);
            }
            self.promised += max;
            self.rests = false;
            // The first receive call does not wait for messages, to find out at once whether the queue refuses it.
            let wait = if self.last_poll_at.is_some() { self.wait } else { Duration::ZERO };
            return Next::Receive(Receive { max, wait, lease: self.lease });
        }
        self.observe(self.hold(load, admission.is_shut(), room), now);
        let gathered = self.gathering_since.map(|since| since + self.limits.settle_linger);
        let token = self.bucket.as_ref().and_then(Bucket::next_at).map(Instant::from);
        // Only future times matter. If a time has passed and no receive call has started, something else prevents the
        // call.
        let ahead = [self.rest_until.or(gathered), token, admission.breaker.next_at()]
            .into_iter()
            .flatten()
            .filter(|at| *at > now);
        let next = ahead.min();
        match next {
            Some(at) if tokens == 0 && self.under_way == 0 && at >= now + LONG && !self.rests => {
                self.rests = true;
                Next::Rest(at)
            }
            next => next.map_or(Next::Event, Next::At),
        }
    }

    /// Returns the number of messages that the consumer can accept. A slot is free once its guest has ended. A separate
    /// limit on the number of unfinished deliveries may permit fewer messages than there are free slots.
    fn free(&self, load: Load) -> usize {
        let slots = self.concurrency.saturating_sub(load.occupied + self.promised);
        let most = 2 * self.concurrency + self.limits.settle_batch;
        slots.min(most.saturating_sub(load.in_hand + self.promised))
    }

    /// Starts a receive call, if one may start, and returns the number of messages to request. A call costs the same
    /// for one message as for a full batch, so a busy consumer waits until several slots are free.
    fn begin(&mut self, free: usize, now: Instant) -> Option<usize> {
        if self.rest_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rest_until = None;
        let busy = self.brought == Brought::Messages;
        let at_once = if busy { self.limits.parallel_receives.max(1) } else { 1 };
        if free == 0 || self.under_way >= at_once {
            return None;
        }
        let since = *self.gathering_since.get_or_insert(now);
        if busy && free < self.batch.min(self.concurrency) && now < since + self.limits.settle_linger {
            return None;
        }
        self.gathering_since = None;
        self.under_way += 1;
        Some(free.min(self.batch))
    }

    fn hold(&self, load: Load, is_shut: bool, room: usize) -> Hold {
        let is_full = load.occupied >= self.concurrency;
        match load.running {
            _ if is_shut => Hold::Held,
            _ if self.under_way > 0 => Hold::Free,
            _ if room == 0 => Hold::Held,
            0 if is_full => Hold::Taken,
            _ if is_full => Hold::Held,
            _ => Hold::Free,
        }
    }

    /// Records the reason why no receive call starts. If the reason has changed, records `now` as the time of the
    /// change.
    fn observe(&mut self, hold: Hold, now: Instant) {
        if std::mem::replace(&mut self.hold, hold) != hold {
            self.could_poll_since = Some(now);
        }
    }

    /// Records that a receive call for `asked` messages returned `count` messages. `followers`: number of these
    /// messages that wait for an earlier message of their group.
    pub(super) fn received(&mut self, asked: usize, count: usize, followers: usize, now: Instant) {
        self.answered(asked, count);
        if self.ordered && count > 0 {
            self.batch = if followers > 0 { 1 } else { self.limits.receive_batch.min(self.batch + 1).max(1) };
        }
        self.brought = match count {
            0 if self.last_poll_at.is_none() => Brought::Unknown,
            0 => Brought::Nothing,
            _ => Brought::Messages,
        };
        self.last_poll_at = Some(now);
        self.failures = 0;
    }

    /// Records that a receive call for `asked` messages failed. `refused`: `true` if the queue does not permit the
    /// call. `random`: number from 0 to 1. Returns the delay before the next call, and `true` if the consumer must give
    /// up because the queue has refused all calls since the start.
    pub(super) fn failed(&mut self, asked: usize, refused: bool, now: Instant, random: f64) -> (Duration, bool) {
        self.answered(asked, 0);
        self.brought = Brought::Nothing;
        // Failures of simultaneous calls count as one failure.
        let rest = match self.rest_until.filter(|until| now < *until) {
            Some(until) => until - now,
            None => {
                let rest = REST.rest(self.failures, random);
                self.failures = self.failures.saturating_add(1);
                rest
            }
        };
        self.rest_until = Some(now + rest);
        let gives_up = refused && self.last_poll_at.is_none() && {
            let since = *self.refused_since.get_or_insert(now);
            now >= since + CERTAIN && now < self.started_at + START
        };
        (rest, gives_up)
    }

    fn answered(&mut self, asked: usize, count: usize) {
        self.under_way = self.under_way.saturating_sub(1);
        self.promised = self.promised.saturating_sub(asked);
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(asked.saturating_sub(count));
            // If the queue returned more messages than requested, the excess is charged to the rate limit too.
            bucket.take(count.saturating_sub(asked));
        }
    }

    /// Records that a received message is not due yet and goes back. The message does not count toward the rate limit.
    pub(super) fn not_due(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(1);
        }
    }

    /// Returns the number of receive calls in progress.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns `true` if the last receive call failed or returned no messages. Returns `false` if only the first call
    /// has ended, without messages, because that call did not wait for messages.
    pub(super) fn is_idle(&self) -> bool {
        self.brought == Brought::Nothing
    }

    /// Sets the fields of `status` that the health check uses to judge whether the consumer polls.
    pub(super) fn show(&self, status: &mut Status) {
        status.last_poll_at = self.last_poll_at;
        status.could_poll_since = self.could_poll_since;
        status.held_back = self.hold == Hold::Held;
    }
}

#[cfg(test)]
mod tests {
    use super::super::breaker::End;
    use super::super::policy::Policy;
    use super::*;
    use hostler_config::{self as config, OnProcessingTimeout, Retry};
    use hostler_types::Rate;

    const SECOND: Duration = Duration::from_secs(1);
    const LINGER: Duration = Duration::from_millis(100);
    const LIMITS: Limits = Limits {
        receive_batch: 10,
        settle_batch: 10,
        settle_linger: Duration::ZERO,
        max_wait: SECOND.saturating_mul(20),
        max_lease: Duration::ZERO,
        parallel_receives: 3,
        max_release: Duration::MAX,
    };

    fn spec() -> Spec {
        let retry = Retry { requeues: 0, requeue_delay: SECOND, delays: 0, delay: SECOND, max_delay: SECOND };
        Spec {
            name: "work".into(),
            channel: "work".into(),
            ordered: false,
            concurrency: 64,
            lease: 30 * SECOND,
            processing_timeout: SECOND,
            delay_tolerance: SECOND,
            longest_poll: 5 * SECOND,
            rate_limit: None,
            policy: Policy { retry, on_processing_timeout: OnProcessingTimeout::Retry, dead_letter: true },
            breaker: None,
            output: 0,
        }
    }

    /// A schedule, with the other inputs that it needs.
    struct Bench {
        schedule: PollSchedule,
        load: Load,
        admission: Admission<u32>,
        now: Instant,
    }

    impl Bench {
        fn new(spec: Spec, limits: Limits) -> Self {
            let now = Instant::now();
            let (schedule, admission) = (PollSchedule::new(&spec, limits, now), Admission::new(spec.breaker, now));
            Self { schedule, load: Load { occupied: 0, running: 0, in_hand: 0 }, admission, now }
        }

        fn with_slots(concurrency: usize) -> Self {
            Self::new(Spec { concurrency, ..spec() }, LIMITS)
        }

        /// Advances the time, and queries the schedule.
        fn after(&mut self, passed: Duration) -> Next {
            self.now += passed;
            self.schedule.next(self.load, &self.admission, self.now)
        }

        /// Returns the number of messages that the next receive call requests. `None`: no receive call starts now.
        fn asks(&mut self) -> Option<usize> {
            if let Next::Receive(request) = self.after(Duration::ZERO) { Some(request.max) } else { None }
        }

        fn received(&mut self, asked: usize, count: usize, followers: usize) {
            self.schedule.received(asked, count, followers, self.now);
        }

        /// Sets the load to this number of running messages.
        fn run(&mut self, count: usize) {
            self.load = Load { occupied: count, running: count, in_hand: count };
        }

        fn failed(&mut self, asked: usize, refused: bool) -> (Duration, bool) {
            self.schedule.failed(asked, refused, self.now, 1.0)
        }

        fn could_poll_since(&self) -> Option<Duration> {
            self.schedule.could_poll_since.map(|since| self.now - since)
        }
    }

    #[test]
    fn one_poll_while_idle_and_more_after_one_that_brought_something() {
        let mut bench = Bench::with_slots(64);
        assert_eq!((bench.asks(), bench.asks()), (Some(10), None));
        bench.received(10, 10, 0);
        bench.run(10);
        assert_eq!([(); 4].map(|()| bench.asks()), [Some(10), Some(10), Some(10), None]);
        bench.received(10, 0, 0);
        assert_eq!((bench.asks(), bench.schedule.under_way()), (None, 2), "two are still under way");
    }

    #[test]
    fn the_first_receive_waits_for_nothing_and_an_idle_consumer_is_one_whose_second_was_empty() {
        let mut bench = Bench::with_slots(64);
        let mut waits = || {
            let Next::Receive(Receive { max, wait, lease }) = bench.after(SECOND) else {
                panic!("{:?}", bench.schedule)
            };
            assert_eq!((max, lease), (10, 30 * SECOND));
            bench.received(max, 0, 0);
            (wait, bench.schedule.is_idle())
        };
        assert_eq!([waits(), waits()], [(Duration::ZERO, false), (5 * SECOND, true)]);
    }

    #[test]
    fn an_ordered_queue_is_asked_for_few_of_a_group() {
        let mut bench = Bench::new(Spec { ordered: true, ..spec() }, LIMITS);
        for (asked, followers) in [(1, 0), (2, 0), (3, 2), (1, 0), (2, 1), (1, 0)] {
            assert_eq!(bench.asks(), Some(asked));
            bench.received(asked, asked, followers);
        }
        for _ in 0..20 {
            let asked = bench.asks().unwrap();
            bench.received(asked, 1, 0);
        }
        assert_eq!(bench.asks(), Some(10));
    }

    #[test]
    fn a_busy_consumer_lets_slots_gather_for_a_full_receive() {
        let mut bench = Bench::new(spec(), Limits { settle_linger: LINGER, ..LIMITS });
        bench.run(61);
        assert_eq!(bench.asks(), Some(3), "an idle one does not wait");
        bench.received(3, 3, 0);
        assert_eq!(bench.after(Duration::ZERO), Next::At(bench.now + LINGER));
        bench.run(54);
        assert_eq!(bench.asks(), Some(10));
        bench.received(10, 10, 0);
        bench.run(60);
        assert_eq!(bench.asks(), None);
        assert!(matches!(bench.after(LINGER), Next::Receive(Receive { max: 4, .. })));
        let mut small = Bench::new(Spec { concurrency: 4, ..spec() }, Limits { settle_linger: LINGER, ..LIMITS });
        small.received(0, 4, 0);
        assert_eq!(small.asks(), Some(4), "all there are");
    }

    #[test]
    fn slots_are_promised_once_and_unsettled_messages_are_bounded() {
        let mut bench = Bench::with_slots(12);
        bench.received(0, 1, 0);
        assert_eq!([(); 3].map(|()| bench.asks()), [Some(10), Some(2), None]);
        bench.received(10, 0, 0);
        bench.received(2, 0, 0);
        bench.load = Load { occupied: 0, running: 0, in_hand: 31 };
        assert_eq!(bench.asks(), Some(3), "of twice the slots and a batch of settlements");
        bench.received(3, 3, 0);
        bench.load.in_hand = 34;
        assert_eq!(bench.after(Duration::ZERO), Next::Event);
    }

    #[test]
    fn tokens_are_taken_by_a_receive_and_given_back_for_what_it_did_not_bring() {
        let mut bench = Bench::new(Spec { rate_limit: Some(Rate { permits: 4, per: SECOND }), ..spec() }, LIMITS);
        assert_eq!(bench.after(Duration::ZERO), Next::At(bench.now + SECOND / 4 + Duration::from_millis(1)));
        assert_eq!(bench.schedule.hold, Hold::Held);
        assert!(matches!(bench.after(SECOND), Next::Receive(Receive { max: 4, .. })));
        bench.received(4, 1, 0);
        assert_eq!((bench.asks(), bench.asks()), (Some(3), None));
        // Messages beyond the requested number count toward the rate limit later.
        bench.received(3, 5, 0);
        assert_eq!(bench.after(SECOND / 2), Next::At(bench.now + SECOND / 4 + Duration::from_millis(1)));
        assert!(matches!(bench.after(SECOND / 2), Next::Receive(Receive { max: 2, .. })));
    }

    #[test]
    fn a_long_wait_for_a_token_is_a_rest_and_a_short_one_is_not() {
        let mut bench = Bench::new(Spec { rate_limit: Some(Rate { permits: 1, per: 20 * SECOND }), ..spec() }, LIMITS);
        let first = bench.now + 20 * SECOND + Duration::from_millis(1);
        assert_eq!((bench.after(Duration::ZERO), bench.after(Duration::ZERO)), (Next::Rest(first), Next::At(first)));
        assert!(matches!(bench.after(21 * SECOND), Next::Receive(Receive { max: 1, .. })));
        assert!(matches!(bench.after(Duration::ZERO), Next::At(_)), "not while a receive is under way");
        bench.received(1, 1, 0);
        assert!(matches!(bench.after(Duration::ZERO), Next::Rest(_)), "again after a receive");
        let mut quick = Bench::new(Spec { rate_limit: Some(Rate { permits: 1, per: 9 * SECOND }), ..spec() }, LIMITS);
        assert!(matches!(quick.after(Duration::ZERO), Next::At(_)));
    }

    #[test]
    fn messages_that_are_not_due_cost_no_tokens() {
        let mut bench = Bench::new(Spec { rate_limit: Some(Rate { permits: 4, per: SECOND }), ..spec() }, LIMITS);
        assert!(matches!(bench.after(SECOND), Next::Receive(Receive { max: 4, .. })));
        for _ in 0..3 {
            bench.schedule.not_due();
        }
        bench.received(4, 4, 0);
        assert_eq!(bench.asks(), Some(3));
    }

    #[test]
    fn errors_back_off_to_twenty_seconds_and_a_success_forgets_them() {
        let mut bench = Bench::with_slots(64);
        let rests = [(); 7].map(|()| {
            assert!(matches!(bench.after(20 * SECOND), Next::Receive(_)));
            bench.failed(10, false).0.as_secs()
        });
        assert_eq!(rests, [1, 2, 4, 8, 16, 20, 20]);
        assert!(bench.schedule.is_idle() && bench.schedule.last_poll_at.is_none());
        assert_eq!(bench.after(Duration::ZERO), Next::At(bench.now + 20 * SECOND));
        assert!(matches!(bench.after(20 * SECOND), Next::Receive(_)));
        bench.received(10, 0, 0);
        assert_eq!(bench.failed(0, false).0, SECOND);
    }

    #[test]
    fn receives_that_fail_together_are_one_failure() {
        let mut bench = Bench::with_slots(64);
        bench.received(0, 1, 0);
        let asked: Vec<_> = std::iter::from_fn(|| bench.asks()).collect();
        assert!(asked.len() > 1, "{asked:?}");
        for asked in asked {
            assert_eq!(bench.failed(asked, false).0, SECOND);
        }
        assert!(matches!(bench.after(SECOND), Next::Receive(_)));
        assert_eq!(bench.failed(10, false).0, 2 * SECOND);
    }

    #[test]
    fn a_queue_that_refuses_from_the_start_is_given_up_and_no_other() {
        // Receive calls one second apart. R: refused. F: failed otherwise. S: succeeded.
        let gives_up = |receives: &str| {
            let mut bench = Bench::with_slots(64);
            let mut gives_up = false;
            for receive in receives.chars() {
                match receive {
                    'S' => bench.received(0, 0, 0),
                    _ => gives_up |= bench.failed(0, receive == 'R').1,
                }
                bench.now += SECOND;
            }
            gives_up
        };
        let late = format!("{}RRRR", "F".repeat(30));
        let cases =
            [("RRRR", true), ("RRR", false), ("RFFFR", true), ("RFFF", false), ("SRRRR", false), (&late, false)];
        for (receives, expected) in cases {
            assert_eq!(gives_up(receives), expected, "{receives}");
        }
    }

    #[test]
    fn nothing_is_received_while_the_admission_is_shut() {
        let mut bench = Bench::with_slots(64);
        bench.admission.paused = true;
        assert_eq!(bench.after(SECOND), Next::Event);
        assert_eq!((bench.schedule.hold, bench.could_poll_since()), (Hold::Held, Some(Duration::ZERO)));
        bench.admission.paused = false;
        assert_eq!(bench.asks(), Some(10));

        let failures = config::Share::new(0.5).unwrap();
        let breaker = Some(config::Breaker { failures, over: 60 * SECOND, min: 1, pause: 30 * SECOND });
        let mut bench = Bench::new(Spec { breaker, ..spec() }, LIMITS);
        assert!(bench.admission.breaker.ended(0, End::Failed, bench.now).is_some());
        assert_eq!(bench.after(SECOND), Next::At(bench.now + 29 * SECOND));
        bench.now += 29 * SECOND;
        assert!(bench.admission.breaker.tick(bench.now).is_some());
        assert_eq!((bench.asks(), bench.asks()), (Some(1), None), "one message is tried");
    }

    #[test]
    fn the_time_that_a_receive_may_take_begins_when_one_could_begin() {
        let mut bench = Bench::with_slots(2);
        assert_eq!(bench.asks(), Some(2));
        assert_eq!((bench.after(SECOND), bench.could_poll_since()), (Next::Event, None), "one is under way");
        bench.received(2, 2, 0);
        bench.run(2);
        assert_eq!((bench.after(SECOND), bench.schedule.hold), (Next::Event, Hold::Held), "guests in all slots");
        bench.load.running = 0;
        assert_eq!((bench.after(SECOND), bench.schedule.hold), (Next::Event, Hold::Taken), "slots without a guest");
        assert_eq!((bench.after(SECOND), bench.could_poll_since()), (Next::Event, Some(SECOND)));
        bench.run(0);
        assert_eq!((bench.asks(), bench.asks()), (Some(2), None));
        bench.failed(2, false);
        assert!(matches!(bench.after(SECOND / 2), Next::At(_)));
        assert_eq!(bench.could_poll_since(), Some(SECOND / 2), "a rest is no excuse");
    }
}
