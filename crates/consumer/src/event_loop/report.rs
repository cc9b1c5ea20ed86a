//! Reports: the event loop's output to the log, metrics, traces, the health file and the state-changed hook.

use tokio::time::Instant;

use super::super::effects::Id;
use super::super::failures::Kind;
use super::super::in_hand::InHand;
use super::super::log;
use super::super::policy::Disposition;
use super::super::status::Failed;
use super::super::{Phase, spans};
use super::EventLoop;
use hostler_handler::{Limit, Outcome};
use hostler_queue::LeaseError;
use hostler_telemetry::metrics::Ending;
use hostler_types::State;

/// Maximum length in bytes of the reason in [`Failed`].
const MAX_REASON: usize = 256;

impl EventLoop {
    /// Reports a finished delivery to the log, metrics, traces and status.
    pub(super) fn over(&mut self, in_hand: &mut InHand) {
        if in_hand.machine.is_not_due() {
            return log::not_due(&self.consumer.spec, in_hand);
        }
        let (outcome, disposition) = (in_hand.machine.outcome(), in_hand.machine.disposition());
        if in_hand.started_at.is_some() {
            self.summary.processed += 1;
            self.summary.abandoned += u64::from(*outcome == Outcome::Shutdown);
            if outcome.is_failure() || matches!(disposition, Disposition::DeadLetter(_)) {
                self.summary.failed += 1;
                self.consumer.status.failed(failed(in_hand, self.now));
            }
        }
        if let Some(metrics) = &self.consumer.metrics {
            metrics.ended(Ending {
                outcome: outcome.kind(),
                disposition: disposition.name(),
                attempt: in_hand.call.attempt,
                ran_for: in_hand.started_at.map(|_| in_hand.ran_for),
            });
        }
        log::settled(&self.consumer.spec, in_hand);
        if let Some((span, since)) = in_hand.span.take() {
            spans::processed(span, (since, in_hand.ran_for), outcome, disposition);
        }
    }

    /// Records whether a host limit ended the attempt. If so, logs the limit with instructions for the operator. Called
    /// when the guest has ended or, if the guest returned a reply, when the attempt to send the reply has ended.
    pub(super) fn note(&mut self, id: Id, outcome: Option<&Outcome>) {
        let is_limit = matches!(outcome, Some(Outcome::HostLimit(..)));
        if !is_limit && self.spared.is_empty() {
            return;
        }
        let Some(in_hand) = self.in_hand.get(&id) else { return };
        let message_id = in_hand.message_id();
        let Some(Outcome::HostLimit(limit, error)) = outcome else {
            return self.spared.ended(message_id);
        };
        self.spared.note(message_id, in_hand.call.attempt);
        let (consumer, cure) = (&*self.consumer.spec.name, limit.cure());
        if *limit == Limit::Key {
            // Two messages with one key at the same time are no limit that an operator could raise.
            return tracing::debug!(consumer, message_id, error, "the message waits for its idempotency key");
        }
        tracing::warn!(consumer, message_id, limit = %limit, error, cure, "host limit reached: the attempt does not count");
    }

    /// Records whether the store of idempotency records has failed. `outcome`: that of a message, if it has one.
    pub(super) fn note_records(&mut self, outcome: Option<&Outcome>) {
        match outcome {
            Some(Outcome::HostLimit(Limit::Records, _)) => self.failures.failed(Kind::Record, self.now),
            Some(_) if self.runs.is_some() => self.failures.succeeded(Kind::Record),
            _ => {}
        }
    }

    /// Records the results of a batch of heartbeats, and logs those that failed. `results` is in the order of `ids`.
    pub(super) fn note_heartbeats(&mut self, ids: &[Id], results: &[Result<(), LeaseError>]) {
        for (n, id) in ids.iter().enumerate() {
            let in_hand = self.in_hand.get_mut(id);
            let message_id = in_hand.as_ref().map(|in_hand| in_hand.message_id());
            match results.get(n) {
                Some(Ok(())) => self.failures.succeeded(Kind::Extension),
                Some(Err(error)) => {
                    tracing::warn!(consumer = &*self.consumer.spec.name, message_id, %error, "heartbeat failed");
                }
                None => {}
            }
            if let Some(in_hand) = in_hand {
                in_hand.heartbeat_failed = !matches!(results.get(n), Some(Ok(())));
            }
        }
    }

    /// Updates the status of the consumer, and notifies the state-changed hook if the state has changed.
    pub(super) fn show(&self) {
        let state = match self.phase {
            Phase::Draining | Phase::Deadline => State::Exiting,
            Phase::Running if !self.running.is_empty() => State::Processing,
            Phase::Running if self.schedule.is_idle() || self.admission.is_shut() => State::Idle,
            Phase::Running => State::Listening,
        };
        let transition = self.consumer.status.update(self.now, |status| {
            status.state = state;
            self.schedule.show(status);
            status.failures = self.failures;
            status.in_flight = self.running.len();
            status.in_hand = self.in_hand.len();
            status.oldest_started_at = self.running.first().map(|(started_at, _)| *started_at);
            status.processed = self.summary.processed;
            status.failed = self.summary.failed;
            status.paused = self.admission.paused;
            status.breaker = self.admission.breaker.shown();
        });
        self.effects.state_changed(transition);
    }
}

fn failed(in_hand: &InHand, at: Instant) -> Failed {
    let (outcome, disposition) = (in_hand.machine.outcome(), in_hand.machine.disposition());
    let reason = log::reason(outcome, disposition).unwrap_or_default();
    // Copied to free the memory of a long reason.
    let reason = reason[..reason.floor_char_boundary(MAX_REASON)].to_owned();
    Failed {
        at,
        message_id: in_hand.message_id().to_owned(),
        outcome: outcome.name(),
        disposition: disposition.name(),
        reason,
    }
}
