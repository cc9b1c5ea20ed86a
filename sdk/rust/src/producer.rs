//! Sending messages from a handler.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::{Attribute, Value};

/// A message to send to a channel. The consumer's `allow.send` must name the channel.
///
/// ```
/// use std::time::Duration;
/// use hostler_guest::{Failure, Message, Outcome, Outgoing, handler};
///
/// #[handler]
/// fn handle(message: Message) -> Result<Outcome, Failure> {
///     Outgoing::to("reminders", message.body)
///         .attribute("locale", "de")
///         .delay(Duration::from_secs(60))
///         .send()?;
///     Ok(Outcome::Ack)
/// }
///
/// # fn main() {
/// assert_eq!(handle(Message::test("pay")), Ok(Outcome::Ack));
/// assert_eq!(hostler_guest::testing::take_sent()[0].channel, "reminders");
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "nothing is sent until `send` is called"]
#[non_exhaustive]
pub struct Outgoing {
    /// Channel to send to: `<queue>` or `<exchange>`.
    pub channel: String,
    /// The body.
    pub body: Vec<u8>,
    /// Attributes to send with the body.
    pub attributes: Vec<Attribute>,
    /// Routing key, which the filters of subscribed queues match.
    pub routing_key: Option<String>,
    /// Time before the message is delivered. At most 13 days. On SQS, a delay beyond 15 minutes must not exceed the
    /// `longest_delay` for which the queue is set up. Rounded up to whole seconds.
    pub delay: Option<Duration>,
    /// The FIFO group (or the tenant on a standard queue).
    pub group: Option<String>,
    /// Deduplication key. The queue drops a second message with the same key within five minutes.
    pub dedupe_key: Option<String>,
}

impl Outgoing {
    /// Creates a message with this body to this channel.
    pub fn to(channel: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self {
            channel: channel.into(),
            body: body.into(),
            attributes: Vec::new(),
            routing_key: None,
            delay: None,
            group: None,
            dedupe_key: None,
        }
    }

    /// Adds an attribute. Its value is text or bytes.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.attributes.push(Attribute::new(name, value));
        self
    }

    /// Sets the routing key.
    pub fn routing_key(self, key: impl Into<String>) -> Self {
        Self { routing_key: Some(key.into()), ..self }
    }

    /// Delays the delivery for this time.
    pub fn delay(self, time: Duration) -> Self {
        Self { delay: Some(time), ..self }
    }

    /// Sets the FIFO group (or the tenant on a standard queue).
    pub fn group(self, group: impl Into<String>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// Sets the deduplication key. The queue drops a second message with the same key.
    pub fn dedupe_key(self, key: impl Into<String>) -> Self {
        Self { dedupe_key: Some(key.into()), ..self }
    }

    /// Sends the message. Returns its id after the queue has stored the message durably.
    ///
    /// # Errors
    /// [`SendError`] if the message was not sent. If a handler returns this error by `?`, the message that the handler processes
    /// goes to the retry policy.
    pub fn send(self) -> Result<String, SendError> {
        #[cfg(target_family = "wasm")]
        return crate::contract::send(self);
        #[cfg(not(target_family = "wasm"))]
        crate::testing::send(self)
    }
}

/// Reason why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// `allow.send` of this consumer does not name the channel.
    Denied(String),
    /// The message breaks a limit.
    Invalid(String),
    /// The queue did not accept the message this time. A later attempt may succeed.
    Unavailable(String),
}

impl fmt::Display for SendError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Denied(text) | Self::Invalid(text) | Self::Unavailable(text)) = self;
        write!(formatter, "not sent: {text}")
    }
}

impl Error for SendError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, testing};

    #[test]
    fn what_is_sent_is_seen_by_the_test() {
        let all = Outgoing::to("jobs", "a").attribute("n", "1").attribute("b", vec![0]).routing_key("k").group("g");
        let all = all.delay(Duration::from_secs(1)).dedupe_key("d");
        assert_eq!(all.clone().send(), Ok("sent-1".into()));
        assert_eq!(Outgoing::to("jobs", "b").send(), Ok("sent-2".into()));
        assert_eq!(testing::take_sent(), [all, Outgoing::to("jobs", "b")]);
        assert_eq!(testing::take_sent(), []);
    }

    #[test]
    fn a_refusal_goes_to_the_policy() {
        testing::refuse_sends(Some(SendError::Unavailable("the queue is away".into())));
        let failed = Outgoing::to("jobs", "a").send().map_err(Failure::from);
        assert_eq!(failed, Err(Failure::Error("not sent: the queue is away".into())));
        testing::refuse_sends(None);
        assert!(Outgoing::to("jobs", "a").send().is_ok());
    }
}
