//! Replies: messages that answer one which was received.

use std::sync::Arc;

use super::Producer;
use hostler_queue::SendError;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Message, Outgoing};

/// The attribute of a reply that names the message it answers.
const CORRELATION_ATTRIBUTE: &str = "correlation-id";

/// Where replies go.
#[derive(Debug, Clone)]
pub struct Replies {
    /// What sends them.
    pub producer: Producer,
    /// The channel.
    pub channel: Channel,
    /// The channel whose messages they answer.
    pub from: Arc<str>,
}

impl Replies {
    /// Sends the reply to `message` that so many others came before; its id. It is correlated with the message, in its FIFO
    /// group, in its trace unless it has one already, and has the same dedupe key whenever the message is redelivered, on a
    /// channel that knows such.
    ///
    /// # Errors
    /// As [`Broker::send`](hostler_queue::Broker::send).
    pub async fn send(&self, message: &Message, before: u32, mut reply: Outgoing) -> Result<String, SendError> {
        let correlation = AttributeValue::Text(message.id.clone());
        reply.attributes.insert(CORRELATION_ATTRIBUTE.to_owned(), correlation);
        reply.trace = reply.trace.or_else(|| message.trace.clone());
        reply.group = message.group.clone();
        // Copies of a message in several queues of an exchange may have the same id, and each is answered.
        let queue = self.from.rsplit('.').next().unwrap_or_default();
        let answers = format!("{queue}-{}", message.id);
        reply.dedupe = Some(match before {
            0 => answers,
            more => format!("{answers}-{more}"),
        });
        self.producer.send_deduped_where_possible(&self.channel, reply).await
    }
}
