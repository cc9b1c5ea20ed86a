//! Reports to producers, to the log, and to the observer that feeds health and metrics.

use std::time::Duration;

use super::{Content, Engine, Outgoing};
use crate::scheduler::{Millis, Outcome, Report};
use hostler_queue::QueueError;
use hostler_types::OutcomeKind;
use hostler_types::printable::shortened;

/// Wait for producers before they repeat a request.
const COME_BACK: Duration = Duration::from_secs(5);

/// Interval in milliseconds between two warnings about lost messages.
const WARN_EVERY: Millis = 10_000;

/// Maximum length in bytes of the reason in a log line.
const MAX_REASON: usize = 1024;

/// Reason for a delivery that the server refused.
const DENIED: &str = "the NATS server refuses its subject to the user of `retry.nats`";

/// Name of the service in log lines, in the place of a consumer's name.
pub(crate) const NAME: &str = "retry";

/// A delivery, or a message, that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// Id of the message.
    pub id: &'a str,
    /// Outcome of the delivery.
    pub outcome: OutcomeKind,
    /// Fate of the message: `ack`, `release`, `dead-letter` or `none`.
    pub disposition: &'static str,
    /// Number of the delivery.
    pub attempt: u32,
    /// The reason. Empty if there is none.
    pub reason: &'a str,
}

/// Watches an engine. All methods are called on the engine's task and must be quick.
pub trait Observer: Send {
    /// A message was stored.
    fn stores(&mut self);
    /// A message is delivered, so long after it was due.
    fn delivers(&mut self, late: Duration);
    /// A delivery, or a message, has ended.
    fn ended(&mut self, ended: Ended<'_>);
    /// A message of a producer was not stored.
    fn refuses(&mut self);
    /// The service can deliver and settle messages (`true`), or cannot.
    fn works(&mut self, is_working: bool);
    /// The number of messages in flight, and the longest time for which one of their receivers has not replied.
    fn flying(&mut self, count: usize, oldest: Option<Duration>);
}

impl<O: Observer> Engine<O> {
    /// Tells a producer that its message is stored.
    pub(super) fn stored(&mut self, reply: Option<String>, id: &str) {
        self.observer.stores();
        if let Some(to) = reply {
            let _ = self.outbox.send(Outgoing::Stored { to, id: id.to_owned() });
        }
    }

    /// Tells a producer that its message is not stored.
    pub(super) fn refuse(&mut self, reply: Option<String>, code: u16, reason: String) {
        self.observer.refuses();
        tracing::debug!(code, reason, "a message of a producer is not stored");
        if reply.is_none() {
            self.lose_unanswered(code, &reason);
        }
        if let Some(to) = reply {
            let retry_after = (code == 503).then_some(COME_BACK);
            let _ = self.outbox.send(Outgoing::Refused { to, code, reason, retry_after });
        }
    }

    /// Counts a message that is not stored although its producer waits for no reply, and logs the count now and then.
    fn lose_unanswered(&mut self, code: u16, reason: &str) {
        self.unanswered = self.unanswered.saturating_add(1);
        let now = self.store.now();
        if now >= self.warn_unanswered_at {
            self.warn_unanswered_at = now.saturating_add(WARN_EVERY);
            tracing::warn!(
                code,
                reason,
                lost = std::mem::take(&mut self.unanswered),
                "messages are lost: they were not stored, and their producers sent them without a reply subject; \
                 send messages to the retry service by request"
            );
        }
    }

    /// Records that the store has no room, or has room again.
    pub(super) fn note_shortage(&mut self, shortage: Option<String>) {
        match &shortage {
            Some(reason) if self.shortage.is_none() => {
                tracing::error!(
                    reason,
                    "no further messages are stored; producers are refused with 503 until there is room"
                );
            }
            None if self.shortage.is_some() => tracing::info!("the store has room for further messages again"),
            _ => {}
        }
        self.shortage = shortage;
    }

    /// Records a turn that was carried out.
    pub(super) fn recovered(&mut self) {
        if self.failure.take().is_some() {
            tracing::info!(failures = self.failures, "the store of the retry service works again");
        }
        self.failures = 0;
    }

    /// Records a turn that failed.
    pub(super) fn failed(&mut self, error: &QueueError) {
        if self.failure.as_ref() != Some(error) {
            tracing::error!(%error, "the store of the retry service failed; nothing is delivered, and producers are refused with 503, until it works again");
        }
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(error.clone());
    }

    /// Passes on the scheduler's reports.
    pub(super) fn report(&mut self, now: Millis) {
        for report in self.scheduler.reports() {
            let Report { subject, attempts, outcome, content } = report;
            let Some((kind, disposition)) = words(&outcome) else {
                let message_id = &*content.id;
                tracing::debug!(consumer = NAME, channel = &*subject, message_id, ?outcome, "waits");
                continue;
            };
            let (reason, due) = reason(&outcome);
            log(now, &subject, attempts, &content, (kind, disposition), reason, due);
            self.observer.ended(Ended { id: &content.id, outcome: kind, disposition, attempt: attempts, reason });
        }
        let oldest = self.requests.silent_since().and_then(|at| u64::try_from(now.saturating_sub(at)).ok());
        self.observer.flying(self.requests.len(), oldest.map(Duration::from_millis));
    }
}

fn log(
    now: Millis,
    subject: &str,
    attempt: u32,
    content: &Content,
    (outcome, disposition): (OutcomeKind, &str),
    reason: &str,
    due: Option<Millis>,
) {
    tracing::info!(
        consumer = NAME,
        channel = subject,
        message_id = &*content.id,
        attempt,
        outcome = outcome.name(),
        disposition,
        delay_seconds = due.map(|due| due.saturating_sub(now) as f64 / 1_000.0),
        reason = &*shortened(reason, MAX_REASON),
        "settled"
    );
}

/// Returns the words of logs and metrics for an outcome. `None`: no delivery has ended.
fn words(outcome: &Outcome) -> Option<(OutcomeKind, &'static str)> {
    match outcome {
        Outcome::Delivered => Some((OutcomeKind::Ack, "ack")),
        Outcome::Retry(..) | Outcome::Denied => Some((OutcomeKind::Failed, "release")),
        Outcome::DeadLettered(_) => Some((OutcomeKind::DeadLetter, "dead-letter")),
        Outcome::Dropped => Some((OutcomeKind::TimedOut, "ack")),
        Outcome::Waits(_) => None,
    }
}

fn reason(outcome: &Outcome) -> (&str, Option<Millis>) {
    match outcome {
        Outcome::Retry(due, reason) => (reason, Some(*due)),
        Outcome::DeadLettered(reason) => (reason, None),
        Outcome::Denied => (DENIED, None),
        Outcome::Dropped => ("expired", None),
        Outcome::Delivered | Outcome::Waits(_) => ("", None),
    }
}
