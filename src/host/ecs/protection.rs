//! State machine without I/O that decides when ECS must protect this task.
//!
//! ```text
//!            work                idle                 linger over
//!   idle ──────────→ protected ────────→ lingering ─────────────────→ idle
//!                     ↻ half-way         │ work
//!                       to its end       └──→ protected, without a call
//! ```
//!
//! The machine never makes two calls at once. After a failed call, the machine waits before the next call. The delay doubles with
//! each failure, up to a minute. The machine waits even if the desired state changes during the delay, because ECS limits the
//! calls of the whole account (ECS guide, "Request throttling for the Amazon ECS API").

use std::time::Duration;

use tokio::time::Instant;

use super::agent::Call;
use hostler_types::Backoff;

/// Time that the protection remains after the last message in hand has ended. Because of this delay, single messages at
/// short intervals cause no calls, and changes between protected and idle cause at most 12 calls a minute. Services
/// scale in within minutes, so ten seconds matter little.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// Minimum and maximum duration of a protection in minutes (ECS guide, "Task scale-in protection endpoint").
const MINUTES: std::ops::RangeInclusive<u64> = 1..=2880;

/// Delay after a failed call.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Returns the duration of each protection in minutes: twice `longest`. `longest` is the maximum time for which a message can be
/// in hand. The machine renews a protection after half its duration. If the renewal fails, the current protection still covers
/// the maximum time of a message that started just before the renewal.
pub(super) fn minutes(longest: Duration) -> u16 {
    let minutes = longest.as_secs().saturating_mul(2).div_ceil(60);
    u16::try_from(minutes.clamp(*MINUTES.start(), *MINUTES.end())).unwrap_or(u16::MAX)
}

/// Input of the state machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// Messages are in hand.
    Busy,
    /// No messages are in hand.
    Idle,
    /// The drain is complete, and no more messages will arrive.
    Drained,
    /// The current call has ended. `jitter` (0 to 1) varies the delay after a failure.
    Answered { how: Answer, jitter: f64 },
    /// Time has passed. Must be reported at the time that [`Machine::next_at`] returns.
    Time,
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// ECS made the change.
    Done,
    /// ECS did not make the change.
    Refused,
    /// ECS may have made the change.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Busy,
    Idle { since: Instant },
    Drained,
}

/// State machine that decides when to call ECS.
#[derive(Debug)]
pub(super) struct Machine {
    minutes: u16,
    work: Work,
    /// Current call, with the time at which it started.
    call: Option<(Call, Instant)>,
    /// Time until which the task is certainly protected.
    surely_until: Option<Instant>,
    /// Time until which the task may be protected.
    perhaps_until: Option<Instant>,
    /// Number of consecutive failed calls.
    failures: u32,
    rest_until: Option<Instant>,
    /// Set if a call has failed after the end of the drain. In that case, no time remains for another call.
    gave_up: bool,
}

impl Machine {
    /// Creates the machine for an idle, unprotected task. Each protection lasts for this many minutes.
    pub(super) fn new(minutes: u16, now: Instant) -> Self {
        Self {
            minutes,
            work: Work::Idle { since: now },
            call: None,
            surely_until: None,
            perhaps_until: None,
            failures: 0,
            rest_until: None,
            gave_up: false,
        }
    }

    /// Handles an event. Returns the call to make now, if any. After each call, the caller must report [`Event::Answered`].
    #[must_use]
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Option<Call> {
        match (event, self.work) {
            (Event::Busy, Work::Idle { .. }) => self.work = Work::Busy,
            (Event::Idle, Work::Busy) => self.work = Work::Idle { since: now },
            (Event::Drained, _) => {
                self.work = Work::Drained;
                self.rest_until = None;
            }
            (Event::Answered { how, jitter }, _) => self.answered(how, jitter, now),
            _ => {}
        }
        if self.next_at(now)? > now {
            return None;
        }
        let call = if matches!(self.work, Work::Busy) { Call::Protect(self.minutes) } else { Call::Unprotect };
        self.call = Some((call, now));
        Some(call)
    }

