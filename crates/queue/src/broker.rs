//! A queue service for consumers and producers: opens channels and sends messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{QueueError, SendError};
use crate::origin::Origin;
use crate::queue::Queue;
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;

/// The channel that a consumer asks for, and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Its name.
    pub channel: Channel,
    /// FIFO: keeps the order within a group.
    pub ordered: bool,
    /// Applies deduplication and the throughput limit of a FIFO queue per message group (SQS: high throughput); `None`:
    /// left unchanged.
    pub high_throughput: Option<bool>,
    /// The filter for messages of the exchange; only for a fan-out channel.
    pub filter: Filter,
    /// Receives without a settlement after which the queue itself dead-letters a message. `None`: the channel has no
    /// dead-letter queue, and a [`Settlement::DeadLetter`](crate::Settlement::DeadLetter) is refused.
    pub max_receives: Option<u32>,
    /// The lease of a receive that does not ask for one of its own (SQS: the queue's visibility timeout).
    pub lease: Duration,
    /// Tags by name, on services that have tags: the owner, and the alarm settings.
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

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The message's id. It is the same in every queue that the message reached, except behind SNS, where each queue
    /// assigns its own.
    pub id: String,
    /// The number of queues reached: 1 on a plain channel, any number on an exchange, 0 for a duplicate. `None` where
    /// the service does not report it (SNS, and a FIFO queue with a dedupe key).
    pub queues: Option<usize>,
}

/// A queue service for consumers and producers: opens channels and sends messages.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Opens the queue of this channel, with the dead-letter queue and subscription that `spec` asks for.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names what is missing and how to fix it.
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError>;

    /// Sends messages to a channel; for a fan-out channel, to its exchange. An `Ok` is durable.
    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>>;

    /// Returns the system and address of the channel's destination, as far as they are known without a call to the
    /// service.
    fn origin(&self, channel: &Channel) -> Origin;
}
