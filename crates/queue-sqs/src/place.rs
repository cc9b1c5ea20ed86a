//! Queues and topics, and which of them a channel's messages go to. No I/O.

use std::sync::Arc;

/// A queue or a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// A queue's URL, or a topic's ARN.
    pub(super) address: Arc<str>,
    /// Its name on AWS.
    pub(super) name: Arc<str>,
    /// Whether it is FIFO.
    pub(super) ordered: bool,
    /// The largest message that it takes, in bytes.
    pub(super) max_message: usize,
}

/// Where a channel's messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Queue(Place),
    Topic(Place),
}

impl Target {
    pub(super) fn place(&self) -> &Place {
        match self {
            Self::Queue(place) | Self::Topic(place) => place,
        }
    }
}
