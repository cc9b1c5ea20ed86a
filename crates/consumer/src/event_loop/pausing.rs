//! Pausing: what the loop does when an operator or the breaker wants it to take nothing, and when it may go on.

use tokio::time::Instant;

use super::super::breaker::Change;
use super::super::delivery::Event;
use super::super::log;
use super::{EventLoop, InHand};

impl EventLoop {
    /// An operator pauses the consumer, or lets it go on.
    pub(super) fn pause(&mut self, paused: bool) {
        if !self.admission.pause(paused) {
            return;
        }
        self.now = Instant::now();
        let consumer = &*self.consumer.spec.name;
        if paused {
            tracing::info!(consumer, running = self.running.len(), "paused: nothing more is received");
            self.shut();
        } else {
            tracing::info!(consumer, "resumed");
        }
    }

    /// The breaker has changed its state.
    pub(super) fn turned(&mut self, change: Change) {
        log::breaker(&self.consumer.spec, change);
        match change {
            Change::Opened { .. } | Change::Reopened { .. } => self.shut(),
            Change::Probing | Change::Closed => {}
        }
    }

    /// Nothing more is received: what has not started goes back. But what waits behind a message that is being settled goes
    /// back after that one, or it would overtake it.
    fn shut(&mut self) {
        self.effects.stop_polling.cancel();
        let goes_back = |in_hand: &InHand| in_hand.machine.is_waiting() && !self.follows_one_that_parts(in_hand);
        let waiting = self.in_hand.iter().filter(|(_, in_hand)| goes_back(in_hand));
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.apply(id, Event::Drain);
        }
    }
}
