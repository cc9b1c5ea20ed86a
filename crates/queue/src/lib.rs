//! The queue contract: what a consumer may ask of any queue, and what every driver must answer.
//!
//! A driver implements [`Broker`] (the whole service: opening channels, sending, counting) and [`Queue`] (one
//! queue as its consumer sees it). Both the drivers and the fake pass the conformance suite in `tests/conformance`.
//!
//! Semantics that hold for every driver:
//!
//! * **At least once.** A message is delivered until it is acked or dead-lettered; a duplicate can happen, a loss cannot.
//! * **Lease.** A received message is invisible to other receivers for the lease asked for. When that passes
//!   without an extension, it becomes visible again and the old receipt is dead: extending or settling with it
//!   answers `Lost` and changes nothing.
//! * **Attempts** are counted by the queue at each receive; the first is 1.
//! * **Order.** In an ordered queue, a group's messages are handed out in the order they were sent, and none is
//!   handed out while an earlier one of its group is leased or waits for its release to pass. Only within one receive
//!   may several of a group come at once, in their order, where the service does so (SQS).
//! * **Independence.** In a batch call, every entry has its own result, in the order of the entries.

mod estate;
pub mod fake;
mod origin;
pub mod parallel;
mod provision;

pub use estate::{
    Body, Disposal, HeldQueue, HeldTopic, Inventory, Listing, QueueUse, Removal, StoredBodies, Unread, tag,
};
pub use origin::Origin;
pub use provision::{Action, Change, Finding};

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use hostler_types::channel::{Channel, Filter};
use hostler_types::message::{AttributeValue, Attributes, Invalid, Message, Outgoing};

/// How long a dedupe key is remembered (AWS: the 5-minute deduplication interval).
pub const DEDUPE_WINDOW: Duration = Duration::from_secs(5 * 60);

/// The group of messages that were sent to an ordered channel without one.
pub const DEFAULT_GROUP: &str = "default";

/// One message as received once.
#[derive(Debug)]
pub struct Delivery {
    /// What was sent.
    pub message: Arc<Message>,
    /// The right to settle it.
    pub receipt: Receipt,
    /// Which receive of this message it is, by the queue's own count; 1 is the first.
    pub attempt: u32,
    /// No later than the moment from which the queue counts the lease, on our own monotonic clock. A driver that cannot
    /// tell takes the moment before its call.
    pub leased_at: Instant,
}

/// The right to settle one delivery. It cannot be cloned and settling consumes it, so nothing is settled twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt(LeaseHandle);

impl Receipt {
    /// A receipt from a driver's own text for it.
    pub fn new(handle: impl Into<Arc<str>>) -> Self {
        Self(LeaseHandle(handle.into()))
    }

    /// What is needed to extend the lease, and no more.
    pub fn lease(&self) -> LeaseHandle {
        self.0.clone()
    }

    /// The driver's own text for it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Names a lease in order to extend it; it does not allow settling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseHandle(Arc<str>);

impl LeaseHandle {
    /// The driver's own text for it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How one delivery ends on the queue.
#[derive(Debug)]
pub enum Settlement {
    /// The message is done: remove it.
    Ack(Receipt),
    /// Visible again after this long; zero means at once (AWS limit: 12 h from the receive).
    Release(Receipt, Duration),
    /// The same, but the attempt is not to count. A queue that can take its count back does; on others this is a release.
    GiveBack(Receipt, Duration),
    /// A durable copy goes to the dead-letter queue, then the original is removed; never the other way round.
    /// The copy keeps body, attributes, group and routing key, and gains `hostler-dead-letter-reason`,
    /// `hostler-source` (channel) and `hostler-attempts` as attributes where there is room.
    DeadLetter {
        /// The right to settle it.
        receipt: Receipt,
        /// What is copied.
        message: Arc<Message>,
        /// Why, for the person who will look at the dead-letter queue.
        reason: String,
    },
}

impl Settlement {
    /// The receipt that it consumes.
    pub fn receipt(&self) -> &Receipt {
        match self {
            Self::Ack(receipt)
            | Self::Release(receipt, _)
            | Self::GiveBack(receipt, _)
            | Self::DeadLetter { receipt, .. } => receipt,
        }
    }

    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::Release(..) | Self::GiveBack(..) => "release",
            Self::DeadLetter { .. } => "dead-letter",
        }
    }
}

/// The attribute of a dead-lettered message that says why.
pub const REASON_ATTRIBUTE: &str = "hostler-dead-letter-reason";
/// The attribute of a dead-lettered message that names the channel it came from.
pub const SOURCE_ATTRIBUTE: &str = "hostler-source";
/// The attribute of a dead-lettered message that counts its deliveries.
pub const ATTEMPTS_ATTRIBUTE: &str = "hostler-attempts";
/// The attribute of a requeued message that holds the id which it had before it was first moved.
pub const ORIGINAL_ID_ATTRIBUTE: &str = "hostler-original-id";

