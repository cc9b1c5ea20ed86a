//! The health file: a host's report on its consumers, and the verdict that the container runtime reads. A host is a
//! running `hostler run` process.
//!
//! | file | job |
//! |---|---|
//! | `lib` | the contents of the health file |
//! | `clock` | timestamps that stay correct when the system clock is set |
//! | `lock` | the lock file beside the health file |
//! | `write` | replaces the health file |
//! | `read` | reads the health file |
//! | `pauses` | the consumers that an operator has paused, as files beside the health file |
//! | `requests` | requests to the host and the host's answers, as files beside the health file |
//! | `request_file` | the names of the files of requests and answers |
//! | `in_flight` | the contents of requests and answers |
//! | `folder` | creates and checks the folders beside the health file |
//! | `trust` | checks whether a folder beside the health file can be trusted |
//! | `presence` | checks whether a host is running, and can answer requests or notice a pause |
//! | `rival` | detects other writers of the health file |
//! | `process` | finds a process and its start time |
//! | `namespace` | detects a report that was not written by the host in this container |
//! | `verdict` | decides whether a host is healthy, starting or unhealthy |
//! | `reason` | the reasons for a verdict |
//!
//! The host writes the file at every state transition and at least once per [`TICK`]. A health check must take less
//! than 10 ms and 10 MiB of memory. This crate therefore starts no async runtime, and the only other hostler crate that
//! it depends on is `hostler-types`.

mod clock;
mod folder;
mod in_flight;
mod lock;
mod namespace;
mod pauses;
mod presence;
pub mod process;
mod read;
mod reason;
mod request_file;
mod requests;
mod rival;
mod trust;
mod verdict;
mod write;

use std::fmt;
use std::time::Duration;

use hostler_types::printable::on_one_line;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use hostler_types::{State, Timestamp};

pub use clock::Clock;
pub use folder::FolderError;
pub use in_flight::{Answer, CancelResult, MessageReport, Question};
pub use namespace::{host_beside, read_in_turn};
pub use pauses::Pauses;
pub use presence::{Presence, absence, presence};
pub use read::{LOCK_WAIT, MAX_BYTES, ReadError, Why, read};
pub use reason::Reason;
pub use requests::{ANSWER_WAIT, RequestError, Requests, Taken};
pub use rival::{Rival, Rivals};
pub use verdict::{StartPeriod, Status, Verdict, another_container, verdict};
pub use write::{HealthFile, WRITE_LOCK_WAIT, WriteError};

/// Version of the file format. This build writes and reads only this version.
pub const SCHEMA: u64 = 1;

/// Maximum time between two writes of the health file by the host.
pub const TICK: Duration = Duration::from_secs(2);

/// Age after which a health file is stale. Five ticks allow a busy host to miss a few writes.
pub const STALE_AFTER: Duration = Duration::from_secs(10);

/// The contents of the health file. `healthcheck/health.schema.json` describes the format for other programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: u64,
    /// Process id of the host in its own PID namespace.
    pub pid: u32,
    /// The PID namespace of `pid`: the machine's boot id and the namespace's number. `None`: `/proc` does not provide the
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// Start time of the host's process. Based on the same clock as `written_at`.
    pub started_at: Timestamp,
    /// Time of this report.
    pub written_at: Timestamp,
    /// The reports on the consumers, one per configured consumer.
    pub consumers: Vec<ConsumerReport>,
    /// Other running hosts in the same PID namespace that have written this file by mistake. The file omits an empty
    /// list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherHost>,
    /// The fault of the connection to the queue service. Does not affect the verdict, because consumers report failed
    /// polls and settlements themselves. `None`: the connection works, or the service has no lasting connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_link: Option<QueueLink>,
}

/// The fault of a connection to a queue service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLink {
    /// Kind of the fault.
    pub state: QueueLinkState,
    /// The error, or the reason that the service gave.
    pub reason: String,
}

impl fmt::Display for QueueLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.state {
            QueueLinkState::Down => "the connection to the queue service is lost",
            QueueLinkState::Blocked => "the queue service accepts no messages",
        };
        write!(f, "{what}: {}", on_one_line(&self.reason))
    }
}

