//! Status of a consumer, for the health file and other readers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::failures::Failures;
use hostler_health::{BreakerState, ConsumerReport, SettlingFails, State, Timestamp};

/// Status of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// State of the consumer.
    pub state: State,
    /// Time of the last state change.
    pub since: Instant,
    /// Time of the last successful receive call. `None`: no receive call has succeeded yet.
    pub last_poll_at: Option<Instant>,
    /// Earliest time from which the health check measures the wait for a poll. This is the time at which the reason for
    /// not polling last changed. `None`: the reason has not changed yet.
    pub could_poll_since: Option<Instant>,
    /// Set if the consumer is not required to poll, because guests are running in all slots, the rate limit is
    /// exhausted, the breaker is open, or the consumer is paused.
    pub held_back: bool,
    /// Failures of settlements and lease extensions.
    pub failures: Failures,
    /// Maximum time for the processing-timeout hook, including the time to load the message body. During that time, a
    /// consumer with one slot can neither poll nor process messages. Zero if the handler has no such hook.
    pub hook_takes: Duration,
    /// Number of messages whose guest is running.
    pub in_flight: usize,
    /// Number of unfinished messages: waiting to start, running, or being settled.
    pub in_hand: usize,
    /// Start time of the oldest running message. `None`: no guest is running.
    pub oldest_started_at: Option<Instant>,
    /// Number of messages whose handler was started and has ended.
    pub processed: u64,
    /// Number of processed messages that failed: see [`ConsumerReport::failed`].
    pub failed: u64,
    /// Set while an operator pauses the consumer.
    pub paused: bool,
    /// State of the breaker. `None`: the breaker is closed.
    pub breaker: Option<BreakerState>,
}

impl Status {
    /// Returns the time from which the health check measures the wait for a poll. If the consumer is not required to
    /// poll, returns `now`.
    pub fn polled_at(&self, now: Instant) -> Option<Instant> {
        if self.held_back { Some(now) } else { self.last_poll_at.max(self.could_poll_since) }
    }

    /// Creates the health file's report on the consumer at `now`. `grace`: maximum duration of a drain. `wall`:
    /// converts instants to wall-clock times.
    pub fn report(
        &self,
        name: &str,
        healthcheck_timeout: Duration,
        grace: Duration,
        now: Instant,
        wall: impl Fn(Instant) -> Timestamp,
    ) -> ConsumerReport {
        let healthcheck_timeout = match self.state {
            State::Exiting => healthcheck_timeout.max(grace),
            State::Listening | State::Idle => healthcheck_timeout.max(self.hook_takes),
            _ => healthcheck_timeout,
        };
        ConsumerReport {
            name: name.to_owned(),
            state: self.state,
            transition_timestamp: wall(self.since),
            healthcheck_timeout,
            last_poll_at: self.polled_at(now).map(&wall),
            in_flight: u32::try_from(self.in_flight).unwrap_or(u32::MAX),
            oldest_started_at: self.oldest_started_at.map(&wall),
            processed: self.processed,
            failed: self.failed,
            paused: self.paused,
            breaker: self.breaker,
            settling_fails: self
                .failures
                .longest(now, healthcheck_timeout)
                .map(|failing| SettlingFails { since: wall(failing.since), last: wall(failing.last) }),
            last_failures: Vec::new(),
        }
    }
}

/// Maximum number of failures remembered per consumer.
pub const MAX_FAILURES: usize = 5;

/// A message that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Time at which the message was finished.
    pub at: Instant,
    /// Id of the message.
    pub message_id: String,
    /// Name of the outcome.
    pub outcome: &'static str,
    /// Name of the disposition.
    pub disposition: &'static str,
    /// First 256 bytes of the reason for the failure. Empty if there is no reason.
    pub reason: String,
}

/// Shared status of one consumer. The consumer updates the status, and other tasks read it.
#[derive(Debug, Clone)]
pub struct StatusHandle {
    status: Arc<Mutex<Status>>,
    failures: Arc<Mutex<VecDeque<Failed>>>,
    transitions: Arc<Notify>,
    work: Arc<Notify>,
}