/// The longest reason that a dead-lettered message carries, in bytes; what is beyond is cut. As much as is kept of a handler's,
/// and more, so that what says that it is cut is not.
pub const MAX_REASON: usize = 17 * 1024;

/// The attributes of a message's copy in the dead-letter queue: the original ones, and what tells its story as far
/// as there is room for `most` in all. What an earlier dead-lettering left is replaced.
pub fn dead_letter_attributes(
    original: &Attributes,
    reason: &str,
    source: &str,
    attempts: u32,
    most: usize,
) -> Attributes {
    let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
    let story = [
        (REASON_ATTRIBUTE, reason.to_owned()),
        (SOURCE_ATTRIBUTE, source.to_owned()),
        (ATTEMPTS_ATTRIBUTE, attempts.to_string()),
    ];
    let mut attributes = original.clone();
    for (name, text) in story {
        if attributes.len() < most || attributes.contains_key(name) {
            attributes.insert(name.to_owned(), AttributeValue::Text(text));
        }
    }
    attributes
}

/// A settlement that did not happen, given back so that it can be tried again.
#[derive(Debug)]
pub struct Unsettled {
    /// What was asked for.
    pub settlement: Settlement,
    /// What to do next.
    pub error: LeaseError,
}

/// Why a lease was not extended, or a delivery not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease is no longer ours: the message is visible again, taken by another, or gone. Do nothing more.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The queue did not do it this time. Try again while the lease lasts.
    #[error("{0}")]
    Retry(String),
    /// The queue cannot do this, however often it is asked; nothing has changed and the lease still holds.
    #[error("{0}")]
    Refused(String),
}

impl LeaseError {
    /// Which of them, in a word: the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost(_) => "lease-lost",
            Self::Retry(_) => "unavailable",
            Self::Refused(_) => "refused",
        }
    }

    /// Whether trying again is in vain.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Refused(_))
    }
}

/// Why the queue could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// It may work later: throttling, network, a lock. Back off and try again.
    #[error("{0}")]
    Unavailable(String),
    /// It will not work until a person changes something: missing, denied, corrupt. The text says what to do.
    #[error("{0}")]
    Refused(String),
}

impl QueueError {
    /// Which of the two, in a word: the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Refused(_) => "refused",
        }
    }
}

/// The answer to a question for a queue that does not exist.
pub fn no_queue(channel: &Channel) -> QueueError {
    QueueError::Refused(format!("there is no queue `{channel}`: see `hostler queues`"))
}

/// Why one message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The message itself is at fault.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The queue is at fault.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// What a driver can take in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most messages one receive brings.
    pub receive_batch: usize,
    /// The most entries in one extend or settle call.
    pub settle_batch: usize,
    /// How long to gather settlements for one call while more are expected; zero where a call is cheap.
    pub settle_linger: Duration,
    /// The longest time one receive waits for a message.
    pub max_wait: Duration,
    /// How long a message can stay leased at most, counted from its receive.
    pub max_lease: Duration,
    /// How many receives may be under way at once.
    pub parallel_receives: usize,
}

/// One receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// The most messages wanted; 1 to [`Limits::receive_batch`].
    pub max: usize,
    /// How long to wait for the first message; at most [`Limits::max_wait`].
    pub wait: Duration,
    /// How long the messages are leased, counted from no later than the answer.
    pub lease: Duration,
}

/// One queue, as its consumer sees it.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// What one call can take.
    fn limits(&self) -> Limits;

    /// Whether it keeps the order within groups.
    fn is_ordered(&self) -> bool;

    /// What it is to others.
    fn origin(&self) -> Origin;

    /// Takes up to `max` messages, waiting up to `wait` for the first; empty when none came.
    ///
    /// A call must be awaited to its end, because what it brings is leased to us. To shorten it, cancel `stop`:
    /// the call then ends as soon as the driver can make sure that no message is on its way, and still answers
    /// what it has already taken.
    ///
    /// # Errors
    /// [`QueueError`]; nothing was taken, or what was taken becomes visible when its lease passes.
    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError>;

    /// Extends leases so that each ends `by` from now. An entry answers `Ok` only if the queue said so for it.
    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>>;

    /// Carries settlements out; see [`Settlement`].
    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>>;

    /// The message with its body, if that lies elsewhere ([`Message::claim`]); otherwise the message as it is.
    ///
    /// # Errors
    /// A text for the log: the body cannot be had. It is this message's failure and no other's.
    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        Ok(Arc::clone(message))
    }
}

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

