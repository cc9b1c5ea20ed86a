//! Whether a consumer takes messages now: not while an operator has paused it, nor while its breaker is open. No I/O.

use tokio::time::Instant;

use super::breaker::{Breaker, Change, End};
use hostler_config as config;
use hostler_handler::Outcome;
use hostler_health::BreakerState;

/// What keeps a consumer from taking messages.
#[derive(Debug)]
pub(super) struct Admission<I> {
    paused: bool,
    breaker: Option<Breaker<I>>,
}

impl<I: Copy + PartialEq> Admission<I> {
    /// Open, with a breaker if there is to be one.
    pub(super) fn new(breaker: Option<config::Breaker>, now: Instant) -> Self {
        Self { paused: false, breaker: breaker.map(|settings| Breaker::new(settings, now)) }
    }

    /// An operator pauses it, or lets it go on; whether that changes anything.
    pub(super) fn pause(&mut self, paused: bool) -> bool {
        std::mem::replace(&mut self.paused, paused) != paused
    }

    /// Whether an operator has paused it.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// What its breaker shows.
    pub(super) fn breaker(&self) -> Option<BreakerState> {
        match &self.breaker {
            Some(breaker) if breaker.is_open() => Some(BreakerState::Open),
            Some(breaker) if breaker.is_probing() => Some(BreakerState::Probing),
            _ => None,
        }
    }

    /// Whether nothing is to be received.
    pub(super) fn is_shut(&self) -> bool {
        self.paused || self.breaker() == Some(BreakerState::Open)
    }

    /// How many messages to ask for at most, with so many slots promised to receives under way. While one is tried, no other
    /// is to come.
    pub(super) fn room(&self, reserved: usize) -> usize {
        match &self.breaker {
            _ if self.paused => 0,
            Some(breaker) if breaker.is_probing() => breaker.room().saturating_sub(reserved),
            Some(breaker) => breaker.room(),
            None => usize::MAX,
        }
    }

    /// Whether a message that has come is kept; otherwise it goes back. To be asked once for each.
    pub(super) fn admits(&mut self, id: I) -> bool {
        !self.paused && self.breaker.as_mut().is_none_or(|breaker| breaker.admits(id))
    }

    /// Whether a message that was kept may start.
    pub(super) fn may_start(&self, id: I) -> bool {
        !self.paused && self.breaker.as_ref().is_none_or(|breaker| breaker.may_start(id))
    }

    /// When something changes by itself.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.breaker.as_ref().and_then(Breaker::next_at)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Change> {
        self.breaker.as_mut().and_then(|breaker| breaker.tick(now))
    }

    /// What became of a message is known. `started`: its handler was.
    pub(super) fn ended(&mut self, id: I, outcome: &Outcome, started: bool, now: Instant) -> Option<Change> {
        let end = if started { end(outcome) } else { End::Neither };
        self.breaker.as_mut().and_then(|breaker| breaker.ended(id, end, now))
    }

    /// A message is over. If nothing became known of it, another one is to be tried in its place.
    pub(super) fn forget(&mut self, id: I) {
        if let Some(breaker) = &mut self.breaker {
            breaker.forget(id);
        }
    }
}

/// What an outcome tells the breaker. A handler that asks for another attempt works as it should.
fn end(outcome: &Outcome) -> End {
    match outcome {
        Outcome::Ack | Outcome::Reply(_) | Outcome::Retry(_) | Outcome::Delay(_) | Outcome::DeadLetter(_) => {
            End::Decided
        }
        Outcome::Failed(_) | Outcome::Trapped(_) | Outcome::TimedOut(_) => End::Failed,
        Outcome::HostLimit(..) | Outcome::LeaseLost | Outcome::Shutdown => End::Neither,
    }
}