impl StatusHandle {
    /// Creates a status in [`State::Initializing`]. `transitions`: notified when the state, the pause or the breaker
    /// changes. `work`: notified when the number of unfinished messages becomes zero or becomes positive.
    pub fn new(transitions: Arc<Notify>, work: Arc<Notify>) -> Self {
        let status = Status {
            state: State::Initializing,
            since: Instant::now(),
            last_poll_at: None,
            could_poll_since: None,
            held_back: false,
            failures: Failures::default(),
            hook_takes: Duration::ZERO,
            in_flight: 0,
            in_hand: 0,
            oldest_started_at: None,
            processed: 0,
            failed: 0,
            paused: false,
            breaker: None,
        };
        Self { status: Arc::new(Mutex::new(status)), failures: Arc::default(), transitions, work }
    }

    /// Returns up to [`MAX_FAILURES`] of the last failures, latest first.
    pub fn failures(&self) -> Vec<Failed> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Records a failure. If more than [`MAX_FAILURES`] failures are stored, removes the oldest failure.
    pub fn failed(&self, failed: Failed) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.truncate(MAX_FAILURES - 1);
        failures.push_front(failed);
    }

    /// Returns the current status.
    pub fn get(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the status at `now`. If the state has changed, returns the old and the new state.
    pub fn update(&self, now: Instant, change: impl FnOnce(&mut Status)) -> Option<(State, State)> {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let Status { state: before, in_hand, paused, breaker, .. } = *status;
        change(&mut status);
        let turned = (status.in_hand == 0) != (in_hand == 0);
        let rests = (status.paused, status.breaker) != (paused, breaker);
        let transition = (status.state != before).then_some((before, status.state));
        if transition.is_some() {
            status.since = now;
        }
        drop(status);
        if transition.is_some() || rests {
            self.transitions.notify_one();
        }
        if turned {
            self.work.notify_one();
        }
        transition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_its_rate_limit_holds_back_counts_as_polling() {
        let (board, now, second) = (StatusHandle::new(Arc::default(), Arc::default()), Instant::now(), SECOND);
        let polled_after = |seconds: u32| board.get().polled_at(now + seconds * second).map(|at| at - now);
        assert_eq!(polled_after(5), None, "it has never polled");
        board.update(Instant::now(), |status| status.held_back = true);
        assert_eq!([0, 500].map(polled_after), [0, 500].map(|seconds| Some(seconds * second)));
        board.update(Instant::now(), |status| {
            (status.held_back, status.could_poll_since) = (false, Some(now + 100 * second))
        });
        assert_eq!(polled_after(500), Some(100 * second), "from the moment it could");
        board.update(Instant::now(), |status| status.last_poll_at = Some(now + 101 * second));
        assert_eq!(polled_after(500), Some(101 * second));
    }

    #[test]
    fn a_hook_may_take_its_time_however_short_the_health_check_s_is() {
        let board = StatusHandle::new(Arc::default(), Arc::default());
        let limit = |state, hook_takes| {
            board.update(Instant::now(), |status| (status.state, status.hook_takes) = (state, hook_takes));
            let wall = |_| Timestamp::now();
            board.get().report("work", 2 * SECOND, SECOND, Instant::now(), wall).healthcheck_timeout
        };
        for state in [State::Listening, State::Idle] {
            assert_eq!([0, 5].map(|takes| limit(state, takes * SECOND)), [2 * SECOND, 5 * SECOND], "{state:?}");
        }
        assert_eq!(limit(State::Processing, 5 * SECOND), 2 * SECOND, "no handler takes longer for it");
    }

    #[tokio::test]
    async fn the_last_failures_are_kept_the_latest_first() {
        let board = StatusHandle::new(Arc::default(), Arc::default());
        let failed = |number: usize| Failed {
            at: Instant::now(),
            message_id: number.to_string(),
            outcome: "trapped",
            disposition: "release",
            reason: String::new(),
        };
        (0..2 * MAX_FAILURES).for_each(|number| board.failed(failed(number)));
        let ids: Vec<_> = board.failures().into_iter().map(|failed| failed.message_id).collect();
        let last = (MAX_FAILURES..2 * MAX_FAILURES).rev().map(|number| number.to_string());
        assert_eq!(ids, last.collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn work_is_told_of_when_it_begins_and_when_it_ends() {
        let work = Arc::new(Notify::new());
        let board = StatusHandle::new(Arc::default(), Arc::clone(&work));
        for (in_hand, told) in [(0, false), (1, true), (3, false), (1, false), (0, true), (0, false), (2, true)] {
            board.update(Instant::now(), |status| status.in_hand = in_hand);
            let was_told = tokio::select! {
                biased;
                () = work.notified() => true,
                () = std::future::ready(()) => false,
            };
            assert_eq!(was_told, told, "{in_hand}");
        }
    }
}
