//! Replies: messages that answer a received message.

use std::sync::Arc;

use super::Producer;
use hostler_queue::SendError;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Message, Outgoing};

/// The attribute of a reply that holds the id of the answered message.
const CORRELATION_ATTRIBUTE: &str = "correlation-id";

/// The sender of replies to a channel's messages.
#[derive(Debug, Clone)]
pub struct Replies {
    /// The producer that sends them.
    pub producer: Producer,
    /// The channel of the replies.
    pub channel: Channel,
    /// The channel of the answered messages.
    pub from: Arc<str>,
}

impl Replies {
    /// Sends a reply to `message`, after `before` others to it, and returns its id. The reply is correlated with the
    /// message and in its FIFO group. It is in the message's trace unless it has its own. On a channel with dedupe keys
    /// it has the same key each time the message is redelivered.
    ///
    /// # Errors
    /// As [`Broker::send`](hostler_queue::Broker::send).
    pub async fn send(&self, message: &Message, before: u32, mut reply: Outgoing) -> Result<String, SendError> {
        let correlation = AttributeValue::Text(message.id.clone());
        reply.attributes.insert(CORRELATION_ATTRIBUTE.to_owned(), correlation);
        reply.trace = reply.trace.or_else(|| message.trace.clone());
        reply.group = message.group.clone();
        // Copies of a message in several queues of an exchange may share their id, and each gets its own reply.
        let queue = self.from.rsplit('.').next().unwrap_or_default();
        let answers = format!("{queue}-{}", message.id);
        reply.dedupe = Some(match before {
            0 => answers,
            more => format!("{answers}-{more}"),
        });
        self.producer.send_deduped_where_possible(&self.channel, reply).await
    }
}
