//! A queue service as an operator uses it: what there is, how full it is, and what lies in it.

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

/// A queue service for operators: lists queues, counts and shows messages, and opens queues in order to move messages.
#[async_trait]
pub trait Admin: Broker {
    /// Every queue that exists, dead-letter queues included, as channels.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn channels(&self) -> Result<Vec<Channel>, QueueError>;

    /// The depth of each of these channels by itself, in their order, so that one which cannot be read hides no other. A channel
    /// that does not exist is empty, and said to be missing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked at all.
    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError>;

    /// The depths of all these channels.
    ///
    /// # Errors
    /// [`QueueError`] when one of them cannot be read.
    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError> {
        self.each_depth(channels).await?.into_iter().collect()
    }

    /// The channels that messages can be sent to, where a send to any other would be lost or make a queue that nobody consumes.
    /// `None`: the service itself refuses such a send.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        Ok(None)
    }

    /// An existing queue as it is stored: bodies that lie elsewhere stay there, and an ack leaves them there. For moving
    /// messages from one queue to another.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no such queue.
    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError>;

    /// Shows every message of an existing queue as it is stored, leased and delayed ones too, until `each` says enough. Nothing
    /// is received, and no attempt counts. Answers `false`, having shown none, on a service that shows messages only to who
    /// receives them (SQS).
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

    /// A time of ours by the clock that stamps messages, and no earlier: as far as the service has told it.
    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        time
    }
}
