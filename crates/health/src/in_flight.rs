//! The contents of requests to a running host and of the host's answers, for `hostler inflight` and `hostler cancel`.

use serde::{Deserialize, Serialize};

/// A request to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Lists the messages in flight.
    List,
    /// Cancels the processing of a message.
    Cancel {
        /// Id of the message.
        message_id: String,
        /// Name of the consumer that is processing the message. `None`: any consumer, provided that only one has the
        /// message in flight.
        consumer: Option<String>,
    },
}

/// The host's answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The messages in flight, grouped by consumer in the order of the config. Each consumer's messages are sorted from
    /// oldest to newest.
    InFlight(Vec<MessageReport>),
    /// The message was in flight. `result` is the effect of the request.
    Cancelled {
        /// Name of the consumer.
        consumer: String,
        /// Number of the delivery attempt, counted by the queue from 1.
        attempt: u32,
        /// The effect of the request.
        result: CancelResult,
    },
    /// No message with this id is in flight at the requested consumer, or at any consumer if no consumer was requested.
    NotInFlight,
    /// Several consumers have the message in flight. Nothing was cancelled. The field contains the names of the
    /// consumers.
    Several(Vec<String>),
    /// A consumer did not answer the host in time. The field is the name of the consumer.
    Stuck(String),
}

/// The effect of a request to cancel a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CancelResult {
    /// The handler is being stopped because of this request.
    Stopping,
    /// The handler, or the `processing-timeout` hook, was already being stopped.
    AlreadyStopping,
    /// The processing timeout has passed, and the `processing-timeout` hook is deciding the outcome. Nothing was
    /// cancelled.
    Deciding,
}

/// A message in flight, in the format of `hostler inflight --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageReport {
    /// Name of the consumer that processes the message.
    pub consumer: String,
    /// Id of the message.
    pub message_id: String,
    /// Number of the delivery attempt, counted by the queue from 1.
    pub attempt: u32,
    /// Stage of the message: `running`, `stopping`, or `deciding` (the `processing-timeout` hook runs).
    pub state: String,
    /// Time since the handler started, in seconds.
    pub age_seconds: f64,
    /// Time until the processing timeout of the message, in seconds.
    pub time_left_seconds: f64,
    /// Time until the lease ends, in seconds. The consumer may extend the lease before then.
    pub lease_left_seconds: f64,
}
