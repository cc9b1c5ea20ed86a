//! What the lifecycle hooks speak about.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::Failure;

/// How the processing of a message ended, for `#[message_end]`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The message's id.
    pub message_id: String,
    /// Which delivery of the message it was; 1 is the first.
    pub attempt: u32,
    /// ack, reply, retry, delay, dead-letter, failed or, for hooks in a component of their own, trapped.
    pub outcome: String,
    /// Why, if there is a reason.
    pub reason: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

impl Report {
    /// A report of this outcome, for tests. Set what else it is to have: its fields are public.
    pub fn test(outcome: impl Into<String>) -> Self {
        Self { message_id: "test".into(), attempt: 1, outcome: outcome.into(), reason: None, duration: Duration::ZERO }
    }
}

/// The state of a consumer, as in the health file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The handler is being loaded.
    Initializing,
    /// It is loaded.
    Initialized,
    /// It waits for the first message.
    Listening,
    /// At least one message is being processed.
    Processing,
    /// It waits for the next message.
    Idle,
    /// It drains.
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

/// What a function under `#[message_start]` may return: `()`, or a `Result` of it with [`Failure`], any error that is
/// `Send` and `Sync`, or a text.
///
/// The message fails with the error's text: the contract knows no more, so a retry, a delay or a dead letter is the
/// handler's to ask for.
#[diagnostic::on_unimplemented(
    message = "the hook `message_start` cannot return `{Self}`",
    label = "returns `{Self}`",
    note = "return `()`, or `Result<(), E>` with `Failure` or another error"
)]
pub trait Started {
    /// Whether the handler may begin.
    ///
    /// # Errors
    /// Why it may not.
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
