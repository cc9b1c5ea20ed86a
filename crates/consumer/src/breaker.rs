//! Circuit breaker: pauses receiving when too many messages fail, then tries a single message. No I/O.
//!
//! ```text
//! Closed ─share of failures exceeded→ Open ─pause over→ Probing ─probe succeeded→ Closed
//!                                      ↑                   │ probe failed: the pause doubles
//!                                      └───────────────────┘
//! ```
//!
//! While the breaker is open or probing, the results of messages received before it opened have no effect. Only the
//! probe, the one message that is tried, shows whether processing works again.

use tokio::time::{Duration, Instant};

use hostler_config as config;
use hostler_handler::Outcome;
use hostler_health::BreakerState;

/// Maximum pause. Each failed probe doubles the pause up to this limit.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Number of parts into which the sliding window is divided. Old results leave the window one part at a time.
const PARTS: u64 = 20;

/// Result of a message, as counted by the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The handler returned a decision. A request for another attempt is also a decision.
    Decided,
    /// The handler failed, trapped or timed out.
    Failed,
    /// The message counts neither as a success nor as a failure, because its handler did not start, a host limit was
    /// reached, a shutdown stopped the handler, or the lease was lost.
    Neither,
}

impl End {
    /// Returns the result of a message with this outcome. `started`: `true` if the handler was started. A handler that
    /// requests another attempt works correctly, so its result is [`Self::Decided`].
    pub(super) fn of(outcome: &Outcome, started: bool) -> Self {
        match outcome {
            _ if !started => Self::Neither,
            Outcome::Ack | Outcome::Reply(_) | Outcome::Retry(_) | Outcome::Delay(_) | Outcome::DeadLetter(_) => {
                Self::Decided
            }
            Outcome::Failed(_) | Outcome::Trapped(_) | Outcome::TimedOut(_) => Self::Failed,
            Outcome::HostLimit(..) | Outcome::LeaseLost | Outcome::Shutdown => Self::Neither,
        }
    }
}

/// State change of the breaker, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The breaker opened because too many messages failed.
    Opened {
        /// Number of failed messages in the window.
        failed: u64,
        /// Number of messages in the window.
        of: u64,
        /// Duration of the pause.
        pause: Duration,
    },
    /// The pause is over, and the breaker admits one message, the probe.
    Probing,
    /// The probe failed.
    Reopened {
        /// Duration of the new pause.
        pause: Duration,
    },
    /// The probe succeeded.
    Closed,
}

#[derive(Debug)]
enum State<I> {
    Closed,
    Open {
        until: Instant,
    },
    /// A single message, the probe, may be received and tried. Contains the delivery of the probe, or `None` until the
    /// probe is received.
    Probing(Option<I>),
}

/// Counts of messages that ended in one part of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    number: u64,
    failed: u64,
    of: u64,
}

/// Circuit breaker of one consumer. `I` is the type that identifies a delivery.
#[derive(Debug)]
pub struct Breaker<I> {
    settings: Option<config::Breaker>,
    since: Instant,
    parts: [Part; PARTS as usize],
    state: State<I>,
    pause: Duration,
}

impl<I: Copy + PartialEq> Breaker<I> {
    /// Creates a closed breaker whose window starts at `now`. Without settings, the breaker never opens.
    pub fn new(settings: Option<config::Breaker>, now: Instant) -> Self {
        let pause = settings.map_or(Duration::ZERO, |settings| settings.pause);
        Self { settings, since: now, parts: [Part::default(); PARTS as usize], state: State::Closed, pause }
    }

    /// Returns `true` while receiving is paused.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Returns `true` while the probe is in hand. Until its end, nothing else is received.
    pub fn has_probe(&self) -> bool {
        matches!(self.state, State::Probing(Some(_)))
    }

    /// Returns the breaker's state for the health file. `None`: the breaker is closed.
    pub fn shown(&self) -> Option<BreakerState> {
        match self.state {
            State::Closed => None,
            State::Open { .. } => Some(BreakerState::Open),
            State::Probing(_) => Some(BreakerState::Probing),
        }
    }