    /// Returns the time at which the caller must report [`Event::Time`]. `None`: a call has not ended yet, or no call is needed.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        if self.call.is_some() {
            return None;
        }
        let protected = self.perhaps_until.is_some_and(|until| until > now);
        let at = match self.work {
            Work::Busy => self.surely_until.map_or(now, |until| until - self.validity() / 2),
            Work::Idle { since } if protected => since + LINGER,
            Work::Drained if protected && !self.gave_up => now,
            Work::Idle { .. } | Work::Drained => return None,
        };
        Some(self.rest_until.map_or(at, |rest| at.max(rest)))
    }

    /// Returns true after [`Event::Drained`].
    pub(super) fn is_drained(&self) -> bool {
        matches!(self.work, Work::Drained)
    }

    /// Returns true if the drain is complete, no call is running, and no further call is needed.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_drained() && self.call.is_none() && self.next_at(now).is_none()
    }

    fn answered(&mut self, how: Answer, jitter: f64, now: Instant) {
        let Some((call, began)) = self.call.take() else { return };
        match (call, how) {
            (_, Answer::Refused) => {}
            (Call::Protect(_), Answer::Done) => {
                self.surely_until = Some(began + self.validity());
                self.perhaps_until = Some(now + self.validity());
            }
            (Call::Protect(_), Answer::Unknown) => self.perhaps_until = Some(now + self.validity()),
            (Call::Unprotect, Answer::Done) => (self.surely_until, self.perhaps_until) = (None, None),
            (Call::Unprotect, Answer::Unknown) => self.surely_until = None,
        }
        if how == Answer::Done {
            (self.failures, self.rest_until) = (0, None);
        } else {
            self.rest_until = Some(now + REST.rest(self.failures, jitter));
            self.failures += 1;
            self.gave_up = self.is_drained();
        }
    }

    fn validity(&self) -> Duration {
        Duration::from_secs(60 * u64::from(self.minutes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PROTECT: Option<Call> = Some(Call::Protect(4));
    const UNPROTECT: Option<Call> = Some(Call::Unprotect);

    /// A machine with its clock.
    struct Bench {
        machine: Machine,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let now = Instant::now();
            Self { machine: Machine::new(4, now), now }
        }

        /// Returns a machine that is busy and protected. The call that started the protection took no time.
        fn protected() -> Self {
            let mut bench = Self::new();
            assert_eq!(bench.take(Event::Busy), PROTECT);
            assert_eq!(bench.answer(Answer::Done), None);
            bench
        }

        fn take(&mut self, event: Event) -> Option<Call> {
            self.machine.handle(event, self.now)
        }

        fn answer(&mut self, how: Answer) -> Option<Call> {
            self.take(Event::Answered { how, jitter: 1.0 })
        }

        /// Advances the clock in small steps until the next call. Returns the elapsed time and the call.
        fn next_call(&mut self, within: Duration) -> Option<(Duration, Call)> {
            let begin = self.now;
            while self.now < begin + within {
                self.now += SECOND / 4;
                if let Some(call) = self.take(Event::Time) {
                    return Some((self.now - begin, call));
                }
            }
            None
        }
    }

    #[test]
    fn idle_to_busy_is_at_once_and_busy_to_idle_after_the_linger() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(100 * SECOND), None);
        assert_eq!(bench.take(Event::Busy), PROTECT);
        bench.answer(Answer::Done);
        assert_eq!(bench.next_call(100 * SECOND), None);
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(100 * SECOND), Some((LINGER, Call::Unprotect)));
        bench.answer(Answer::Done);
        // The protection has ended, although it would not have expired yet.
        assert_eq!(bench.next_call(5 * SECOND), None);
        assert_eq!(bench.take(Event::Busy), PROTECT);
    }

    #[test]
    fn work_within_the_linger_costs_no_call() {
        let mut bench = Bench::protected();
        for _ in 0..11 {
            assert_eq!(bench.take(Event::Idle), None);
            assert_eq!(bench.next_call(LINGER - SECOND), None);
            assert_eq!(bench.take(Event::Busy), None);
        }
        // The linger period starts when the last message ends, not at a later check.
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(LINGER - SECOND), None);
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(100 * SECOND), Some((SECOND, Call::Unprotect)));
    }

    #[test]
    fn it_is_renewed_half_way() {
        let mut bench = Bench::protected();
        for _ in 0..3 {
            assert_eq!(bench.next_call(240 * SECOND), Some((120 * SECOND, Call::Protect(4))));
            assert_eq!(bench.answer(Answer::Done), None);
        }
    }

    #[test]
    fn a_protection_counts_from_before_its_call() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Busy), PROTECT);
        bench.now += 5 * SECOND;
        bench.answer(Answer::Done);
        assert_eq!(bench.next_call(240 * SECOND), Some((115 * SECOND, Call::Protect(4))));
    }

    #[test]
    fn one_call_is_under_way_at_a_time() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Busy), PROTECT);
        for event in [Event::Idle, Event::Busy, Event::Time, Event::Idle] {
            assert_eq!(bench.take(event), None);
            assert_eq!(bench.next_call(LINGER / 2), None);
        }
        // The machine makes the postponed call after the answer to the current one.
        bench.now += LINGER;
        assert_eq!(bench.answer(Answer::Done), UNPROTECT);
        assert_eq!(bench.take(Event::Drained), None);
        assert_eq!(bench.answer(Answer::Done), None);
        assert!(bench.machine.is_over(bench.now));
    }

    #[test]
    fn it_rests_after_a_failure_and_keeps_trying_while_there_is_work() {
        for how in [Answer::Refused, Answer::Unknown] {
            let mut bench = Bench::new();
            assert_eq!(bench.take(Event::Busy), PROTECT);
            for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
                bench.answer(how);
                // A change of the wanted state does not shorten the delay.
                assert_eq!(bench.take(Event::Idle), None);
                assert_eq!(bench.take(Event::Busy), None);
                assert_eq!(bench.next_call(100 * SECOND), Some((seconds * SECOND, Call::Protect(4))));
            }
            bench.answer(Answer::Done);
            assert_eq!(bench.next_call(119 * SECOND), None);
            // After the next failure, the delay starts at its minimum again.
            assert_eq!(bench.next_call(SECOND), Some((SECOND, Call::Protect(4))));
            bench.answer(how);
            assert_eq!(bench.next_call(10 * SECOND), Some((SECOND, Call::Protect(4))));
        }
    }

    #[test]
    fn jitter_shortens_a_rest_by_half_at_most() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Busy), PROTECT);
        assert_eq!(bench.take(Event::Answered { how: Answer::Refused, jitter: 0.0 }), None);
        assert_eq!(bench.next_call(SECOND), Some((SECOND / 2, Call::Protect(4))));
    }

    #[test]
    fn a_protection_that_was_refused_need_not_be_removed() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Busy), PROTECT);
        bench.answer(Answer::Refused);
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(1_000 * SECOND), None);
    }

    #[test]
    fn a_protection_that_may_be_there_is_removed_or_runs_out() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Busy), PROTECT);
        bench.answer(Answer::Unknown);
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(100 * SECOND), Some((LINGER, Call::Unprotect)));
        let mut calls = 0;
        loop {
            bench.answer(Answer::Unknown);
            if bench.next_call(240 * SECOND).is_none() {
                break;
            }
            calls += 1;
        }
        assert!((5..10).contains(&calls), "{calls}");
    }

    #[test]
    fn after_a_removal_that_may_have_been_done_work_is_protected_anew() {
        let mut bench = Bench::protected();
        assert_eq!(bench.take(Event::Idle), None);
        assert_eq!(bench.next_call(100 * SECOND), Some((LINGER, Call::Unprotect)));
        bench.answer(Answer::Unknown);
        assert_eq!(bench.take(Event::Busy), None);
        assert_eq!(bench.next_call(100 * SECOND), Some((SECOND, Call::Protect(4))));
    }

    #[test]
    fn a_drain_removes_it_at_once_and_tries_once() {
        for how in [Answer::Done, Answer::Refused, Answer::Unknown] {
            let mut bench = Bench::protected();
            assert_eq!(bench.take(Event::Drained), UNPROTECT);
            assert!(!bench.machine.is_over(bench.now));
            assert_eq!(bench.answer(how), None);
            assert!(bench.machine.is_over(bench.now));
            assert_eq!(bench.take(Event::Busy), None);
        }
        // A delay after an earlier failure does not postpone this call either.
        let mut bench = Bench::protected();
        assert_eq!(bench.next_call(240 * SECOND), Some((120 * SECOND, Call::Protect(4))));
        bench.answer(Answer::Unknown);
        assert_eq!(bench.take(Event::Drained), UNPROTECT);
    }

    #[test]
    fn a_drain_of_what_is_not_protected_is_over_at_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.take(Event::Drained), None);
        assert!(bench.machine.is_over(bench.now));
    }

    #[test]
    fn the_validity_is_twice_the_longest_message_within_ecs_limits() {
        assert_eq!(minutes(SECOND), 1);
        assert_eq!(minutes(115 * SECOND), 4);
        assert_eq!(minutes(Duration::from_secs(12 * 3600)), 1440);
        assert_eq!(minutes(Duration::from_secs(48 * 3600)), 2880);
        assert_eq!(minutes(Duration::MAX), 2880);
    }
}
