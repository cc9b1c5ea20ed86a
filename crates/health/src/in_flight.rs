//! The words of requests to a running host and of its answers: `hostler inflight` and `hostler cancel`.

use serde::{Deserialize, Serialize};

/// A question to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Which messages are in flight?
    List,
    /// Cancel a message.
    Cancel {
        /// Its id.
        message_id: String,
        /// The consumer that processes it; `None`: the only one that does.
        consumer: Option<String>,
    },
}

/// The host's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The messages in flight, by consumer in the order of the config, the oldest first.
    InFlight(Vec<MessageReport>),
    /// The message was in flight at this consumer.
    Cancelled {
        /// The consumer's name.
        consumer: String,
        /// The number of the attempt.
        attempt: u32,
        /// The result.
        result: CancelResult,
    },
    /// No consumer that was meant has a message of this id in flight.
    NotInFlight,
    /// Several consumers have it in flight. Nothing was cancelled.
    Several(Vec<String>),
    /// This consumer does not answer, as the control thread is stuck.
    Stuck(String),
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CancelResult {
    /// Its handler is being stopped.
    Stopping,
    /// It was being stopped already.
    AlreadyStopping,
    /// Its processing timeout has passed, and the hook decides about it.
    Deciding,
}

/// A message in flight, as `hostler inflight --json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageReport {
    /// The consumer that processes it.
    pub consumer: String,
    /// Its id.
    pub message_id: String,
    /// The number of this attempt, as the queue counts.
    pub attempt: u32,
    /// `running`, `stopping`, or `deciding` (the processing-timeout hook).
    pub state: String,
    /// The time since its handler started.
    pub age_seconds: f64,
    /// The time left until its processing timeout.
    pub time_left_seconds: f64,
    /// The time left until its lease ends, unless it is extended before.
    pub lease_left_seconds: f64,
}
