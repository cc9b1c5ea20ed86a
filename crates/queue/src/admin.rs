//! A queue service for operators: lists queues, counts their messages and shows them.

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
    /// Ready to be received.
    pub visible: u64,
    /// Sent or released with a delay that has not passed.
    pub delayed: u64,
    /// Leased.
    pub in_flight: u64,
    /// In its dead-letter queue.
    pub dead_lettered: u64,
    /// Set if no queue has this name; the other counts are then zero.
    pub missing: bool,
    /// Age of the oldest message, waiting or in flight; `None` also where the service does not report it (SQS).
    pub oldest_age: Option<Duration>,
}

/// Progress of a move by the service's own task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Messages moved so far, by the service's approximate count.
    pub moved: u64,
    /// Messages to move in all, where the service reports it.
    pub total: Option<u64>,
    /// Set if the task was cancelled before its end.
    pub cancelled: bool,
}

/// A queue service for operators: lists queues, counts and shows messages, and opens queues in order to move messages.
#[async_trait]
pub trait Admin: Broker {
    /// Lists every existing queue, dead-letter queues included, as channels.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn channels(&self) -> Result<Vec<Channel>, QueueError>;

    /// Returns the depth of each of these channels, in their order. Each has its own result, so one that cannot be read
    /// hides no other. The depth of a channel that does not exist is empty and marked as missing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked at all.
    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError>;

    /// Returns the depths of all these channels, in their order.
    ///
    /// # Errors
    /// [`QueueError`] when one of them cannot be read.
    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError> {
        self.each_depth(channels).await?.into_iter().collect()
    }

    /// Lists the channels that can be sent to, on a service where a send to any other would be lost or would create a
    /// queue that nobody consumes. `None`: the service itself refuses such a send.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        Ok(None)
    }

    /// Opens an existing queue as it is stored, in order to move messages between queues. Bodies that lie elsewhere
    /// stay there, even after an ack.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no such queue.
    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError>;

    /// Shows every message of an existing queue as it is stored, leased and delayed ones too, until `each` breaks.
    /// Receives nothing and counts no attempt. Returns `false`, having shown none, on a service that shows messages
    /// only to their receiver (SQS).
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no such queue.
    async fn peek(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let _ = (channel, each);
        Ok(false)
    }

    /// Moves all messages of a dead-letter queue to another queue by the service's own task. Moves at most `per_second`
    /// messages a second (`None`: the service decides) and reports progress to `progress`. Returns when the task ends;
    /// cancelling `stop` cancels the task.
    ///
    /// # Errors
    /// [`QueueError`] if the task cannot be started or followed, or fails; always on a service without such a task.
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

    /// Converts a time of our clock to the clock that stamps messages, as far as the service has shown it. Never
    /// earlier than `time`.
    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        time
    }
}
