//! One queue for its consumer: its deliveries, and the limits of a call.

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
    /// The message as sent.
    pub message: Arc<Message>,
    /// The right to settle it.
    pub receipt: Receipt,
    /// The receive count of this message, by the queue; 1 is the first.
    pub attempt: u32,
    /// The start of the lease by our own monotonic clock, never later than the queue's own start. A driver that cannot
    /// tell uses the moment before its call.
    pub leased_at: Instant,
}

/// The limits of a driver's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most messages that one receive returns.
    pub receive_batch: usize,
    /// The most entries in one extend or settle call.
    pub settle_batch: usize,
    /// The time to gather settlements for one call while more are expected; zero where a call is cheap.
    pub settle_linger: Duration,
    /// The longest time one receive waits for a message.
    pub max_wait: Duration,
    /// The longest time that a message can stay leased, counted from its receive.
    pub max_lease: Duration,
    /// The most receives under way at once.
    pub parallel_receives: usize,
}

/// The parameters of one receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// The most messages wanted; 1 to [`Limits::receive_batch`].
    pub max: usize,
    /// The time to wait for the first message; at most [`Limits::max_wait`].
    pub wait: Duration,
    /// The lease of the messages. It starts no later than the answer.
    pub lease: Duration,
}

/// One queue, for its consumer.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Returns the limits of a call.
    fn limits(&self) -> Limits;

    /// Reports `true` if the queue keeps the order within groups.
    fn is_ordered(&self) -> bool;

    /// Returns the queue's system and address.
    fn origin(&self) -> Origin;

    /// Takes up to `max` messages, waiting up to `wait` for the first. Returns an empty list if none came.
    ///
    /// Await a call to its end: the messages that it brings are leased to us. To shorten it, cancel `stop`. The call
    /// then ends as soon as the driver is sure that no message is on its way, and still returns those already taken.
    ///
    /// # Errors
    /// [`QueueError`]: nothing was taken, or what was taken becomes visible when its lease ends.
    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError>;

    /// Extends leases so that each ends `by` from now. An entry is `Ok` only if the queue confirmed it.
    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>>;

    /// Carries settlements out; see [`Settlement`].
    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>>;

    /// Returns the message with its body, loading the body if it lies elsewhere ([`Message::claim`]).
    ///
    /// # Errors
    /// A text for the log: the body cannot be loaded. The failure is of this message alone.
    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        Ok(Arc::clone(message))
    }
}
