//! One queue for its consumer: deliveries, and the limits of calls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::QueueError;
use crate::origin::Origin;
use crate::receipt::{LeaseHandle, Receipt};
use crate::settlement::{LeaseError, Settlement, Unsettled};
use hostler_types::message::Message;

/// One receive of a message.
#[derive(Debug)]
pub struct Delivery {
    /// The message, unchanged since the producer sent it.
    pub message: Arc<Message>,
    /// The right to settle the delivery.
    pub receipt: Receipt,
    /// The receive count of this message, by the queue; 1 is the first. Receives before its time ([`Self::not_before`]) do
    /// not count.
    pub attempt: u32,
    /// Start of the lease by this process's monotonic clock. Never later than the queue's own start of the lease. A driver
    /// that does not know the start uses the time before its call.
    pub leased_at: Instant,
    /// The time before which its handler must not start, by our own monotonic clock. Only a driver whose service cannot hold
    /// a message back for as long as its sender asked sets it. A message that comes before this time is given back until
    /// then. The time is never further ahead than one release can hide a message: the next delivery names the rest. `None` on
    /// an ordered queue, where a message that waits would hold up its group.
    pub not_before: Option<Instant>,
}

/// The limits of a driver's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of messages that one receive returns.
    pub receive_batch: usize,
    /// Maximum number of entries in one extend or settle call.
    pub settle_batch: usize,
    /// Maximum time that settlements wait for further settlements to share a call. Zero for drivers with cheap calls.
    pub settle_linger: Duration,
    /// Maximum time that one receive waits for a message.
    pub max_wait: Duration,
    /// Maximum time that a message can stay leased, counted from its receive.
    pub max_lease: Duration,
    /// Maximum number of receives that run at the same time.
    pub parallel_receives: usize,
}

/// The parameters of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Maximum number of messages to return: 1 to [`Limits::receive_batch`].
    pub max: usize,
    /// Maximum wait for the first message: at most [`Limits::max_wait`].
    pub wait: Duration,
    /// Lease of the received messages. The lease starts no later than the receive returns.
    pub lease: Duration,
}

/// One queue, for its consumer.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Returns the limits of the queue's calls.
    fn limits(&self) -> Limits;

    /// Returns `true` if the queue keeps the order of messages within a group.
    fn is_ordered(&self) -> bool;

    /// Returns the system and the address of the queue.
    fn origin(&self) -> Origin;

    /// Receives up to `max` messages. Waits up to `wait` for the first message. Returns an empty list if no message
    /// arrived.
    ///
    /// The future must be awaited to its end, because the received messages are leased to this process. To end a call
    /// early, cancel `stop`. The call then returns as soon as the driver is sure that no message is still arriving, and
    /// returns the messages that were already received.
    ///
    /// # Errors
    /// [`QueueError`]: no message was received, or received messages become visible again when their leases end.
    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError>;

    /// Extends leases. Each lease then ends `by` from now. The result of an entry is `Ok` only if the queue confirmed the
    /// extension.
    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>>;

    /// Performs settlements. See [`Settlement`].
    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>>;

    /// Returns the message with its body. Loads a body that is stored outside of the message ([`Message::claim`]).
    ///
    /// # Errors
    /// The body cannot be loaded. The error is a text for the log. The failure affects only this message.
    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        Ok(Arc::clone(message))
    }
}
