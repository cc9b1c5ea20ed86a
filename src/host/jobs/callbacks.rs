//! Callbacks to channels: sends them by the queue driver of the config.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::host::driver;
use hostler_config::Config;
use hostler_jobs::callbacks::{Bytes, ChannelError, ChannelSender};
use hostler_queue::{Broker, QueueError, SendError};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;

/// Sends messages to channels. Connects to the queue when the first callback is due, so that a service without such callbacks
/// needs no queue.
pub(super) struct QueueSender {
    config: Config,
    broker: OnceCell<Arc<dyn Broker>>,
}

impl QueueSender {
    pub(super) fn new(config: Config) -> Self {
        Self { config, broker: OnceCell::new() }
    }

    async fn broker(&self) -> Result<&Arc<dyn Broker>, QueueError> {
        let connect = || async {
            let broker: Arc<dyn Broker> = driver(&self.config).connect(&self.config).await?;
            Ok(broker)
        };
        self.broker.get_or_try_init(connect).await
    }

    async fn deliver(&self, channel: &Channel, event_id: &str, body: &[u8]) -> Result<(), SendError> {
        let message = Outgoing { body: body.to_vec(), dedupe: Some(event_id.to_owned()), ..Outgoing::default() };
        let sent = self.broker().await?.send(channel, vec![message]).await;
        let lost = || QueueError::Unavailable("the queue gave no answer".to_owned()).into();
        sent.into_iter().next().unwrap_or_else(|| Err(lost())).map(drop)
    }
}

#[async_trait]
impl ChannelSender for QueueSender {
    async fn send(&self, channel: &str, event_id: &str, body: Bytes) -> Result<(), ChannelError> {
        let parsed = channel.parse::<Channel>().map_err(|_| ChannelError::Refused)?;
        let Err(error) = self.deliver(&parsed, event_id, &body).await else { return Ok(()) };
        tracing::warn!(channel, event = event_id, %error, "the queue did not take a callback");
        Err(match error {
            SendError::Invalid(_) => ChannelError::Refused,
            // A missing queue or permission can be added, and the callback is tried for a day.
            SendError::Queue(_) => ChannelError::Unavailable,
        })
    }
}
