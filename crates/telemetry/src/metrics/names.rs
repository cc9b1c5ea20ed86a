//! Names of metrics and attributes, and values of attributes. Names that begin with `messaging.` are defined by the
//! OpenTelemetry semantic conventions (opentelemetry.io/docs/specs/semconv/messaging).

use hostler_types::OutcomeKind;

pub use opentelemetry_semantic_conventions::attribute::{
    ERROR_TYPE, MESSAGING_CONSUMER_GROUP_NAME, MESSAGING_DESTINATION_NAME, MESSAGING_OPERATION_NAME,
    MESSAGING_OPERATION_TYPE, MESSAGING_SYSTEM, SERVICE_NAME, SERVICE_VERSION,
};
pub use opentelemetry_semantic_conventions::metric::{
    MESSAGING_CLIENT_CONSUMED_MESSAGES, MESSAGING_CLIENT_OPERATION_DURATION, MESSAGING_CLIENT_SENT_MESSAGES,
    MESSAGING_PROCESS_DURATION,
};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A sum that never decreases.
    Counter,
    /// The current value at each collection.
    Gauge,
    /// A distribution of values.
    Histogram,
}

impl Kind {
    /// Returns the kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Description of a metric, for its instrument and for the reference.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name of the metric.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: Kind,
    /// Unit in UCUM notation. Empty if there is no unit.
    pub unit: &'static str,
    /// Meaning of the metric.
    pub meaning: &'static str,
}

/// Returns the unit and the meaning of a metric, for its instrument.
pub(super) fn described(name: &str) -> (&'static str, &'static str) {
    ALL.iter().find(|metric| metric.name == name).map_or(("", ""), |metric| (metric.unit, metric.meaning))
}