/// The kind of a fault of a connection. Stored as the name of the variant in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueLinkState {
    /// The connection is lost. The host tries to connect again.
    Down,
    /// The service delivers messages, but accepts none: releases with a delay, dead-letter copies and sends fail.
    Blocked,
}

/// Another host that writes the same file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherHost {
    /// Process id of the other host.
    pub pid: u32,
    /// Start time of its process.
    pub started_at: Timestamp,
    /// Time of its last known report.
    pub written_at: Timestamp,
}

/// The report on one consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConsumerReport {
    /// Name of the consumer in the config.
    pub name: String,
    /// Current state.
    pub state: State,
    /// Time at which the consumer entered the current state.
    pub transition_timestamp: Timestamp,
    /// Maximum time that the consumer may spend in a state without progress, or go without a completed poll. Stored in
    /// seconds. While the consumer drains, the limit is at least the maximum duration of the drain.
    #[serde(with = "seconds")]
    pub healthcheck_timeout: Duration,
    /// Time of the last successful poll, with or without messages. A failed poll does not count. `None`: no poll has
    /// succeeded yet.
    ///
    /// A consumer does not poll while it cannot process another message, has reached its rate limit, or is paused.
    /// During such a period, the field contains the time of the report. Afterwards, until the next poll succeeds, the
    /// field contains the time at which the consumer could poll again.
    pub last_poll_at: Option<Timestamp>,
    /// Number of messages that are being processed.
    pub in_flight: u32,
    /// Start time of the oldest message that is being processed. `None`: no message is being processed.
    pub oldest_started_at: Option<Timestamp>,
    /// Number of messages finished since the process started, with any outcome.
    pub processed: u64,
    /// Number of finished messages that failed: the handler failed, trapped or timed out, or the message was dead-lettered.
    /// A retry or delay that the handler requested, a lost lease and a shutdown do not count.
    pub failed: u64,
    /// Set if an operator has paused the consumer. A paused consumer does not poll. The file omits `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// State of the consumer's breaker. `None`: the breaker is closed, or the consumer has no breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
    /// The current series of failed calls. Removals, dead-letter copies, releases and lease extensions are four kinds
    /// of calls, each with its own series. If several kinds are failing, the field contains the series that has lasted
    /// longest. `None`: no kind is failing.
    ///
    /// A series ends when a call of its kind succeeds. It also ends when no call of its kind has failed for so long
    /// that the queue must have redelivered the unsettled messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settling_fails: Option<SettlingFails>,
    /// The last few failures that `failed` counts, latest first. The file omits an empty list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_failures: Vec<FailureReport>,
}

/// A series of consecutive failures of one kind of call: removals, dead-letter copies, releases or lease extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettlingFails {
    /// Time of the first failure in the series.
    pub since: Timestamp,
    /// Time of the last failure in the series.
    pub last: Timestamp,
}

/// A message that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureReport {
    /// Time at which the processing of the message ended.
    pub at: Timestamp,
    /// Id of the message.
    pub message_id: String,
    /// The outcome, as named in the log.
    pub outcome: String,
    /// The action that the host took on the message, as named in the log.
    pub disposition: String,
    /// The reason, shortened. Empty if the reason is unknown.
    pub reason: String,
}

impl ConsumerReport {
    /// Returns `true` if the consumer intentionally does not poll: an operator has paused the consumer, or its breaker is
    /// open.
    pub fn rests(&self) -> bool {
        self.paused || self.breaker == Some(BreakerState::Open)
    }
}

/// The state of a breaker that is not closed. Stored as the name of the variant in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BreakerState {
    /// Too many messages failed. The consumer receives no messages for a while.
    Open,
    /// The consumer processes one message as a trial.
    Probing,
}

/// Serialization of a duration as a number of seconds.
mod seconds {
    use super::*;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_seconds_and_never_negative() -> Result<(), serde_json::Error> {
        #[derive(Serialize, Deserialize)]
        struct Only(#[serde(with = "seconds")] Duration);
        assert_eq!(serde_json::to_string(&Only(Duration::from_millis(90_500)))?, "90.5");
        assert_eq!(serde_json::from_str::<Only>("90")?.0, Duration::from_secs(90));
        for bad in ["-1", "1e300", "\"90s\"", "null"] {
            assert!(serde_json::from_str::<Only>(bad).is_err(), "{bad}");
        }
        Ok(())
    }
}
