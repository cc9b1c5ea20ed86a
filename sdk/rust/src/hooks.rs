//! Types of the lifecycle hooks.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::Failure;

/// Result of processing a message, for `#[message_end]`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Id of the message.
    pub message_id: String,
    /// Number of the delivery, counted by the queue. The first is 1.
    pub attempt: u32,
    /// ack, reply, retry, delay, dead-letter or failed. If the hooks are in a separate component, also trapped.
    pub outcome: String,
    /// Reason for the outcome, if any.
    pub reason: Option<String>,
    /// Duration of the processing.
    pub duration: Duration,
}

impl Report {
    /// Creates a report with this outcome, for tests. To change other values, set the public fields.
    pub fn test(outcome: impl Into<String>) -> Self {
        Self { message_id: "test".into(), attempt: 1, outcome: outcome.into(), reason: None, duration: Duration::ZERO }
    }
}

/// The state of a consumer, as in the health file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The handler is being loaded.
    Initializing,
    /// The handler is loaded.
    Initialized,
    /// The consumer waits for the first message.
    Listening,
    /// At least one message is being processed.
    Processing,
    /// The consumer waits for the next message.
    Idle,
    /// The consumer drains.
    Exiting,
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Initializing => "initializing",
            Self::Initialized => "initialized",
            Self::Listening => "listening",
            Self::Processing => "processing",
            Self::Idle => "idle",
            Self::Exiting => "exiting",
        })
    }
}

/// Values that a function with `#[message_start]` may return: `()`, or a `Result` of `()`. The error may be a [`Failure`], any
/// error that is `Send` and `Sync`, or a text.
///
/// On an error, the message fails with the error's text. The contract of this hook supports only a text. Therefore, only the
/// handler can request a retry, a delay or a dead letter.
#[diagnostic::on_unimplemented(
    message = "the hook `message_start` cannot return `{Self}`",
    label = "returns `{Self}`",
    note = "return `()`, or `Result<(), E>` with `Failure` or another error"
)]
pub trait Started {
    /// Converts the value to permission for the handler to start, or to a failure.
    ///
    /// # Errors
    /// The hook refused the message.
    fn started(self) -> Result<(), Failure>;
}

impl Started for () {
    fn started(self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> Started for Result<(), E> {
    fn started(self) -> Result<(), Failure> {
        self.map_err(Failure::error)
    }
}
