//! The health file: the host's report on its consumers, and the verdict that the container runtime reads.
//!
//! | file | job |
//! |---|---|
//! | this one | the map, and the contents of the file |
//! | `clock` | the host's stamps, which survive a step of the system clock |
//! | `lock` | the lock beside the file, waited for with a limit |
//! | `write` | replaces the file |
//! | `read` | reads it; an error says why it cannot |
//! | `pauses` | the consumers that an operator has paused: files beside it |
//! | `rival` | notices another host that writes the same file |
//! | `process` | looks a process up: is it alive, and since when |
//! | `namespace` | detects a file that belongs to another container's host |
//! | `verdict` | the pure decision: healthy, starting or unhealthy |
//!
//! The host writes on every transition and at least once per [`TICK`]. This crate depends on no other part of hostler but the
//! shared types and starts no runtime: the check has to cost less than 10 ms and 10 MiB.

mod clock;
mod lock;
mod namespace;
mod pauses;
pub mod process;
mod read;
mod rival;
mod verdict;
mod write;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use hostler_types::{State, Timestamp};

pub use clock::Clock;
pub use namespace::{host_beside, read_in_turn};
pub use pauses::{PauseError, Pauses};
pub use read::{LOCK_WAIT, MAX_BYTES, ReadError, Why, read};
pub use rival::Rivals;
pub use verdict::{Reason, StartPeriod, Status, Verdict, another_container, other_writer, verdict};
pub use write::{HealthFile, WRITE_LOCK_WAIT, WriteError};

/// The version of the file's format that this build writes, and the only one it reads.
pub const SCHEMA: u64 = 1;

/// The longest time the host may let pass between two writes.
pub const TICK: Duration = Duration::from_secs(2);

/// The age at which a file is stale: five ticks, so that a busy machine may miss a few.
pub const STALE_AFTER: Duration = Duration::from_secs(10);

/// The whole file, as `healthcheck/health.schema.json` describes it to other programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: u64,
    /// The host's process id, as its own PID namespace counts.
    pub pid: u32,
    /// The PID namespace of `pid`: the machine's boot id and the namespace's number. Left out where `/proc` does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// The start of that process, by the clock that also gave `written_at`.
    pub started_at: Timestamp,
    /// The time of this report.
    pub written_at: Timestamp,
    /// One entry per configured consumer.
    pub consumers: Vec<ConsumerReport>,
}

/// The report on one consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConsumerReport {
    /// Its name in the config.
    pub name: String,
    /// Its current state.
    pub state: State,
    /// The time at which it entered that state.
    pub transition_timestamp: Timestamp,
    /// The longest stay in a monitored state, and the longest time without a completed poll; in seconds in the file. For a
    /// draining consumer, at least the time that the drain may take.
    #[serde(with = "seconds")]
    pub healthcheck_timeout: Duration,
    /// The time of the last successful poll, empty or not. Where polling was held back (all slots taken, the rate limit, a
    /// pause), the time at which it could begin again; while it is held back, the time of the report. A failed poll does not
    /// count. `None` before the first.
    pub last_poll_at: Option<Timestamp>,
    /// Messages being processed now.
    pub in_flight: u32,
    /// The start of the oldest of those; `None` while there are none.
    pub oldest_started_at: Option<Timestamp>,
    /// Messages finished since the process started, with any outcome.
    pub processed: u64,
    /// Those of them that failed: their handler failed, trapped or timed out, or they went to the dead-letter queue. A retry or
    /// delay that the handler asked for, a lost lease and a shutdown do not count.
    pub failed: u64,
    /// Set while an operator has paused it, so that it does not poll. Left out of the file otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The state of its breaker. Left out of the file while the breaker is closed, or there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
    /// The kind of settlement or lease extension that has failed for the longest. Left out of the file from the first success of
    /// that kind on, or once no call of it has failed for as long as an unsettled message takes to be redelivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settling_fails: Option<SettlingFails>,
    /// The last failures that `failed` counts, latest first; a few at most. Left out of the file while there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_failures: Vec<FailureReport>,
}

/// Consecutive failures of one kind of call: removals, dead-letter copies, releases or lease extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettlingFails {
    /// The time of the first failure.
    pub since: Timestamp,
    /// The time of the last failure.
    pub last: Timestamp,
}

/// A message that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The time at which its processing ended.
    pub at: Timestamp,
    /// Its id.
    pub message_id: String,
    /// The outcome, as the log names it.
    pub outcome: String,
    /// The host's action on the message, as the log names it.
    pub disposition: String,
    /// The reason, shortened; empty if unknown.
    pub reason: String,
}

impl ConsumerReport {
    /// Returns true if it deliberately does not poll: it is paused, or its breaker is open.
    pub fn rests(&self) -> bool {
        self.paused || self.breaker == Some(BreakerState::Open)
    }
}

/// A breaker that is not closed; the file has the words in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BreakerState {
    /// Too much failed: the consumer receives nothing for a while.
    Open,
    /// One message is being tried.
    Probing,
}

/// A duration as a number of seconds.
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
