//! Operator requests: lists the messages in flight, and cancels deliveries.

use super::super::delivery::Event;
use super::super::in_flight::{Cancellation, DeliveryId, InFlight, Request, Stage};
use super::EventLoop;

impl EventLoop {
    /// Handles an operator's request. The channel for the answer always has room. If its receiver is gone, the answer
    /// is dropped.
    pub(super) fn requested(&mut self, request: Request) {
        match request {
            Request::List(answer) => drop(answer.try_send(self.in_flight())),
            Request::Cancel { until, .. } if until < self.now => {}
            Request::Cancel { delivery, answer, .. } => drop(answer.try_send(self.cancel(delivery))),
        }
    }

    /// Returns the messages in flight, in the order of their receipt.
    fn in_flight(&self) -> Vec<InFlight> {
        let mut all = Vec::new();
        for (delivery, in_hand) in &self.in_hand {
            let Some(stage) = in_hand.machine.stage() else { continue };
            let started_at = in_hand.started_at.unwrap_or(self.now);
            let ends_at = started_at + self.consumer.spec.processing_timeout;
            let lease_ends_at = self.leases.deadline(*delivery).unwrap_or(self.now);
            all.push(InFlight {
                delivery: *delivery,
                message_id: in_hand.message_id().to_owned(),
                attempt: in_hand.call.attempt,
                stage,
                age: self.now.saturating_duration_since(started_at),
                time_left: ends_at.saturating_duration_since(self.now),
                lease_left: lease_ends_at.saturating_duration_since(self.now),
            });
        }
        all
    }

    /// Cancels this delivery if its handler is running. A redelivery of the message has another id, so it is not
    /// affected.
    fn cancel(&mut self, delivery: DeliveryId) -> Cancellation {
        let Some(in_hand) = self.in_hand.get(&delivery) else { return Cancellation::Ended };
        match in_hand.machine.stage() {
            Some(Stage::Running) => {
                let (consumer, message_id) = (&*self.consumer.spec.name, in_hand.message_id());
                tracing::warn!(consumer, message_id, "cancelled by an operator: its handler is stopped");
                let membership = in_hand.membership;
                self.apply(delivery, Event::Cancel);
                if let (Some(membership), Some(batches)) = (membership, &mut self.batches) {
                    batches.cancelled(membership.batch);
                }
                Cancellation::Stopping
            }
            Some(Stage::Stopping) => Cancellation::AlreadyStopping,
            Some(Stage::Deciding) => Cancellation::Deciding,
            None => Cancellation::Ended,
        }
    }
}
