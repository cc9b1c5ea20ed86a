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
use hostler_types::job::JobContext;
use hostler_types::message::Message;

/// A received message, with the data that belong to this one delivery.
#[derive(Debug)]
pub struct Delivery {
    /// The message, unchanged since the producer sent it.
    pub message: Arc<Message>,
    /// The right to settle the delivery.
    pub receipt: Receipt,
    /// Delivery number of the message, counted by the queue from 1. Deliveries before the message's time
    /// ([`Self::not_before`]) do not count.
    pub attempt: u32,
    /// Start of the lease by this process's monotonic clock. Never later than the start of the lease by the queue's
    /// clock. A driver that does not know the start of the lease uses the time immediately before the driver called the
    /// service.
    pub leased_at: Instant,
    /// Time before which the handler must not start, by this process's monotonic clock. `None`: the handler may start
    /// at once.
    ///
    /// A driver sets the time only if its service cannot delay a message for as long as the sender requested. The
    /// consumer then releases the message until this time. A release cannot hide a message for longer than the service
    /// allows. If the requested delay is longer, the time is the end of the longest release, and the next delivery has
    /// a later time.
    ///
    /// Always `None` on an ordered queue, because a waiting message would block its group.
    pub not_before: Option<Instant>,
    /// The job whose item the message is. The consumer passes it to the handler, whose requests the driver commits with the
    /// ack. `None`: the queue has no jobs.
    pub job: Option<Arc<dyn JobContext>>,
}

/// The limits of a driver's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of messages that one receive call returns.
    pub receive_batch: usize,
    /// Maximum number of entries in one extend or settle call.
    pub settle_batch: usize,
    /// Maximum time to wait for further settlements before a settle call. The settlements then share the call. The time
    /// is zero for drivers with cheap calls.
    pub settle_linger: Duration,
    /// Maximum time that one receive call waits for a message.
    pub max_wait: Duration,
    /// Maximum total duration of a message's lease with all extensions, counted from the receive call.
    pub max_lease: Duration,
    /// Maximum number of receive calls that run at the same time.
    pub parallel_receives: usize,
    /// Maximum delay of a release. The caller shortens a longer delay to this limit.
    pub max_release: Duration,
}

/// The parameters of a receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Maximum number of messages to return: 1 to [`Limits::receive_batch`].
    pub max: usize,
    /// Maximum wait for the first message: at most [`Limits::max_wait`].
    pub wait: Duration,
    /// Duration of the received messages' leases. A lease starts at the latest when the receive call returns.
    pub lease: Duration,
}

/// One queue, for its consumer.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Returns the limits of the queue's calls.
    fn limits(&self) -> Limits;

    /// Returns `true` if the queue keeps the order of messages within a group.
    fn is_ordered(&self) -> bool;

    /// Returns `true` if several messages of the queue may have the same id, because producers choose it. Otherwise, two deliveries
    /// with the same id are of one message.
    fn ids_repeat(&self) -> bool {
        false
    }

    /// Returns `true` if the service decides what follows from a failure: another attempt, when, or none. The consumer then
    /// reports each end of a handler ([`Receipt::report`](crate::Receipt::report)) in place of applying its own escalation
    /// policy: a result with [`Settlement::Ack`], and a failure with [`Settlement::Release`], whose delay the driver ignores.
    /// [`Settlement::DeadLetter`] is a failure after which the service makes no other attempt.
    fn decides_retries(&self) -> bool {
        false
    }

    /// Returns the duration of a received lease, and of each extension of it. `asked`: the duration that the receive call asked
    /// for. A service that sets the duration itself returns another.
    fn duration_of(&self, lease: &LeaseHandle, asked: Duration) -> Duration {
        let _ = lease;
        asked
    }

    /// Returns the system and the address of the queue.
    fn origin(&self) -> Origin;

    /// Receives up to `max` messages. Waits up to `wait` for the first message. Returns an empty list if no message
    /// arrived.
    ///
    /// The future must be awaited to its end, because the received messages are leased to this process. To end a call
    /// early, cancel `stop`. The call then returns the messages that were already received, as soon as the driver is
    /// sure that no further message is arriving.
    ///
    /// # Errors
    /// [`QueueError`] if no message was received, or if messages were received but cannot be returned. Messages that
    /// were received but not returned become visible again when their leases end.
    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError>;

    /// Extends leases. Each extended lease ends when the duration `by` has passed from now. The result of a lease is
    /// `Ok` only if the queue confirmed the extension.
    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>>;

    /// Performs settlements. See [`Settlement`].
    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>>;

    /// Announces that nothing will be received for a while, because of a pause, an open breaker, a drain or a rate limit.
    /// A driver whose service sends messages ahead ([`ChannelSpec::window`](crate::ChannelSpec::window)) gives back the
    /// messages that no receive has returned. Other receivers can then have them. Leases stay valid. The next receive ends
    /// the rest, so neither it nor another call of this method may begin before this call has ended. There is one exception:
    /// a receive whose `stop` is already cancelled ends no rest, and may begin at any time. A receive of one message after a
    /// rest, such as a breaker's probe, brings no others along: they would have to go back at the next rest, which a service
    /// may count as a delivery. It may bring others if many messages come first that cannot be handed out. The default does
    /// nothing, for services that send only what a receive asks for.
    async fn rest(&self) {}

    /// Waits until the service takes leases away before their ends, and returns these leases. For example, RabbitMQ takes
    /// back all messages of a lost connection. The caller must stop the handlers, because other receivers can have the
    /// messages. Returns at least one lease, and no lease twice. The future can be dropped at any time without losing leases.
    /// By default, waits forever, for services whose leases last until their ends.
    async fn taken_back(&self) -> Vec<LeaseHandle> {
        std::future::pending().await
    }

    /// Returns the message with its body. Loads a body that is stored outside of the message ([`Message::claim`]).
    ///
    /// # Errors
    /// The body cannot be loaded. The error is a human-readable reason for the log. The failure affects only this
    /// message.
    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        Ok(Arc::clone(message))
    }
}
