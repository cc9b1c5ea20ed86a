//! Publishes messages, and waits until the server has confirmed that each is stored in its queues.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::QueueError;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::connection::Line;
use super::envelope::Parcel;
use super::fault::queue_error;

/// Maximum time to publish a batch.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routed {
    /// At least one queue has stored the message.
    Stored,
    /// No queue is bound for the message, so it is nowhere.
    Nowhere,
}

/// Publishes through one channel of the line.
pub(super) struct Publisher {
    line: Arc<Line>,
    channel: Mutex<Option<Channel>>,
}

impl Publisher {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self { line, channel: Mutex::default() }
    }

    /// Publishes messages. Returns the result of each, in their order. A message is stored durably if its result is
    /// [`Routed::Stored`]. After an error, the message may have been stored.
    pub(super) async fn publish(&self, parcels: Vec<Parcel>) -> Vec<Result<Routed, QueueError>> {
        let deadline = Instant::now() + PATIENCE;
        let channel = match self.channel(deadline).await {
            Ok(channel) => channel,
            Err(error) => return vec![Err(error); parcels.len()],
        };
        let mut confirms = Vec::new();
        for parcel in parcels {
            confirms.push(timeout_at(deadline, send(&channel, parcel)).await);
        }
        let mut results = Vec::new();
        for confirm in confirms {
            let result = match confirm {
                Ok(Ok(confirm)) => timeout_at(deadline, confirm).await,
                Ok(Err(error)) => Ok(Err(error)),
                Err(late) => Err(late),
            };
            results.push(match result {
                Ok(result) => routed(result),
                Err(_) => Err(late(&self.line)),
            });
        }
        results
    }

    /// Returns the channel. Opens another if there is none, or if the last one was closed.
    async fn channel(&self, deadline: Instant) -> Result<Channel, QueueError> {
        let mut held = self.channel.lock().await;
        if let Some(channel) = held.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let channel = self.line.channel(deadline).await?;
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.map_err(|error| queue_error("cannot publish with confirms", &error))?;
        Ok(held.insert(channel).clone())
    }
}

async fn send(channel: &Channel, parcel: Parcel) -> lapin::Result<PublisherConfirm> {
    let Parcel { exchange, key, properties, body } = parcel;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    channel.basic_publish(exchange.as_str().into(), key.as_str().into(), options, &body, properties).await
}

fn routed(result: lapin::Result<Confirmation>) -> Result<Routed, QueueError> {
    match result {
        Ok(Confirmation::Ack(None)) => Ok(Routed::Stored),
        Ok(Confirmation::Ack(Some(_))) => Ok(Routed::Nowhere),
        Ok(Confirmation::Nack(_)) => Err(QueueError::Unavailable(
            "RabbitMQ did not store the message: a queue is full or has no leader".to_owned(),
        )),
        Ok(Confirmation::NotRequested) => {
            Err(QueueError::Unavailable("RabbitMQ did not confirm the message".to_owned()))
        }
        Err(error) => Err(queue_error("cannot publish", &error)),
    }
}

fn late(line: &Line) -> QueueError {
    let why = match &*line.link().borrow() {
        hostler_queue::Link::Blocked(why) => format!("it accepts no messages: {why}"),
        hostler_queue::Link::Down { why, .. } => why.clone(),
        hostler_queue::Link::Up => "the server is slow".to_owned(),
    };
    QueueError::Unavailable(format!("RabbitMQ did not confirm a message within {PATIENCE:?}: {why}"))
}
