//! Log lines of a consumer: one line per message, and the guests' output. Message bodies are never logged.

use std::time::Duration;

use super::Spec;
use super::breaker::Change;
use super::idempotency::is_repeated;
use super::in_hand::{InHand, Place};
use super::policy::Disposition;
use hostler_handler::{Captured, Excerpt, Outcome};
use hostler_telemetry::GUEST;
use hostler_types::printable::shortened;

/// Maximum length in bytes of the reason in a log line. The dead letter contains the full reason.
const MAX_REASON: usize = 1024;

/// Logs a finished message.
pub(super) fn settled(spec: &Spec, in_hand: &InHand) {
    let (outcome, disposition) = (in_hand.machine.outcome(), in_hand.machine.disposition());
    let (reason, place) = (reason(outcome, disposition), in_hand.place());
    tracing::info!(
        consumer = &*spec.name,
        channel = &*spec.channel,
        message_id = in_hand.message_id(),
        attempt = in_hand.call.attempt,
        outcome = outcome.name(),
        disposition = disposition.name(),
        duration_ms = milliseconds(in_hand.ran_for),
        queue_delay_ms = milliseconds(in_hand.queue_delay),
        batch = in_hand.membership.map(|membership| membership.size),
        late = in_hand.late.then_some(true),
        repeated = is_repeated(&in_hand.call).then_some(true),
        delay_seconds = disposition.delay().map(|delay| milliseconds(delay) / 1_000.0),
        reason = &*shortened(reason.as_deref().unwrap_or_default(), MAX_REASON),
        trace_id = place.trace_id(),
        span_id = place.span_id(),
        "settled"
    );
}

/// Logs that a message was received too early, and therefore was hidden again until the time at which it may start.
pub(super) fn not_due(spec: &Spec, in_hand: &InHand) {
    let (consumer, message_id) = (&*spec.name, in_hand.message_id());
    let delay_seconds = in_hand.machine.disposition().delay().map(|delay| milliseconds(delay) / 1_000.0);
    tracing::debug!(consumer, message_id, delay_seconds, "not due yet: hidden again");
}

/// Returns the reason for the disposition of a message. `None`: there is no reason to report.
pub(super) fn reason(outcome: &Outcome, disposition: &Disposition) -> Option<String> {
    if let Disposition::DeadLetter(why) = disposition { Some(why.clone()) } else { outcome.reason() }
}

/// Logs a state change of the breaker.
pub(super) fn breaker(spec: &Spec, change: Change) {
    let consumer = &*spec.name;
    match change {
        Change::Opened { failed, of, pause } => {
            let pause = humantime::format_duration(pause);
            tracing::warn!(consumer, failed, of, %pause, "breaker open: too many messages fail; receiving is paused");
        }
        Change::Reopened { pause } => {
            let pause = humantime::format_duration(pause);
            tracing::warn!(consumer, %pause, "breaker open: the probe message failed");
        }
        Change::Probing => tracing::info!(consumer, "breaker probing with one message"),
        Change::Closed => tracing::info!(consumer, "breaker closed"),
    }
}

/// Call of a handler, as its log lines name it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Named<'a> {
    /// Id of the message.
    Message(&'a str),
    /// Number of messages in the batch.
    Batch(usize),
}

/// Logs the output of a guest: one log line per output line, up to a limit. Called on the thread that ran the guest,
/// because a log line costs about a microsecond, which is too much for the control thread.
pub(super) fn output(consumer: &str, call: Named<'_>, trace: Place<'_>, captured: &Captured) {
    let (message_id, batch) = match call {
        Named::Message(id) => (Some(id), None),
        Named::Batch(size) => (None, Some(size)),
    };
    let tell = |(stream, line)| {
        let (trace_id, span_id) = (trace.trace_id(), trace.span_id());
        tracing::info!(target: GUEST, consumer, message_id, batch, stream, trace_id, span_id, "{line}");
    };
    let Excerpt { first, left_out, last } = captured.excerpt();
    first.into_iter().for_each(tell);
    if left_out > 0 {
        tracing::warn!(target: GUEST, consumer, message_id, batch, "{left_out} more lines of output are not logged");
    }
    last.into_iter().for_each(tell);
    if captured.dropped > 0 {
        let dropped = captured.dropped;
        tracing::warn!(target: GUEST, consumer, message_id, batch, dropped, "output beyond limits.output was dropped");
    }
}

/// Converts a duration to milliseconds, rounded to three decimal places.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000_000.0).round() / 1_000.0
}
