//! Data for the commands `hostler inflight` and `hostler cancel`: messages in flight, and requests about them. No I/O.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::Instant;

/// Identifies a delivery within its consumer. No id is reused during the life of the process. Therefore, a request
/// about a delivery never affects a redelivery of its message.
pub type DeliveryId = u64;

/// Stage of a message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The handler is running.
    Running,
    /// The handler or the processing-timeout hook is being stopped.
    Stopping,
    /// The processing timeout has passed, and the processing-timeout hook is running.
    Deciding,
}

impl Stage {
    /// Returns the name of the stage as shown to operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Deciding => "deciding",
        }
    }
}

/// A message in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// Id of the delivery.
    pub delivery: DeliveryId,
    /// Id of the message.
    pub message_id: String,
    /// Number of this delivery attempt, as counted by the queue.
    pub attempt: u32,
    /// Stage of the message.
    pub stage: Stage,
    /// Time since the handler started.
    pub age: Duration,
    /// Time until the processing timeout. Zero after the timeout.
    pub time_left: Duration,
    /// Time until the lease ends if the lease is not extended. Zero after the end of the lease.
    pub lease_left: Duration,
}

/// The consumer's answer to a cancel request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// The handler is being stopped. The message fails, unless the handler ended with an outcome before it was stopped.
    Stopping,
    /// The handler was already being stopped, by an earlier cancel request or for another reason.
    AlreadyStopping,
    /// The processing timeout has passed, and the processing-timeout hook is running.
    Deciding,
    /// The delivery is not in flight, because its handler has ended or has not started.
    Ended,
}

/// Operator's request, with the channel for the answer.
#[derive(Debug)]
pub enum Request {
    /// List the messages in flight.
    List(SyncSender<Vec<InFlight>>),
    /// Cancel a delivery.
    Cancel {
        /// Id of the delivery to cancel.
        delivery: DeliveryId,
        /// Time at which the operator stops waiting for the answer. If the consumer handles the request after this
        /// time, the consumer cancels nothing.
        until: Instant,
        /// Channel for the answer.
        answer: SyncSender<Cancellation>,
    },
}
