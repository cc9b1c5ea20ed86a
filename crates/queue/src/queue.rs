//! One queue as its consumer sees it: its deliveries, and what one call can take.

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
