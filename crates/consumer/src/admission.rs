//! Admission of messages: none while an operator has paused the consumer, nor while its breaker is open. No I/O.

use tokio::time::Instant;

use super::breaker::Breaker;
use hostler_config as config;

/// The admission of one consumer, whose messages have such names.
#[derive(Debug)]
pub(super) struct Admission<I> {
    pub(super) paused: bool,
    pub(super) breaker: Breaker<I>,
}

impl<I: Copy + PartialEq> Admission<I> {
    /// Open, with a breaker if there is to be one.
    pub(super) fn new(breaker: Option<config::Breaker>, now: Instant) -> Self {
        Self { paused: false, breaker: Breaker::new(breaker, now) }
    }

    /// Returns true if nothing is to be received.
    pub(super) fn is_shut(&self) -> bool {
        self.paused || self.breaker.is_open()
    }

    /// The most messages to ask for, with so many slots promised to receives under way.
    pub(super) fn room(&self, promised: usize) -> usize {
        if self.paused { 0 } else { self.breaker.room(promised) }
    }

    /// Returns true if a message that has come is kept; otherwise it goes back. To be asked once for each.
    pub(super) fn admits(&mut self, id: I) -> bool {
        !self.paused && self.breaker.admits(id)
    }

    /// Returns true if a message that was kept may start.
    pub(super) fn may_start(&self, id: I) -> bool {
        !self.paused && self.breaker.may_start(id)
    }
}
