//! The reasons for a verdict, with human-readable messages.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::State;

/// A reason for a verdict. Serializes as its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// There is no health file. Normal within the start period.
    #[error("there is no health file at `{}`", path.display())]
    NoFile {
        /// Path of the health file.
        path: PathBuf,
    },
    /// An earlier process wrote the file. The process belonged to an earlier run of the container, or its process id
    /// has been reused. The file counts as missing.
    #[error("the health file is left over from an earlier process with pid {pid}")]
    LeftOver {
        /// Process id in the file.
        pid: u32,
    },
    /// The start period has not ended. Listed after [`Self::NoFile`] or [`Self::LeftOver`].
    #[error("the container started {} ago and has {} to start", shown(*.age), shown(*.limit))]
    Starting {
        /// Time since the start of PID 1.
        age: Duration,
        /// Duration of the start period.
        limit: Duration,
    },
    /// The start period has ended. Listed after [`Self::NoFile`] or [`Self::LeftOver`].
    #[error("the start period of {} is over: see the log of `hostler run`, and that both use the same host.health_file", shown(*.limit))]
    NotStarted {
        /// Duration of the start period.
        limit: Duration,
    },
    /// The start time of PID 1 is unknown. Listed after [`Self::NoFile`] or [`Self::LeftOver`].
    #[error("/proc does not show when the container started, so there is no start period")]
    StartUnknown,
    /// The file is locked or unreadable. The field is the error message.
    #[error("{0}")]
    Unreadable(String),
    /// A host in another container writes the file. The host in this container does not.
    #[error(
        "the health file is written by a host in another container, and not by the one that runs here (pid {pid}): \
         give each a path of its own with `host.health_file` (HOSTLER_HOST__HEALTH_FILE)"
    )]
    AnotherContainer {
        /// Process id of the host in this container.
        pid: u32,
    },
    /// The process that wrote the file has ended.
    #[error("the process that wrote the health file (pid {pid}) is gone")]
    Gone {
        /// Process id in the file.
        pid: u32,
    },
    /// The host has stopped writing the health file.
    #[error("the host has written nothing for {}; it should write every {}", shown(*.age), shown(super::TICK))]
    Stale {
        /// Time since the host's last write.
        age: Duration,
    },
    /// Another host in the same PID namespace has written this health file, but has stopped doing so. The report does
    /// not show whether the consumers of that host make progress.
    #[error(
        "another host (pid {pid}) that writes this health file has written nothing for {}: end one of the two, or give each \
         a path of its own with `host.health_file` (HOSTLER_HOST__HEALTH_FILE)",
        shown(*.age)
    )]
    OtherSilent {
        /// Process id of the other host.
        pid: u32,
        /// Time since the last known write of the other host.
        age: Duration,
    },
    /// The time of the report is in the future: the system clock was set back after the host's last write. The host's
    /// next write resolves the fault.
    #[error("the health file is {} ahead: the clock was set back, and nothing was written since", shown(*.by))]
    Ahead {
        /// Time from now to `written_at`.
        by: Duration,
    },
    /// A consumer's timestamp is in the future, so the duration of the consumer's current state is unknown.
    #[error("consumer `{consumer}`: its {} time is {} ahead of the clock", state.name(), shown(*.by))]
    ConsumerAhead {
        /// Name of the consumer.
        consumer: String,
        /// State of the consumer.
        state: State,
        /// Time from now to the timestamp.
        by: Duration,
    },
    /// A consumer has spent more than its `healthcheck_timeout` in a state without making progress.
    #[error("consumer `{consumer}` has been {} for {}; its limit is {}", state.name(), shown(*.age), shown(*.limit))]
    Stuck {
        /// Name of the consumer.
        consumer: String,
        /// State of the consumer.
        state: State,
        /// Time since the consumer entered the state. In PROCESSING: time since processing of the oldest message in
        /// flight started.
        age: Duration,
        /// The consumer's `healthcheck_timeout`.
        limit: Duration,
    },
    /// For longer than the consumer's `healthcheck_timeout`, all calls of one kind have failed. The kinds are removals,
    /// dead-letter copies, releases and lease extensions. The consumer therefore processes the same messages
    /// repeatedly.
    #[error(
        "consumer `{consumer}`: settlements or lease extensions have failed for {}, and none has succeeded; its limit is {}",
        shown(*.age), shown(*.limit)
    )]
    NotSettling {
        /// Name of the consumer.
        consumer: String,
        /// Time from the first failure to the last failure.
        age: Duration,
        /// The consumer's `healthcheck_timeout`.
        limit: Duration,
    },
    /// A consumer is LISTENING or IDLE, but no poll has completed for longer than the consumer's `healthcheck_timeout`.
    #[error(
        "consumer `{consumer}` is {} but no poll has completed for {}; its limit is {}",
        state.name(), shown(*.age), shown(*.limit)
    )]
    NotPolling {
        /// Name of the consumer.
        consumer: String,
        /// State of the consumer.
        state: State,
        /// Time since the last completed poll.
        age: Duration,
        /// The consumer's `healthcheck_timeout`.
        limit: Duration,
    },
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Formats a duration for messages: in whole seconds, or in milliseconds below one second.
fn shown(duration: Duration) -> humantime::FormattedDuration {
    let millis = duration.subsec_millis();
    let fraction = if duration.as_secs() == 0 { Duration::from_millis(millis.into()) } else { Duration::ZERO };
    humantime::format_duration(Duration::from_secs(duration.as_secs()) + fraction)
}
