//! Replies: messages that answer one which was received.

use std::sync::Arc;

use super::{Broker, QueueError, SendError};
use crate::channel::Channel;
use crate::message::{AttributeValue, Invalid, Message, Outgoing, TraceContext};

/// The attribute of a reply that names the message it answers.
const CORRELATION_ATTRIBUTE: &str = "correlation-id";

/// Where replies go.
#[derive(Clone)]
pub struct Replies {
    /// The service that takes them.
    pub broker: Arc<dyn Broker>,
    /// The channel.
    pub channel: Channel,
}

impl Replies {
    /// Sends the reply to `message` that so many others came before; its id. It is correlated with the message, in its
    /// trace and its FIFO group, and has the same dedupe key whenever the message is redelivered, on a channel that knows such.
    ///
    /// # Errors
    /// As [`Broker::send`].
    pub async fn send(&self, message: &Message, before: u32, mut reply: Outgoing) -> Result<String, SendError> {
        let correlation = AttributeValue::Text(message.id.clone());
        reply.attributes.insert(CORRELATION_ATTRIBUTE.to_owned(), correlation);
        if let Some(trace) = TraceContext::of(&message.attributes) {
            trace.add_to(&mut reply.attributes);
        }
        reply.group = message.group.clone();
        reply.dedupe = Some(match before {
            0 => message.id.clone(),
            more => format!("{}-{more}", message.id),
        });
        let undeduped = Outgoing { dedupe: None, ..reply.clone() };
        match self.send_one(reply).await {
            Err(SendError::Invalid(Invalid::DedupeUnsupported(_))) => self.send_one(undeduped).await,
            result => result,
        }
    }

    async fn send_one(&self, reply: Outgoing) -> Result<String, SendError> {
        let unanswered = || QueueError::Unavailable("the queue did not answer".to_owned());
        let result = self.broker.send(&self.channel, vec![reply]).await.pop();
        result.ok_or_else(unanswered)?.map(|sent| sent.id)
    }
}
