//! Tests of the poll schedule.

use super::*;
use crate::breaker::End;
use crate::policy::Policy;
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
        batch: None,
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
        let Next::Receive(Receive { max, wait, lease }) = bench.after(SECOND) else { panic!("{:?}", bench.schedule) };
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
    assert_eq!((bench.after(Duration::ZERO), bench.after(Duration::ZERO)), (Next::Rest(Some(first)), Next::At(first)));
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
    let cases = [("RRRR", true), ("RRR", false), ("RFFFR", true), ("RFFF", false), ("SRRRR", false), (&late, false)];
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
fn a_breaker_that_has_its_probe_lets_the_queue_rest() {
    let failures = config::Share::new(0.5).unwrap();
    let breaker = Some(config::Breaker { failures, over: 60 * SECOND, min: 1, pause: 30 * SECOND });
    let mut bench = Bench::new(Spec { breaker, ..spec() }, LIMITS);
    assert!(bench.admission.breaker.ended(0, End::Failed, bench.now).is_some());
    bench.now += 30 * SECOND;
    assert!(bench.admission.breaker.tick(bench.now).is_some());
    assert_eq!((bench.asks(), bench.after(Duration::ZERO)), (Some(1), Next::Event), "the probe is on its way");
    bench.received(1, 1, 0);
    bench.run(1);
    assert!(bench.admission.admits(1));
    assert_eq!([(); 2].map(|()| bench.after(SECOND)), [Next::Rest(None), Next::Event]);
    assert!(bench.admission.breaker.ended(1, End::Decided, bench.now).is_some());
    bench.run(0);
    assert_eq!(bench.asks(), Some(10));
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
