//! The operator's view of a queue service: lists queues, counts their messages, and peeks at messages.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::error::QueueError;
use crate::queue::Queue;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// The message counts of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Number of messages that are ready to be received.
    pub visible: u64,
    /// Number of messages that were sent or released with a delay that has not yet passed. `None`: the service does not
    /// report the number.
    pub delayed: Option<u64>,
    /// Number of leased messages. `None`: the service does not report the number.
    pub in_flight: Option<u64>,
    /// Number of messages in the channel's dead-letter queue.
    pub dead_lettered: u64,
    /// Set if no queue has this name. The counts are then zero or `None`.
    pub missing: bool,
    /// Age of the oldest message, waiting or in flight. `None`: there is no message, or the service does not report the age
    /// (SQS).
    pub oldest_age: Option<Duration>,
}

impl Depth {
    /// Returns the number of all messages of the channel that the service reports, without those of its dead-letter queue.
    pub fn total(&self) -> u64 {
        self.visible + self.delayed.unwrap_or_default() + self.in_flight.unwrap_or_default()
    }
}

/// Progress of moving messages from one queue to another, if the service itself moves them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Approximate number of messages moved up to now, as reported by the service.
    pub moved: u64,
    /// Total number of messages to move. `None`: the service does not report the total.
    pub total: Option<u64>,
    /// Set if the task was cancelled before its end.
    pub cancelled: bool,
}

/// A queue service for operators: lists queues, counts and peeks at messages, and opens queues for moving messages.
#[async_trait]
pub trait Admin: Broker {
    /// Lists all existing queues as channels, including dead-letter queues.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn channels(&self) -> Result<Vec<Channel>, QueueError>;

    /// Returns the depth of each channel, in the order of `channels`. Each channel has its own result, so an error for one
    /// channel does not hide the others. The depth of a channel that does not exist is zero and marked as missing.
    ///
    /// # Errors
    /// [`QueueError`] if no channel can be read.
    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError>;

    /// Returns the depths of all channels, in the order of `channels`.
    ///
    /// # Errors
    /// [`QueueError`] if any channel cannot be read.
    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError> {
        self.each_depth(channels).await?.into_iter().collect()
    }

    /// Lists the channels that messages can be sent to. Callers need the list if the service would lose a message to
    /// any other channel, or would create a queue that has no consumer. `None`: no list is needed, because the service
    /// refuses to send to a missing channel.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        Ok(None)
    }

    /// Lists the exchanges that send messages to the queue of any of these channels. `None`: the service cannot list them, or
    /// the user has no permission to list them.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn exchanges_feeding(&self, channels: &[Channel]) -> Result<Option<Vec<String>>, QueueError> {
        let is_fed = |one: &Channel| channels.iter().any(|channel| channel.queue() == one.queue());
        let exchange = |one: &Channel| one.exchange().filter(|_| is_fed(one)).map(str::to_owned);
        Ok(self.destinations().await?.map(|stored| stored.iter().filter_map(exchange).collect()))
    }

    /// Opens an existing queue for moving messages between queues. Messages are received as stored: a body that is
    /// stored outside of the queue is not loaded, and an ack does not remove the body.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the queue does not exist.
    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError>;

    /// Calls `each` with every message of an existing queue, as stored, until `each` returns `Break`. Includes leased
    /// and delayed messages. Does not receive the messages, so no attempt is counted. Returns `false` without calling
    /// `each` if the service shows messages only to their receiver (SQS).
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the queue does not exist.
    async fn peek(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let _ = (channel, each);
        Ok(false)
    }

    /// Moves all messages of a dead-letter queue to another queue, as the service's own task. Moves at most
    /// `per_second` messages per second. If `per_second` is `None`, the service chooses the rate. Reports progress to
    /// `progress`. Returns when the task has ended. Cancelling `stop` cancels the task.
    ///
    /// # Errors
    /// [`QueueError`] if the task fails, or cannot be started or monitored. A service without move tasks always returns
    /// an error.
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

    /// Converts a time of this machine's clock to the service's clock, which sets the enqueue time of messages. Assumes
    /// that the clocks are equal if the difference is unknown.
    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        time
    }
}