/// Lists all metrics: first those with names from the semantic conventions, then hostler's own. Also defines a constant
/// for the name of each of hostler's own metrics.
macro_rules! metrics {
    (
        conventions { $($convention:ident: $convention_kind:ident, $convention_unit:literal, $convention_meaning:literal;)+ }
        own { $(#[doc = $meaning:literal] $name:ident = $text:literal: $kind:ident, $unit:literal;)+ }
    ) => {
        $(#[doc = $meaning] pub const $name: &str = $text;)+

        /// All metrics.
        pub const ALL: &[Metric] = &[
            $(Metric {
                name: $convention,
                kind: Kind::$convention_kind,
                unit: $convention_unit,
                meaning: $convention_meaning,
            },)+
            $(Metric { name: $name, kind: Kind::$kind, unit: $unit, meaning: $meaning.trim_ascii() },)+
        ];
    };
}

metrics! {
    conventions {
        MESSAGING_CLIENT_CONSUMED_MESSAGES: Counter, "{message}", "Number of received messages.";
        MESSAGING_CLIENT_SENT_MESSAGES: Counter, "{message}", "Number of messages sent as replies and by handlers.";
        MESSAGING_CLIENT_OPERATION_DURATION: Histogram, "s",
            "Duration of calls to the queue service. A receive waits for messages.";
        MESSAGING_PROCESS_DURATION: Histogram, "s", "Run time of handlers, hooks included.";
    }
    own {
        /// Maximum number of messages that a consumer processes at the same time.
        SLOTS = "hostler.slots": Gauge, "{slot}";
        /// Number of messages whose handler is running.
        SLOTS_BUSY = "hostler.slots.busy": Gauge, "{slot}";
        /// Number of messages that were received but not finished.
        IN_HAND = "hostler.messages.in_hand": Gauge, "{message}";
        /// Number of finished messages, by outcome and disposition.
        SETTLED = "hostler.messages.settled": Counter, "{message}";
        /// Number of messages of producers that the retry service did not store.
        REFUSED = "hostler.messages.refused": Counter, "{message}";
        /// Number of attempts until a message was removed from its queue.
        ATTEMPTS = "hostler.message.attempts": Histogram, "{attempt}";
        /// Age of a message at the start of its handler.
        QUEUE_DELAY = "hostler.message.queue_delay": Histogram, "s";
        /// Number of messages that were older than `delay_tolerance` at the start of their handlers.
        LATE = "hostler.messages.late": Counter, "{message}";
        /// Number of messages in a batch at the start of its handler.
        BATCH_SIZE = "hostler.batch.size": Histogram, "{message}";
        /// Number of extended leases.
        LEASES_EXTENDED = "hostler.leases.extended": Counter, "{lease}";
        /// Number of lost leases.
        LEASES_LOST = "hostler.leases.lost": Counter, "{lease}";
        /// Number of messages that were looked up by their idempotency key, by result.
        KEYS = "hostler.idempotency.keys": Counter, "{message}";
        /// Number of handlers that were stopped at the processing timeout.
        PROCESSING_TIMEOUTS = "hostler.processing_timeouts": Counter, "{timeout}";
        /// Number of messages that can be received.
        QUEUE_VISIBLE = "hostler.queue.visible": Gauge, "{message}";
        /// Number of messages whose delay has not passed.
        QUEUE_DELAYED = "hostler.queue.delayed": Gauge, "{message}";
        /// Number of leased messages, including those of other receivers.
        QUEUE_IN_FLIGHT = "hostler.queue.in_flight": Gauge, "{message}";
        /// Number of messages in the dead-letter queue.
        QUEUE_DEAD_LETTERED = "hostler.queue.dead_lettered": Gauge, "{message}";
        /// Time since the counts of the queue were read.
        QUEUE_COUNTS_AGE = "hostler.queue.counts_age": Gauge, "s";
        /// Age of the oldest message in the queue.
        QUEUE_OLDEST_AGE = "hostler.queue.oldest_age": Gauge, "s";
        /// Number of visible messages per task.
        BACKLOG_PER_TASK = "hostler.backlog_per_task": Gauge, "{message}";
        /// Time to process the visible messages at the present rate.
        TIME_TO_DRAIN = "hostler.time_to_drain": Gauge, "s";
        /// Time to create a sandbox.
        INSTANTIATION = "hostler.sandbox.instantiation": Histogram, "s";
        /// Maximum linear memory of a guest since the start.
        MEMORY_PEAK = "hostler.sandbox.memory.peak": Gauge, "By";
        /// Delay of the host's periodic tick.
        TICK_DELAY = "hostler.host.tick_delay": Histogram, "s";
        /// 1 while the host runs.
        UP = "hostler.up": Gauge, "";
        /// 1 for the present state of a consumer, 0 for all other states.
        HEALTH_STATE = "hostler.health.state": Gauge, "";
    }
}

/// Attribute with the name of the consumer.
pub const CONSUMER: &str = "hostler.consumer";
/// Attribute with the outcome of the handler.
pub const OUTCOME: &str = "hostler.outcome";
/// Attribute with the action that was taken on a message after its handler: one of [`DISPOSITIONS`].
pub const DISPOSITION: &str = "hostler.disposition";
/// Attribute with the result of looking up an idempotency key: one of [`KEY_RESULTS`].
pub const KEY_RESULT: &str = "hostler.idempotency.result";
/// Attribute with a consumer state, named as in the health file.
pub const STATE: &str = "hostler.state";

/// Actions on messages. The first two remove the message from its queue.
pub const DISPOSITIONS: [&str; 4] = ["ack", "dead-letter", "release", "none"];
/// Number of [`DISPOSITIONS`] that remove a message from its queue.
pub(super) const REMOVALS: usize = 2;
/// Results of looking up an idempotency key, in the order of [`KeyResult`].
pub const KEY_RESULTS: [&str; 8] =
    ["started", "taken-over", "repeated", "busy", "unknown", "other-body", "no-key", "unavailable"];

/// Result of looking up an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyResult {
    /// The key is new, and the handler runs.
    Started,
    /// An earlier run ended without a result, and the handler runs again.
    TakenOver,
    /// The key was processed, and the message is acked.
    Repeated,
    /// Another delivery with the key is being processed, and the message waits.
    Busy,
    /// An earlier run ended without a result, and the message is dead-lettered.
    Unknown,
    /// The key was used with another body, and the message is dead-lettered.
    OtherBody,
    /// The message has no key, and is dead-lettered.
    NoKey,
    /// The store did not answer, and the message waits.
    Unavailable,
}

/// Consumer states, named as in the health file.
pub const STATES: [&str; 6] = ["INITIALIZING", "INITIALIZED", "LISTENING", "PROCESSING", "IDLE", "EXITING"];

/// Outcomes with their usual dispositions. The counts of these pairs start at zero, so that the first occurrence of a
/// rare pair is visible as an increase.
pub(super) const USUAL: [(OutcomeKind, &str); 19] = [
    (OutcomeKind::Ack, "ack"),
    (OutcomeKind::Reply, "ack"),
    (OutcomeKind::Retry, "release"),
    (OutcomeKind::Retry, "dead-letter"),
    (OutcomeKind::Delay, "release"),
    (OutcomeKind::Delay, "dead-letter"),
    (OutcomeKind::DeadLetter, "dead-letter"),
    (OutcomeKind::Failed, "release"),
    (OutcomeKind::Failed, "dead-letter"),
    (OutcomeKind::Trapped, "release"),
    (OutcomeKind::Trapped, "dead-letter"),
    (OutcomeKind::HostLimit, "release"),
    (OutcomeKind::TimedOut, "release"),
    (OutcomeKind::TimedOut, "dead-letter"),
    (OutcomeKind::LeaseLost, "none"),
    (OutcomeKind::Shutdown, "release"),
    (OutcomeKind::Ack, "none"),
    (OutcomeKind::Failed, "none"),
    (OutcomeKind::Trapped, "none"),
];

/// Upper bounds in seconds of the buckets for handler run times. Contains the bounds from the semantic conventions, and
/// further bounds up to half an hour.
pub(super) const PROCESS_DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0, 900.0, 1_800.0,
];
/// Upper bounds in seconds of the buckets for calls to the queue service. Contains the bounds from the semantic
/// conventions, and further bounds beyond 20 s, the maximum wait of a receive call.
pub(super) const OPERATION_DURATIONS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 30.0];
/// Upper bounds of the buckets for numbers of attempts.
pub(super) const ATTEMPT_COUNTS: &[f64] = &[1.0, 2.0, 3.0, 5.0, 8.0, 13.0];
/// Upper bounds of the buckets for sizes of batches.
pub(super) const BATCH_SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// Upper bounds in seconds of the buckets for message ages: from 0.1 s to one day.
pub(super) const AGES: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0, 43_200.0,
    86_400.0,
];
/// Upper bounds in seconds of the buckets for sandbox creation times: from 10 µs to 1 s.
pub(super) const INSTANTIATIONS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
];
/// Upper bounds of the buckets for tick delays in seconds.
pub(super) const LATENESS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

/// Returns the index of a word in a list. If the list does not contain the word, returns the last index.
pub(super) fn place(word: &str, words: &[&str]) -> usize {
    words.iter().position(|known| *known == word).unwrap_or(words.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_from_zero_on() {
        for kind in OutcomeKind::ALL {
            let dispositions: Vec<_> = USUAL.iter().filter(|(usual, _)| *usual == kind).map(|(_, word)| word).collect();
            assert!(!dispositions.is_empty(), "{} has no row in USUAL", kind.name());
            assert!(dispositions.iter().all(|word| DISPOSITIONS.contains(word)), "{}: {dispositions:?}", kind.name());
        }
    }
}
