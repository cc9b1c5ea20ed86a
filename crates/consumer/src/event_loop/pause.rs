//! Pause: stops and resumes receiving, on behalf of an operator or the breaker.

use super::super::breaker::Change;
use super::super::delivery::Event;
use super::super::in_hand::InHand;
use super::super::log;
use super::EventLoop;
use super::deliveries::Command;

impl EventLoop {
    /// Pauses the consumer, or resumes it if `paused` is `false`, at an operator's request.
    pub(super) fn pause(&mut self, paused: bool) {
        if std::mem::replace(&mut self.admission.paused, paused) == paused {
            return;
        }
        let consumer = &*self.consumer.spec.name;
        if paused {
            tracing::info!(consumer, running = self.running.len(), "paused; receiving no more messages");
            self.carry_out(Command::Shut);
        } else {
            tracing::info!(consumer, "resumed");
        }
    }

    /// Handles a state change of the breaker.
    pub(super) fn turned(&mut self, change: Change) {
        log::breaker(&self.consumer.spec, change);
        match change {
            Change::Opened { .. } | Change::Reopened { .. } => self.commands.push(Command::Shut),
            Change::Probing | Change::Closed => {}
        }
    }

    /// Stops receiving, and gives back messages whose handlers have not started. A message is not given back while an
    /// earlier message of its FIFO group is being settled. Otherwise, the later message could overtake the earlier one.
    pub(super) fn shut(&mut self) {
        self.effects.stop_polling.cancel();
        self.effects.rest();
        let goes_back = |in_hand: &InHand| in_hand.machine.is_waiting() && !self.follows_one_that_settles(in_hand);
        let waiting = self.in_hand.iter().rev().filter(|(_, in_hand)| goes_back(in_hand));
        let drains: Vec<_> = waiting.map(|(id, _)| Command::Feed(*id, Event::Drain)).collect();
        self.commands.extend(drains);
    }
}
