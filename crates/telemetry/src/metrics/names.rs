//! Names of metrics and attributes, and values of attributes. Names that begin with `messaging.` are those of the
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

/// Defines a constant for each metric name, and a list of all names including those of the semantic conventions.
macro_rules! metrics {
    ($($(#[doc = $meaning:literal])+ $name:ident = $text:literal,)+) => {
        $($(#[doc = $meaning])+ pub const $name: &str = $text;)+

        /// All metrics.
        pub const ALL: &[&str] = &[
            MESSAGING_CLIENT_CONSUMED_MESSAGES,
            MESSAGING_CLIENT_OPERATION_DURATION,
            MESSAGING_CLIENT_SENT_MESSAGES,
            MESSAGING_PROCESS_DURATION,
            $($name,)+
        ];
    };
}

metrics! {
    /// Maximum number of messages that a consumer processes at the same time.
    SLOTS = "hostler.slots",
    /// Number of messages whose handler is running.
    SLOTS_BUSY = "hostler.slots.busy",
    /// Number of messages that were received but not finished.
    IN_HAND = "hostler.messages.in_hand",
    /// Number of finished messages, by outcome and disposition.
    SETTLED = "hostler.messages.settled",
    /// Number of attempts until a message was removed from its queue.
    ATTEMPTS = "hostler.message.attempts",
    /// Age of a message at the start of its handler.
    QUEUE_DELAY = "hostler.message.queue_delay",
    /// Number of messages that were older than `delay_tolerance` at the start of their handlers.
    LATE = "hostler.messages.late",
    /// Number of extended leases.
    LEASES_EXTENDED = "hostler.leases.extended",
    /// Number of lost leases.
    LEASES_LOST = "hostler.leases.lost",
    /// Number of handlers that were stopped at the processing timeout.
    PROCESSING_TIMEOUTS = "hostler.processing_timeouts",
    /// Number of messages that can be received.
    QUEUE_VISIBLE = "hostler.queue.visible",
    /// Number of messages whose delay has not passed.
    QUEUE_DELAYED = "hostler.queue.delayed",
    /// Number of leased messages, including those of other receivers.
    QUEUE_IN_FLIGHT = "hostler.queue.in_flight",
    /// Number of messages in the dead-letter queue.
    QUEUE_DEAD_LETTERED = "hostler.queue.dead_lettered",
    /// Time since the counts of the queue were read.
    QUEUE_COUNTS_AGE = "hostler.queue.counts_age",
    /// Age of the oldest message in the queue.
    QUEUE_OLDEST_AGE = "hostler.queue.oldest_age",
    /// Number of visible messages per task.
    BACKLOG_PER_TASK = "hostler.backlog_per_task",
    /// Time to process the visible messages at the present rate.
    TIME_TO_DRAIN = "hostler.time_to_drain",
    /// Time to create a sandbox.
    INSTANTIATION = "hostler.sandbox.instantiation",
    /// Maximum linear memory of a guest since the start.
    MEMORY_PEAK = "hostler.sandbox.memory.peak",
    /// Delay of the host's periodic tick.
    TICK_DELAY = "hostler.host.tick_delay",
    /// 1 while the host runs.
    UP = "hostler.up",
    /// 1 for the present state of a consumer, 0 for all other states.
    HEALTH_STATE = "hostler.health.state",
}

/// Attribute with the name of the consumer.
pub const CONSUMER: &str = "hostler.consumer";
/// Attribute with the outcome of the handler.
pub const OUTCOME: &str = "hostler.outcome";
/// Attribute with the action on the message after the handler.
pub const DISPOSITION: &str = "hostler.disposition";
/// Attribute with a state of the health file.
pub const STATE: &str = "hostler.state";

/// Actions on messages. The first two remove the message from its queue.
pub const DISPOSITIONS: [&str; 4] = ["ack", "dead-letter", "release", "none"];
/// Number of [`DISPOSITIONS`] that remove a message from its queue.
pub(super) const REMOVALS: usize = 2;
/// States of the health file.
pub const STATES: [&str; 6] = ["INITIALIZING", "INITIALIZED", "LISTENING", "PROCESSING", "IDLE", "EXITING"];

/// Outcomes with the dispositions that usually follow. Their counts start at zero, so that the first occurrence of a rare
/// combination is an increase.
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

/// Upper bounds of the buckets for handler run times in seconds: the bounds recommended by the semantic conventions, and
/// further bounds up to half an hour.
pub(super) const PROCESS_DURATIONS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0, 900.0, 1_800.0,
];
/// Upper bounds of the buckets for durations of queue service calls in seconds: the bounds recommended by the semantic
/// conventions, and further bounds beyond the 20 s that a receive can wait.
pub(super) const OPERATION_DURATIONS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 30.0];
/// Upper bounds of the buckets for numbers of attempts.
pub(super) const ATTEMPT_COUNTS: &[f64] = &[1.0, 2.0, 3.0, 5.0, 8.0, 13.0];
/// Upper bounds of the buckets for message ages in seconds: from 0.1 s to one day.
pub(super) const AGES: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0, 43_200.0,
    86_400.0,
];
/// Upper bounds of the buckets for sandbox creation times in seconds: from 10 µs to 1 s.
pub(super) const INSTANTIATIONS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
];
/// Upper bounds of the buckets for tick delays in seconds.
pub(super) const LATENESS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

/// Returns the index of a word in a list, or the last index if the list does not contain the word.
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
