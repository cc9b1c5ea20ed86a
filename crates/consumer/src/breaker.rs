//! The breaker: when too much fails, receiving pauses, and then one message is tried. No I/O.
//!
//! ```text
//! Closed ─more than the share failed→ Open ─pause over→ Probing ─the probe went well→ Closed
//!                                      ↑                    │ it failed: the pause is twice as long
//!                                      └────────────────────┘
//! ```
//!
//! Messages that were taken before it opened and end later change nothing: only the probe tells how things are now.

use tokio::time::{Duration, Instant};

use hostler_config as config;
use hostler_handler::Outcome;
use hostler_health::BreakerState;

/// The longest pause; each probe that fails doubles it up to here.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// The parts of the window: what leaves it does so a part at a time.
const PARTS: u64 = 20;

/// The end of a message, as the breaker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its handler came to a decision, be it that it wants another attempt.
    Decided,
    /// Its handler failed, trapped or timed out.
    Failed,
    /// Nothing is known of it: it never started, or was given back, or its lease was lost.
    Neither,
}

impl End {
    /// The end of a message with this outcome. `started`: its handler was. A handler that asks for another attempt works as it
    /// should.
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

/// A change of its state, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Opened: so many of these failed.
    Opened {
        /// Messages that failed.
        failed: u64,
        /// Messages in the window.
        of: u64,
        /// The pause of receiving.
        pause: Duration,
    },
    /// The pause is over; one message is tried.
    Probing,
    /// The probe failed.
    Reopened {
        /// The pause of receiving now.
        pause: Duration,
    },
    /// The probe went well.
    Closed,
}

#[derive(Debug)]
enum State<I> {
    Closed,
    Open {
        until: Instant,
    },
    /// `None`: the message to try has not come yet.
    Probing(Option<I>),
}

/// Messages that ended in one part of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    number: u64,
    failed: u64,
    of: u64,
}

/// The breaker of one consumer, whose messages have such names.
#[derive(Debug)]
pub struct Breaker<I> {
    settings: Option<config::Breaker>,
    since: Instant,
    parts: [Part; PARTS as usize],
    state: State<I>,
    pause: Duration,
}

impl<I: Copy + PartialEq> Breaker<I> {
    /// Closed, from now on. Without settings it never opens.
    pub fn new(settings: Option<config::Breaker>, now: Instant) -> Self {
        let pause = settings.map_or(Duration::ZERO, |settings| settings.pause);
        Self { settings, since: now, parts: [Part::default(); PARTS as usize], state: State::Closed, pause }
    }

    /// Returns true while receiving pauses.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// The state that the health file shows; `None`: closed.
    pub fn shown(&self) -> Option<BreakerState> {
        match self.state {
            State::Closed => None,
            State::Open { .. } => Some(BreakerState::Open),
            State::Probing(_) => Some(BreakerState::Probing),
        }
    }

    /// The most messages to ask for, with so many slots promised to receives under way. While one is tried, no other is to come.
    pub fn room(&self, promised: usize) -> usize {
        match self.state {
            State::Closed => usize::MAX,
            State::Probing(None) => 1_usize.saturating_sub(promised),
            State::Open { .. } | State::Probing(Some(_)) => 0,
        }
    }

    /// Returns true if a message that has come is kept; the first while probing is the one to try.
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

    /// Returns true if a message that was kept may start.
    pub fn may_start(&self, id: I) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { .. } => false,
            State::Probing(probe) => probe == Some(id),
        }
    }

    /// The end of the pause, if there is one.
    pub fn next_at(&self) -> Option<Instant> {
        if let State::Open { until } = self.state { Some(until) } else { None }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Option<Change> {
        if self.next_at()? > now {
            return None;
        }
        self.state = State::Probing(None);
        Some(Change::Probing)
    }

    /// Takes note of how a message ended.
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

    /// A message is gone. If it was the one to try, another one is.
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
        // What failed before is of another time.
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

    /// More than half of at least 4 in 60 s; pauses for 30 s.
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
