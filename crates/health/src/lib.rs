//! The health file: what the host tells about its consumers, and the verdict that the container runtime reads.
//!
//! | file | job |
//! |---|---|
//! | this one | the map, and what the file says |
//! | `clock` | the host's stamps, which survive a step of the system clock |
//! | `lock` | the lock beside the file, waited for with a limit |
//! | `write` | replaces the file |
//! | `read` | reads it, or says why not |
//! | `pauses` | which consumers an operator has paused: files beside it |
//! | `rival` | notices another host that writes the same file |
//! | `process` | whether a process lives, and since when |
//! | `namespace` | whether the file is of another container's host |
//! | `verdict` | the pure decision: healthy, starting or unhealthy |
//!
//! The host writes on every transition and at least once per [`TICK`]. Nothing here knows the rest of the crate, and
//! nothing starts a runtime: the check has to cost less than 10 ms and 10 MiB.

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

/// A file older than this is nobody's pulse: five ticks, so that a busy machine may miss a few.
pub const STALE_AFTER: Duration = Duration::from_secs(10);

/// The whole file. `healthcheck/health.schema.json` describes it to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: u64,
    /// The host's process id, as its own PID namespace counts.
    pub pid: u32,
    /// Names that namespace: the machine's boot and the namespace's number. Left out where `/proc` does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// When that process started, by the clock that also gave `written_at`.
    pub started_at: Timestamp,
    /// When this report was written.
    pub written_at: Timestamp,
    /// One entry per configured consumer.
    pub consumers: Vec<ConsumerReport>,
}

/// What the file says about one consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConsumerReport {
    /// Its name in the config.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// When it entered that state.
    pub transition_timestamp: Timestamp,
    /// The longest stay in a monitored state, and the longest time without a completed poll; seconds in the file. Of
    /// one that drains, at least as long as it may.
    #[serde(with = "seconds")]
    pub healthcheck_timeout: Duration,
    /// When a poll last succeeded, empty or not; or when one could begin again after none was to, because all slots were
    /// taken, the rate limit let none begin, or receiving paused. While none is to begin, the time of the report. A failed
    /// poll does not count. None before the first.
    pub last_poll_at: Option<Timestamp>,
    /// Messages being processed now.
    pub in_flight: u32,
    /// When the oldest of those started. None while there are none.
    pub oldest_started_at: Option<Timestamp>,
    /// Messages finished since the process started, whatever their outcome.
    pub processed: u64,
    /// Those of them that failed: their handler failed, trapped or timed out, or they went to the dead-letter queue. A retry or
    /// a delay that the handler asked for, a lost lease and a shutdown do not count.
    pub failed: u64,
    /// An operator has paused it, so it does not poll. Left out of the file unless it is so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// What its breaker does. Left out of the file while there is none, or it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
    /// The removals, dead-letter copies, releases or lease extensions that fail, whichever do for the longest. Left out of the file from the first
    /// success of that kind on, or once none has failed for as long as a message that was not settled takes to come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settling_fails: Option<SettlingFails>,
    /// The last of those that `failed` counts, the latest first; a few at most. Left out of the file while there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_failures: Vec<FailureReport>,
}

/// Calls of one kind (removals, dead-letter copies, releases, lease extensions) that fail, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettlingFails {
    /// When the first failed.
    pub since: Timestamp,
    /// When the last failed.
    pub last: Timestamp,
}

/// A message that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureReport {
    /// When it was over.
    pub at: Timestamp,
    /// Its id.
    pub message_id: String,
    /// What the handler did, as the log names it.
    pub outcome: String,
    /// What became of the message, as the log names it.
    pub disposition: String,
    /// Why, cut short; empty where nothing is known.
    pub reason: String,
}

impl ConsumerReport {
    /// Whether it does not poll because it is not to.
    pub fn rests(&self) -> bool {
        self.paused || self.breaker == Some(BreakerState::Open)
    }
}

/// A breaker that is not closed; the file has the words in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BreakerState {
    /// Too much failed: nothing is received for a while.
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
