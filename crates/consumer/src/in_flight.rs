//! Messages in flight, as an operator sees them, and the requests that an operator makes about them. No I/O.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::Instant;

/// Names a delivery within its consumer. No other delivery has the same name while the process lives, so a request about a
/// delivery never reaches a redelivery of its message.
pub type DeliveryId = u64;

/// The stage of a message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its handler runs.
    Running,
    /// Its handler, or the hook that decides for it, is being stopped.
    Stopping,
    /// Its processing timeout has passed, and the hook decides about it.
    Deciding,
}

impl Stage {
    /// Its name for operators.
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
    /// Its delivery.
    pub delivery: DeliveryId,
    /// Its message's id.
    pub message_id: String,
    /// The number of this delivery, as the queue counts.
    pub attempt: u32,
    /// Its stage.
    pub stage: Stage,
    /// The time since its handler started.
    pub age: Duration,
    /// The time left until its processing timeout.
    pub time_left: Duration,
    /// The time left until its lease ends, unless it is extended before.
    pub lease_left: Duration,
}

/// The consumer's answer to a request to cancel a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// Its handler is being stopped. Unless it has decided just before, the message fails.
    Stopping,
    /// It was being stopped already, for this or another reason.
    AlreadyStopping,
    /// Its processing timeout has passed, and the hook decides about it.
    Deciding,
    /// It is not in flight: its handler has ended.
    Ended,
}

/// A request, with the way that its answer goes.
#[derive(Debug)]
pub enum Request {
    /// Lists the messages in flight.
    List(SyncSender<Vec<InFlight>>),
    /// Cancels a delivery.
    Cancel {
        /// The delivery.
        delivery: DeliveryId,
        /// The time after which nobody waits for the answer, so that nothing is cancelled.
        until: Instant,
        /// Takes the answer.
        answer: SyncSender<Cancellation>,
    },
}
