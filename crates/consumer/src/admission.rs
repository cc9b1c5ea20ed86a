//! Decides whether a consumer may receive and start messages. While an operator pauses the consumer or the breaker is
//! open, it may not. No I/O.

use tokio::time::Instant;

use super::breaker::Breaker;
use hostler_config as config;

/// The operator's pause and the breaker of one consumer. `I` is the type that identifies a delivery.
#[derive(Debug)]
pub(super) struct Admission<I> {
    pub(super) paused: bool,
    pub(super) breaker: Breaker<I>,
}

impl<I: Copy + PartialEq> Admission<I> {
    /// Creates the state of a consumer that is not paused and whose breaker is closed. Without breaker settings, the
    /// breaker never opens.
    pub(super) fn new(breaker: Option<config::Breaker>, now: Instant) -> Self {
        Self { paused: false, breaker: Breaker::new(breaker, now) }
    }

    /// Returns `true` while the consumer is paused or its breaker is open.
    pub(super) fn is_shut(&self) -> bool {
        self.paused || self.breaker.is_open()
    }

    /// Returns the maximum number of messages that a new receive call may request. `promised`: number of messages that
    /// the receive calls in progress have requested.
    pub(super) fn room(&self, promised: usize) -> usize {
        if self.paused { 0 } else { self.breaker.room(promised) }
    }

    /// Returns `true` if the consumer keeps the received message `id`. Otherwise, the caller must give the message back
    /// to the queue. Must be called once per message.
    pub(super) fn admits(&mut self, id: I) -> bool {
        !self.paused && self.breaker.admits(id)
    }

    /// Returns `true` if the handler may start on the message `id`, which the consumer has kept.
    pub(super) fn may_start(&self, id: I) -> bool {
        !self.paused && self.breaker.may_start(id)
    }
}
