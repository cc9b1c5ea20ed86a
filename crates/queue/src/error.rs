//! Errors of a queue service, split by what the caller does next.

use hostler_types::channel::Channel;
use hostler_types::message::Invalid;

/// An error of the queue service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A failure that may pass: throttling, network, a lock. Back off and try again.
    #[error("{0}")]
    Unavailable(String),
    /// A failure that lasts until a person changes something: missing, denied, corrupt. The text says what to do.
    #[error("{0}")]
    Refused(String),
}

impl QueueError {
    /// Names the variant in one word, for the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Refused(_) => "refused",
        }
    }
}

/// Returns the error for a queue that does not exist.
pub fn no_queue(channel: &Channel) -> QueueError {
    QueueError::Refused(format!("there is no queue `{channel}`: see `hostler queues`"))
}

/// The reason that one message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The message itself is at fault.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The queue is at fault.
    #[error(transparent)]
    Queue(#[from] QueueError),
}
