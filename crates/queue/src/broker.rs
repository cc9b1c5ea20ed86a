//! A queue service as consumers and producers use it: opens channels and sends messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{QueueError, SendError};
use crate::origin::Origin;
use crate::queue::Queue;
use crate::records::Records;
use crate::request::{Request, Requested};
use crate::schedules::Schedules;
use crate::sent::Sent;
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::{Invalid, Outgoing};

/// Maximum size of a message in bytes, including attributes (SQS quota: 1 MiB).
const MAX_MESSAGE: usize = 1 << 20;

/// The channel that a consumer receives from, and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Name of the channel.
    pub channel: Channel,
    /// Set for a FIFO queue, which keeps the order of messages within a group.
    pub ordered: bool,
    /// Set to `true` to apply a FIFO queue's deduplication and throughput limit to each message group separately (SQS:
    /// high throughput). `None`: the queue's setting is left unchanged.
    pub high_throughput: Option<bool>,
    /// Filter for the messages of the exchange. Only used for a fan-out channel.
    pub filter: Filter,
    /// Maximum number of times that a message is received. If none of these deliveries is settled, the queue itself
    /// dead-letters the message. `None`: the channel has no dead-letter queue, and
    /// [`Settlement::DeadLetter`](crate::Settlement::DeadLetter) is refused.
    pub max_receives: Option<u32>,
    /// Maximum delay of messages to the channel. The queue must be set up so that it neither drops nor dead-letters a
    /// message during this delay.
    pub longest_delay: Duration,
    /// Number of messages that the service may send ahead of the receives: the consumer's slots. Used only by services
    /// that push messages.
    pub window: usize,
    /// Duration of a lease if the receive call does not specify a duration (SQS: the queue's visibility timeout).
    pub lease: Duration,
    /// Subject on which requests come, in place of the queue. Only used by services that answer requests (NATS). The channel
    /// then is only a name.
    pub subject: Option<SubjectSpec>,
    /// Tags by name, for services that have tags. The tags contain the owner and the alarm settings.
    pub tags: BTreeMap<String, String>,
}

/// A subject on which requests come, and the receivers that share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectSpec {
    /// Subject. May contain wildcards.
    pub subject: String,
    /// Name of the group of receivers. Each request comes to one of them.
    pub queue_group: String,
}

impl ChannelSpec {
    /// Creates the spec of a plain queue without a dead-letter queue, for a receiver that takes up to 64 messages at once.
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            ordered: false,
            high_throughput: None,
            filter: Filter::All,
            max_receives: None,
            longest_delay: Duration::ZERO,
            window: 64,
            lease: Duration::from_secs(30),
            subject: None,
            tags: BTreeMap::new(),
        }
    }
}

/// State of the connection to a queue service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The connection works, or the service has no connections.
    Up,
    /// The connection is lost. The driver tries to connect again.
    Down {
        /// Time at which the connection was lost.
        since: Instant,
        /// The error.
        why: String,
    },
    /// The service accepts no messages, for example because its memory is exhausted. It still delivers messages. The text
    /// is the reason that the service gave.
    Blocked(String),
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

    /// Sends a message to a subject, and waits until a receiver acknowledges it, or the retry service has stored it. By default,
    /// the service has no subjects.
    ///
    /// # Errors
    /// Nobody has the message for certain. [`QueueError::Refused`]: a receiver refused it for good.
    async fn request(&self, request: Request) -> Result<Requested, SendError> {
        let text = format!("cannot send to the subject `{}`: only NATS has subjects", request.subject);
        Err(QueueError::Refused(text).into())
    }

    /// Returns the store of schedules. By default, the service has none, and the error says what to do.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: hosts of this service cannot agree on who sends.
    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        let text = "this queue cannot keep schedules: use the embedded queue, PostgreSQL, NATS, or a FIFO queue of SQS";
        Err(QueueError::Refused(text.to_owned()))
    }

    /// Returns the store of idempotency records in the database of the queues. The acks of these queues can carry a
    /// [`Commit`](crate::Commit). By default, the service has none, and the error says what to do.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: the queues have no database of their own.
    fn records(&self) -> Result<Arc<dyn Records>, QueueError> {
        let text = "this queue keeps no idempotency records: name a store, `embedded` or `postgres`";
        Err(QueueError::Refused(text.to_owned()))
    }

    /// Checks a message that is to be sent later, without a call to the service. By default, checks the rules that all queues
    /// share, with the size limit of SQS (1 MiB).
    ///
    /// # Errors
    /// The first rule that the message violates.
    fn check(&self, channel: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        let _ = channel;
        message.validate(MAX_MESSAGE)
    }

    /// Returns the system and the address of the queue or topic that messages to the channel are sent to. Makes no call
    /// to the service, so the address may be unknown.
    fn origin(&self, channel: &Channel) -> Origin;

    /// Returns the state of the connection to the service, and its changes. By default, the state is [`Link::Up`] and never
    /// changes, for services without lasting connections.
    fn link(&self) -> watch::Receiver<Link> {
        watch::channel(Link::Up).1
    }
}