    /// Returns the maximum number of messages that a new receive call may request. `promised`: number of messages that
    /// the receive calls in progress have requested. While the breaker is probing, the maximum is one until the probe
    /// is received, and zero afterwards.
    pub fn room(&self, promised: usize) -> usize {
        match self.state {
            State::Closed => usize::MAX,
            State::Probing(None) => 1_usize.saturating_sub(promised),
            State::Open { .. } | State::Probing(Some(_)) => 0,
        }
    }

    /// Returns `true` if the consumer keeps the received message `id`. The first message received while probing becomes
    /// the probe.
    pub fn admits(&mut self, id: I) -> bool {
        match &mut self.state {
            State::Closed => true,
            State::Probing(probe @ None) => {
                *probe = Some(id);
                true
            }
            State::Open { .. } | State::Probing(Some(_)) => false,
        }
    }

    /// Returns `true` if the handler may start on the message `id`, which the consumer has kept.
    pub fn may_start(&self, id: I) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { .. } => false,
            State::Probing(probe) => probe == Some(id),
        }
    }

    /// Returns the time at which the pause ends. `None`: receiving is not paused.
    pub fn next_at(&self) -> Option<Instant> {
        if let State::Open { until } = self.state { Some(until) } else { None }
    }

    /// Starts probing if the pause is over at `now`. Returns the state change, if any.
    pub fn tick(&mut self, now: Instant) -> Option<Change> {
        if self.next_at()? > now {
            return None;
        }
        self.state = State::Probing(None);
        Some(Change::Probing)
    }

    /// Records how the message `id` ended. Returns the state change, if any.
    pub fn ended(&mut self, id: I, end: End, now: Instant) -> Option<Change> {
        match (&self.state, end) {
            (State::Closed, End::Decided | End::Failed) => self.count(end == End::Failed, now),
            (State::Probing(Some(probe)), End::Decided) if *probe == id => Some(self.close(now)),
            (State::Probing(Some(probe)), End::Failed) if *probe == id => Some(self.reopen(now)),
            _ => {
                self.forget(id);
                None
            }
        }
    }

    /// Handles the end of a message that the breaker does not count. If the message was the probe, the next received
    /// message becomes the probe.
    pub fn forget(&mut self, id: I) {
        if matches!(self.state, State::Probing(Some(probe)) if probe == id) {
            self.state = State::Probing(None);
        }
    }

    fn count(&mut self, failed: bool, now: Instant) -> Option<Change> {
        let settings = self.settings?;
        let part = (settings.over.as_nanos() / u128::from(PARTS)).max(1);
        let number = u64::try_from(now.duration_since(self.since).as_nanos() / part).unwrap_or(u64::MAX);
        let place = usize::try_from(number % PARTS).unwrap_or_default();
        if let Some(part) = self.parts.get_mut(place) {
            if part.number != number {
                *part = Part { number, ..Part::default() };
            }
            part.of += 1;
            part.failed += u64::from(failed);
        }
        let within = self.parts.iter().filter(|part| part.number + PARTS > number);
        let (failed, of) = within.fold((0, 0), |(failed, of), part| (failed + part.failed, of + part.of));
        let opens = of >= u64::from(settings.min) && settings.failures.is_exceeded(failed, of);
        opens.then(|| {
            self.state = State::Open { until: now + self.pause };
            Change::Opened { failed, of, pause: self.pause }
        })
    }

    fn close(&mut self, now: Instant) -> Change {
        // Start with an empty window: earlier failures no longer count.
        *self = Self::new(self.settings, now);
        Change::Closed
    }

    fn reopen(&mut self, now: Instant) -> Change {
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.state = State::Open { until: now + self.pause };
        Change::Reopened { pause: self.pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_config::Share;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns a breaker that opens when more than half of at least 4 messages fail within 60 s, with a pause of 30 s.
    fn breaker() -> (Breaker<u32>, Instant) {
        let failures = Share::new(0.5).unwrap();
        let settings = config::Breaker { failures, over: 60 * SECOND, min: 4, pause: 30 * SECOND };
        let now = Instant::now();
        (Breaker::new(Some(settings), now), now)
    }

    fn end(breaker: &mut Breaker<u32>, ends: &str, now: Instant) -> Option<Change> {
        let ends = ends.chars().map(|end| if end == 'x' { End::Failed } else { End::Decided });
        let changes: Vec<_> = ends.filter_map(|end| breaker.ended(0, end, now)).collect();
        assert!(changes.len() <= 1, "{changes:?}");
        changes.first().copied()
    }

    #[test]
    fn it_opens_above_the_share_and_not_below_the_least_number() {
        for (ends, opens) in [("xxx", false), ("xx..", false), ("xxx.", true), ("....xxxx", false), ("....xxxxx", true)]
        {
            let (mut breaker, now) = breaker();
            assert_eq!(end(&mut breaker, ends, now).is_some(), opens, "{ends}");
            assert_eq!(breaker.is_open(), opens);
            assert_eq!(breaker.room(0), if opens { 0 } else { usize::MAX });
        }
        let (mut breaker, now) = breaker();
        let pause = 30 * SECOND;
        assert_eq!(end(&mut breaker, "xxxx", now), Some(Change::Opened { failed: 4, of: 4, pause }));
        assert_eq!(end(&mut breaker, "xxxx....", now), None, "what was taken before tells nothing");
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let (mut breaker, now) = breaker();
        assert_eq!(end(&mut breaker, "xxx", now), None);
        assert_eq!(end(&mut breaker, "x", now + 61 * SECOND), None);
        assert_eq!(end(&mut breaker, "xx", now + 90 * SECOND), None);
        assert!(end(&mut breaker, "x", now + 117 * SECOND).is_some(), "these four are within a minute");
        let (mut breaker, now) = self::breaker();
        assert_eq!(end(&mut breaker, "xxx", now + 1000 * SECOND), None);
        assert!(end(&mut breaker, "x", now + 1050 * SECOND).is_some());
    }

    #[test]
    fn a_message_that_tells_nothing_does_not_count() {
        let (mut breaker, now) = breaker();
        assert_eq!(end(&mut breaker, "xxx", now), None);
        assert_eq!(breaker.ended(0, End::Neither, now), None);
        assert!(end(&mut breaker, "x", now).is_some());
    }

    #[test]
    fn one_message_is_tried_and_decides() {
        let (mut breaker, now) = breaker();
        end(&mut breaker, "xxxx", now);
        assert_eq!((breaker.tick(now + 29 * SECOND), breaker.next_at()), (None, Some(now + 30 * SECOND)));
        assert!(!breaker.admits(1) && !breaker.may_start(1));
        let now = now + 30 * SECOND;
        assert_eq!((breaker.tick(now), breaker.tick(now)), (Some(Change::Probing), None));
        assert_eq!((breaker.room(0), breaker.admits(7), breaker.admits(8), breaker.room(0)), (1, true, false, 0));
        assert!(breaker.may_start(7) && !breaker.may_start(8));
        assert_eq!(breaker.ended(3, End::Failed, now), None, "of another time");
        assert_eq!(breaker.ended(7, End::Neither, now), None);
        assert_eq!((breaker.room(0), breaker.admits(9)), (1, true), "another one is tried");
        assert_eq!(breaker.ended(9, End::Decided, now), Some(Change::Closed));
        assert_eq!(breaker.room(0), usize::MAX);
        assert_eq!(end(&mut breaker, "xxx", now), None, "it counts anew");
    }

    #[test]
    fn pauses_double_up_to_ten_minutes_and_a_success_forgets_them() {
        let (mut breaker, mut now) = breaker();
        end(&mut breaker, "xxxx", now);
        let mut pauses = Vec::new();
        for id in 0..6 {
            now = breaker.next_at().unwrap();
            assert_eq!(breaker.tick(now), Some(Change::Probing));
            assert!(breaker.admits(id));
            let Some(Change::Reopened { pause }) = breaker.ended(id, End::Failed, now) else { panic!("{breaker:?}") };
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [60, 120, 240, 480, 600, 600]);
        now = breaker.next_at().unwrap();
        breaker.tick(now);
        assert!(breaker.admits(9) && breaker.ended(9, End::Decided, now).is_some());
        assert_eq!(end(&mut breaker, "xxxx", now), Some(Change::Opened { failed: 4, of: 4, pause: 30 * SECOND }));
    }
}