/// How full a channel is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Ready to be received.
    pub visible: u64,
    /// Sent or released with a delay that has not passed.
    pub delayed: u64,
    /// Leased.
    pub in_flight: u64,
    /// In its dead-letter queue.
    pub dead_lettered: u64,
    /// There is no queue of this name, so all other counts of it are zero.
    pub missing: bool,
    /// Age of the oldest message that waits or is in flight; `None` also where the service does not tell (SQS).
    pub oldest_age: Option<Duration>,
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

/// How far a move by the service's own task has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Messages moved so far, by the service's own and approximate count.
    pub moved: u64,
    /// How many there are to move in all, where the service tells.
    pub total: Option<u64>,
    /// It was cancelled before its end.
    pub cancelled: bool,
}

/// A queue service: opens channels, takes messages, counts.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// The queue of this channel, with its dead-letter queue and subscription as `spec` wants them.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names what is missing and the cure.
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError>;

    /// Makes what a channel lacks, and changes nothing that is there: for who is not its consumer.
    ///
    /// # Errors
    /// As [`Broker::open`].
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.open(spec).await.map(drop)
    }

    /// A time of ours by the clock that stamps messages, and no earlier: as far as the service has told it.
    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        time
    }

    /// What the place is to others that a channel's messages go to, as far as it is known without asking for it.
    fn origin(&self, channel: &Channel) -> Origin;

    /// Sends messages to a channel. To a fan-out channel means: to its exchange. An `Ok` is durable.
    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>>;

    /// The channels that messages can be sent to, where a send to any other would be lost or make a queue that nobody consumes.
    /// `None`: the service itself refuses such a send.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        Ok(None)
    }

    /// Those of these channels that lead nowhere, as their queue or exchange is not there, each with the change that would make it.
    /// Empty on a service where a send makes what is missing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let _ = channels;
        Ok(Vec::new())
    }

    /// Makes one of [`Self::missing_destinations`]: a plain queue, or an exchange, with nothing but its name.
    ///
    /// # Errors
    /// [`QueueError`] when it cannot be made.
    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let _ = channel;
        Ok(())
    }

    /// How full each of these channels is, in their order; a channel that does not exist is empty, and said to be missing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError>;

    /// The same of each channel by itself, so that one which cannot be read hides no other.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked at all.
    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        Ok(self.depths(channels).await?.into_iter().map(Ok).collect())
    }

    /// Every queue that exists, dead-letter queues included, as channels.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn channels(&self) -> Result<Vec<Channel>, QueueError>;

    /// An existing queue as it is stored: bodies that lie elsewhere stay there, and an ack leaves them there. For moving
    /// messages from one queue to another.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no such queue.
    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError>;

    /// Shows every message of an existing queue as it is stored, leased and delayed ones too, until `each` says enough. It
    /// is a look: nothing is received, no attempt counts. Answers `false`, having shown none, on a service that shows
    /// messages only to who receives them (SQS).
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no such queue.
    async fn look(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let _ = (channel, each);
        Ok(false)
    }

    /// Moves all messages of a dead-letter queue to another queue by the service's own task, at most `per_second` of them
    /// a second (`None`: as fast as the service likes), and tells `progress` how far it has come. It ends with the task;
    /// cancelling `stop` cancels the task.
    ///
    /// # Errors
    /// [`QueueError`] if the task cannot be started or followed, or failed, and always on a service that has none.
    async fn redrive(
        &self,
        from: &Channel,
        to: &Channel,
        per_second: Option<u32>,
        stop: &CancellationToken,
        progress: &mut (dyn FnMut(Redriven) + Send),
    ) -> Result<Redriven, QueueError> {
        let _ = (from, to, per_second, stop, progress);
        Err(QueueError::Refused("only SQS has a move task of its own; leave --native out".into()))
    }

    /// What would have to change for the service to be as `wanted` says; changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let existing = self.channels().await?;
        let missing = wanted.iter().filter(|spec| !existing.iter().any(|one| one.queue() == spec.channel.queue()));
        Ok(missing.map(|spec| Change::create(format!("queue {}", spec.channel))).collect())
    }

    /// Makes the service as `wanted` says, and calls `done` for each change as it is made. Asked twice, it changes nothing
    /// the second time.
    ///
    /// # Errors
    /// [`QueueError`] at the first change that fails; asked again, it goes on from there.
    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let changes = self.plan(wanted).await?;
        for spec in wanted {
            self.open(spec).await?;
        }
        for change in &changes {
            done(change);
        }
        Ok(())
    }

    /// What is wrong with a channel for a consumer such as `spec`, with a cure each; empty: it can run. Changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let _ = spec;
        Ok(Vec::new())
    }
}
