//! Pause: an operator or the breaker wants the loop to take nothing, or lets it go on.

use super::super::breaker::Change;
use super::super::delivery::Event;
use super::super::in_hand::InHand;
use super::super::log;
use super::EventLoop;
use super::deliveries::Command;

impl EventLoop {
    /// An operator pauses the consumer, or lets it go on.
    pub(super) fn pause(&mut self, paused: bool) {
        if std::mem::replace(&mut self.admission.paused, paused) == paused {
            return;
        }
        let consumer = &*self.consumer.spec.name;
        if paused {
            tracing::info!(consumer, running = self.running.len(), "paused: nothing more is received");
            self.carry_out(Command::Shut);
        } else {
            tracing::info!(consumer, "resumed");
        }
    }

    /// The breaker has changed its state.
    pub(super) fn turned(&mut self, change: Change) {
        log::breaker(&self.consumer.spec, change);
        match change {
            Change::Opened { .. } | Change::Reopened { .. } => self.commands.push(Command::Shut),
            Change::Probing | Change::Closed => {}
        }
    }

    /// Nothing more is received: what has not started goes back. But what waits behind a message that is being settled goes
    /// back after that one, or it would overtake it.
    pub(super) fn shut(&mut self) {
        self.effects.stop_polling.cancel();
        let goes_back = |in_hand: &InHand| in_hand.machine.is_waiting() && !self.follows_one_that_settles(in_hand);
        let waiting = self.in_hand.iter().rev().filter(|(_, in_hand)| goes_back(in_hand));
        let drains: Vec<_> = waiting.map(|(id, _)| Command::Feed(*id, Event::Drain)).collect();
        self.commands.extend(drains);
    }
}
