//! The view of consumers and producers on a queue service: opens channels and sends messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{QueueError, SendError};
use crate::origin::Origin;
use crate::queue::Queue;
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;

/// The channel that a consumer receives from, and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Name of the channel.
    pub channel: Channel,
    /// Set for a FIFO queue, which keeps the order of messages within a group.
    pub ordered: bool,
    /// Set to apply deduplication and the throughput limit of a FIFO queue per message group (SQS: high throughput).
    /// `None`: the queue's setting is left unchanged.
    pub high_throughput: Option<bool>,
    /// Filter for the messages of the exchange. Only used for a fan-out channel.
    pub filter: Filter,
    /// Maximum number of receives of a message. The queue itself dead-letters a message that has not been settled by then.
    /// `None`: the channel has no dead-letter queue, and [`Settlement::DeadLetter`](crate::Settlement::DeadLetter) is
    /// refused.
    pub max_receives: Option<u32>,
    /// The longest delay that messages are sent with. A queue that is set up for it neither drops nor dead-letters a message
    /// that waits for so long.
    pub longest_delay: Duration,
    /// Lease of receives that do not specify a lease (SQS: the queue's visibility timeout).
    pub lease: Duration,
    /// Tags by name, for services that have tags. The tags contain the owner and the alarm settings.
    pub tags: BTreeMap<String, String>,
}

impl ChannelSpec {
    /// Creates the spec of a plain queue without a dead-letter queue.
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            ordered: false,
            high_throughput: None,
            filter: Filter::All,
            max_receives: None,
            longest_delay: Duration::ZERO,
            lease: Duration::from_secs(30),
            tags: BTreeMap::new(),
        }
    }
}

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Id of the message. All queues that the message reached use the same id, except behind SNS, where each queue assigns
    /// its own id.
    pub id: String,
    /// Number of queues that the message reached: 1 on a plain channel, any number on an exchange, 0 for a duplicate.
    /// `None`: the service does not report the number (SNS, and a FIFO queue with a deduplication key).
    pub queues: Option<usize>,
}

/// A queue service for consumers and producers: opens channels and sends messages.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Opens the queue of a channel, with the dead-letter queue and the subscription that `spec` specifies.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names the missing resource and the fix.
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError>;

    /// Sends messages to a channel. Messages to a fan-out channel are sent to its exchange. A message is durable if its
    /// result is `Ok`.
    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>>;

    /// Returns the system and the address of the destination that a send to the channel uses. Makes no call to the service,
    /// so the address may be unknown.
    fn origin(&self, channel: &Channel) -> Origin;
}
