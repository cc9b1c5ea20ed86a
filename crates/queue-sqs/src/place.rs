//! Queues and topics, and the target of a channel's messages. No I/O.

use std::sync::Arc;
use std::time::Duration;

/// A queue or a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// URL of a queue, or ARN of a topic.
    pub(super) address: Arc<str>,
    /// Name on AWS.
    pub(super) name: Arc<str>,
    /// Set if the queue or topic is FIFO.
    pub(super) ordered: bool,
    /// Maximum size of a message in bytes.
    pub(super) max_message: usize,
    /// Number of times that a message can be received before the queue dead-letters it. `None`: the queue dead-letters
    /// no messages, or this is a topic.
    pub(super) max_receives: Option<u32>,
    /// Retention of messages in the queue. `None`: not reported, or this is a topic.
    pub(super) keeps: Option<Duration>,
}

/// Target of a channel's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Queue(Place),
    Topic(Place),
}

/// Returns a queue for tests. The queue is FIFO if its name ends with `.fifo`, otherwise standard.
#[cfg(test)]
pub(super) fn example(name: &str) -> Place {
    Place {
        address: format!("http://sqs/{name}").into(),
        name: name.into(),
        ordered: name.ends_with(".fifo"),
        max_message: 1000,
        max_receives: None,
        keeps: None,
    }
}

impl Target {
    pub(super) fn place(&self) -> &Place {
        match self {
            Self::Queue(place) | Self::Topic(place) => place,
        }
    }
}
