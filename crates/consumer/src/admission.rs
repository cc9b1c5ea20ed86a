//! Admission of messages: the consumer accepts no message while an operator pauses it or the breaker is open. No I/O.

use tokio::time::Instant;

use super::breaker::Breaker;
use hostler_config as config;

/// Admission of one consumer. `I` identifies a delivery.
#[derive(Debug)]
pub(super) struct Admission<I> {
    pub(super) paused: bool,
    pub(super) breaker: Breaker<I>,
}

impl<I: Copy + PartialEq> Admission<I> {
    /// Creates an admission that accepts messages. Without breaker settings, the breaker never opens.
    pub(super) fn new(breaker: Option<config::Breaker>, now: Instant) -> Self {
        Self { paused: false, breaker: Breaker::new(breaker, now) }
    }

    /// Returns `true` if no receive may start.
    pub(super) fn is_shut(&self) -> bool {
        self.paused || self.breaker.is_open()
    }

    /// Returns the maximum number of messages to request. `promised`: number of slots reserved for receives in
    /// progress.
    pub(super) fn room(&self, promised: usize) -> usize {
        if self.paused { 0 } else { self.breaker.room(promised) }
    }

    /// Returns `true` if the consumer keeps a received message. Otherwise, the consumer gives the message back. Must be
    /// called once per message.
    pub(super) fn admits(&mut self, id: I) -> bool {
        !self.paused && self.breaker.admits(id)
    }

    /// Returns `true` if the handler of a message that the consumer has kept may start.
    pub(super) fn may_start(&self, id: I) -> bool {
        !self.paused && self.breaker.may_start(id)
    }
}
