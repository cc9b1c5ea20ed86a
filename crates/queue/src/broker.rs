//! A queue service as consumers and producers use it: it opens channels and takes messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{QueueError, SendError};
use crate::origin::Origin;
use crate::queue::Queue;
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;

/// What a consumer needs of its channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Its name.
    pub channel: Channel,
    /// FIFO: order within a group.
    pub ordered: bool,
    /// Whether deduplication and throughput limit of a FIFO queue go by message group (SQS: high throughput); `None`: as it is.
    pub high_throughput: Option<bool>,
    /// Which of the exchange's messages reach it; only for a fan-out channel.
    pub filter: Filter,
    /// After how many receives without a settlement the queue itself dead-letters a message; `None`: it has no
    /// dead-letter queue, and a [`Settlement::DeadLetter`] is refused.
    pub max_receives: Option<u32>,
    /// The lease of a receive that does not ask for one of its own (SQS: the queue's visibility timeout).
    pub lease: Duration,
    /// Who owns it, and what its alarms are: tags by name, on services that have tags.
    pub tags: BTreeMap<String, String>,
}

impl ChannelSpec {
    /// A plain queue without a dead-letter queue.
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            ordered: false,
            high_throughput: None,
            filter: Filter::All,
            max_receives: None,
            lease: Duration::from_secs(30),
            tags: BTreeMap::new(),
        }
    }
}

/// What became of a message that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The message's id; the same in every queue it reached, but for SNS, whose queues give it ids of their own.
    pub id: String,
    /// How many queues it reached: 1 on a plain channel, any number on an exchange; 0 when it was a duplicate. `None`
    /// where the service does not tell (SNS, and a FIFO queue with a dedupe key).
    pub queues: Option<usize>,
}

/// A queue service for consumers and producers: opens channels and takes messages.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// The queue of this channel, with its dead-letter queue and subscription as `spec` wants them.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names what is missing and the cure.
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError>;

    /// Sends messages to a channel. To a fan-out channel means: to its exchange. An `Ok` is durable.
    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>>;

    /// What the place is to others that a channel's messages go to, as far as it is known without asking for it.
    fn origin(&self, channel: &Channel) -> Origin;
}
