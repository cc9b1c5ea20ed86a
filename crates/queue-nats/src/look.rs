//! Looks at queues without receiving from them: counts, names, and stored messages.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostler_queue::{Depth, QueueError, no_queue};
use hostler_types::channel::Channel;
use hostler_types::message::Message;
use serde_json::Value;

use super::Service;
use super::api;
use super::envelope::Mail;
use super::forward::pending;
use super::names::CONSUMER;
use super::raw::{self, RawMessage};
use super::stamp::Stamp;

/// Callback for each message.
type Each<'a> = &'a mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send);

impl Service {
    /// Returns the exchanges that feed each queue.
    pub(crate) async fn feeds(&self) -> Result<BTreeMap<String, Vec<String>>, QueueError> {
        Ok(self.survey().await?.1)
    }

    /// Returns the queues, and the exchanges that feed each of them.
    async fn survey(&self) -> Result<(Vec<Channel>, BTreeMap<String, Vec<String>>), QueueError> {
        let (mut queues, mut feeds) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for stream in api::streams(&self.line).await? {
            let config = &stream["config"];
            let name = config["name"].as_str().unwrap_or_default();
            if let Some(exchange) = self.names.exchange_of(name) {
                for queue in api::consumers(&self.line, name).await? {
                    feeds.entry(queue).or_default().push(exchange.clone());
                }
            } else if let Some(queue) = self.names.queue_of(name).filter(|_| config["retention"] == "workqueue") {
                queues.push(queue);
            }
        }
        Ok((queues, feeds))
    }

    /// Returns all queues. A queue that an exchange feeds is named with it.
    pub(crate) async fn queues(&self) -> Result<Vec<Channel>, QueueError> {
        let (queues, feeds) = self.survey().await?;
        let channel = |queue: Channel| {
            let exchanges = feeds.get(queue.queue()).into_iter().flatten();
            let known = |exchange: &&String| {
                self.options.consumers.iter().any(|known| known.channel.exchange() == Some(exchange.as_str()))
            };
            let exchange = exchanges.clone().find(known).or_else(|| exchanges.clone().next());
            let named = exchange.and_then(|exchange| format!("{exchange}.{queue}").parse().ok());
            named.unwrap_or(queue)
        };
        Ok(queues.into_iter().map(channel).collect())
    }

    /// Returns the number of messages that exchanges have for a queue.
    async fn on_the_way(&self, queue: &str, exchanges: &[String]) -> Result<u64, QueueError> {
        let mut sum = 0;
        for exchange in exchanges {
            let info = api::consumer(&self.line, &self.names.exchange(exchange), queue).await?;
            sum += info.map_or(0, |info| pending(&info));
        }
        Ok(sum)
    }

    /// Counts the messages of a queue.
    pub(crate) async fn depth(
        &self,
        channel: &Channel,
        feeds: &BTreeMap<String, Vec<String>>,
    ) -> Result<Depth, QueueError> {
        let (queue, stream) = (channel.queue(), self.names.queue(channel.queue()));
        let dead_lettered = match channel.of_dead_letters() {
            Some(_) => 0,
            None => {
                let stream = self.names.queue(&channel.dead_letter_queue());
                api::stream(&self.line, &stream).await?.map_or(0, |info| messages(&info))
            }
        };
        let Some(info) = api::stream(&self.line, &stream).await? else {
            return Ok(Depth { missing: true, dead_lettered, ..Depth::default() });
        };
        let coming = self.on_the_way(queue, feeds.get(queue).map_or(&[], Vec::as_slice)).await?;
        let receiver = api::consumer(&self.line, &stream, CONSUMER).await?;
        let delivered = receiver.map_or(0, |receiver| receiver["num_ack_pending"].as_u64().unwrap_or_default());
        // The server counts as delivered what waits here, and what went back and no one has asked for since.
        let visible_here = self.visible(&stream).min(delivered);
        let stored = messages(&info);
        Ok(Depth {
            visible: stored.saturating_sub(delivered) + visible_here + coming,
            delayed: None,
            in_flight: Some(delivered - visible_here),
            dead_lettered,
            missing: false,
            oldest_age: oldest_age(&info, SystemTime::now()),
        })
    }

    /// Shows all messages of a queue, those on their way from exchanges last.
    pub(crate) async fn look(&self, channel: &Channel, each: Each<'_>) -> Result<(), QueueError> {
        let (queue, stream) = (channel.queue(), self.names.queue(channel.queue()));
        if !self.declarer.has_stream(&stream).await? {
            return Err(no_queue(channel));
        }
        if self.look_from(&stream, 1, None, each).await?.is_break() {
            return Ok(());
        }
        let feeds = self.feeds().await?;
        for exchange in feeds.get(queue).into_iter().flatten() {
            let stream = self.names.exchange(exchange);
            let Some(info) = api::consumer(&self.line, &stream, queue).await? else { continue };
            if pending(&info) == 0 {
                continue;
            }
            let from = info["ack_floor"]["stream_seq"].as_u64().unwrap_or_default() + 1;
            if self.look_from(&stream, from, Some((exchange, queue)), each).await?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Shows the messages of a stream from a sequence number on. `feed`: the exchange whose stream it is, and the queue for which its
    /// messages are shown.
    async fn look_from(
        &self,
        stream: &str,
        mut from: u64,
        feed: Option<(&str, &str)>,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, QueueError> {
        while let Some(stored) = raw::next(&self.line, stream, from, ">").await? {
            from = stored.sequence.saturating_add(1);
            let message = self.shown(&stored, feed.map(|(exchange, _)| exchange));
            let is_refused = feed.is_some_and(|(_, queue)| {
                let known = self.options.consumers.iter().find(|known| known.channel.queue() == queue);
                known.is_some_and(|known| !known.filter.passes(message.routing_key.as_deref()))
            });
            if !is_refused && each(&message).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn shown(&self, stored: &RawMessage, exchange: Option<&str>) -> std::sync::Arc<Message> {
        let stamp = Stamp { sequence: stored.sequence, deliveries: 1, stored_at: stored.stored_at };
        let message = stored.readable();
        let subject = message.subject.clone();
        Mail::read(&self.names, message, subject, stamp, exchange, false, SystemTime::now()).message
    }
}

fn messages(info: &Value) -> u64 {
    info["state"]["messages"].as_u64().unwrap_or_default()
}

/// Returns the age of the first stored message. `None`: there is none.
fn oldest_age(info: &Value, now: SystemTime) -> Option<Duration> {
    if messages(info) == 0 {
        return None;
    }
    let nanos = api::nanos(info["state"]["first_ts"].as_str()?)?;
    Some(now.duration_since(UNIX_EPOCH + Duration::from_nanos(nanos)).unwrap_or_default())
}
