//! Sends replies: messages that answer a received message.

use std::sync::Arc;

use super::Producer;
use hostler_queue::SendError;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Message, Outgoing};

/// Name of the attribute in which a reply carries the id of the message that it answers.
pub const CORRELATION_ATTRIBUTE: &str = "correlation-id";

/// A sender of replies to the messages of a channel.
#[derive(Debug, Clone)]
pub struct Replies {
    /// Producer that sends the replies.
    pub producer: Producer,
    /// Channel to which replies are sent.
    pub channel: Channel,
    /// Name of the channel from which the answered messages were received.
    pub from: Arc<str>,
}

impl Replies {
    /// Sends a reply to `message`, and returns the id of the reply. `before`: number of replies already sent to the
    /// same message.
    ///
    /// The reply carries the id of the message and has the same FIFO group. Unless the reply has its own trace context,
    /// it continues the trace of the message. If the channel supports dedupe keys, the reply gets one. If the message
    /// is redelivered and answered again, the new reply gets the same key.
    ///
    /// # Errors
    /// The same as those of [`Broker::send`](hostler_queue::Broker::send).
    pub async fn send(&self, message: &Message, before: u32, reply: Outgoing) -> Result<String, SendError> {
        let reply = self.compose(message, before, reply);
        self.producer.send_deduped_where_possible(&self.channel, reply).await
    }

    /// Returns a reply to `message` as [`Self::send`] sends it.
    pub fn compose(&self, message: &Message, before: u32, mut reply: Outgoing) -> Outgoing {
        let correlation = AttributeValue::Text(message.id.clone());
        reply.attributes.insert(CORRELATION_ATTRIBUTE.to_owned(), correlation);
        reply.trace = reply.trace.or_else(|| message.trace.clone());
        reply.group = message.group.clone();
        // Copies of a message in several queues of an exchange may share an id. Because the key contains the queue's
        // name, each copy gets its own reply.
        let queue = self.from.rsplit('.').next().unwrap_or_default();
        let answers = format!("{queue}-{}", message.id);
        reply.dedupe = Some(match before {
            0 => answers,
            more => format!("{answers}-{more}"),
        });
        reply
    }
}
