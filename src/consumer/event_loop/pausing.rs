//! Pausing: what the loop does when an operator or the breaker wants it to take nothing, and when it may go on.

use tokio::time::Instant;

use super::super::breaker::Change;
use super::super::delivery::Event;
use super::super::log;
use super::EventLoop;

impl EventLoop {
    /// An operator pauses the consumer, or lets it go on.
    pub(super) fn pause(&mut self, paused: bool) {
        if !self.intake.pause(paused) {
            return;
        }
        self.now = Instant::now();
        let consumer = &*self.consumer.spec.name;
        if paused {
            tracing::info!(consumer, running = self.running.len(), "paused: nothing more is received");
            self.shut();
        } else {
            tracing::info!(consumer, "resumed");
            self.last_poll_at = Some(self.now);
        }
    }

    /// The breaker has changed its state.
    pub(super) fn turned(&mut self, change: Change) {
        log::breaker(&self.consumer.spec, change);
        match change {
            Change::Opened { .. } | Change::Reopened { .. } => self.shut(),
            // It has not polled because it was not to.
            Change::Probing | Change::Closed => self.last_poll_at = Some(self.now),
        }
    }

    /// Nothing more is received: what has not started goes back.
    fn shut(&mut self) {
        self.effects.stop_polling.cancel();
        let waiting = self.in_hand.iter().filter(|(_, in_hand)| in_hand.machine.is_waiting());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.apply(id, Event::Drain);
        }
    }
}
