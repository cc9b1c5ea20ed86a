//! Errors of a queue service, distinguished by the caller's next step.

use hostler_types::channel::Channel;
use hostler_types::message::Invalid;

/// An error of the queue service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A temporary failure: throttling, a network error, a lock. The caller should retry with backoff.
    #[error("{0}")]
    Unavailable(String),
    /// A permanent failure: a missing resource, a missing permission, or corrupt data. The text contains the fix for
    /// the operator.
    #[error("{0}")]
    Refused(String),
}

impl QueueError {
    /// Returns the name of the variant, for the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Refused(_) => "refused",
        }
    }
}

/// Returns the error for a queue that does not exist.
pub fn no_queue(channel: &Channel) -> QueueError {
    QueueError::Refused(format!("there is no queue `{channel}`: `hostler queues` lists the queues"))
}

/// The reason why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The message is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The queue service failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}
