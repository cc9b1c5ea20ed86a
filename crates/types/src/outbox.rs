//! Messages of a handler that wait until the handler has succeeded.

use std::any::Any;
use std::fmt::Debug;

use crate::channel::Channel;
use crate::message::{Invalid, Outgoing};

/// Takes the messages that a handler sends while it processes a message. They are sent once the handler has succeeded, and dropped
/// if it fails. No function waits.
pub trait Outbox: Any + Debug + Send + Sync {
    /// Takes a message. Returns a text in place of its id, which it gets when it is sent.
    ///
    /// # Errors
    /// The message was not taken.
    fn push(&self, channel: &Channel, message: Outgoing) -> Result<String, OutboxError>;
}

/// The reason why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The message is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The messages of this attempt are too large together.
    #[error(
        "the messages that one attempt sends may have {0} bytes together, and this one is beyond: send references to the data"
    )]
    Full(usize),
    /// The handler has already ended.
    #[error("the handler has already ended")]
    Closed,
}
