//! Messages: a body and attributes, as every queue carries them.

mod claim;
mod trace;

pub use claim::{Claim, LEGACY_SIZE_ATTRIBUTE, SIZE_ATTRIBUTE};
pub use trace::TRACEPARENT;
pub use trace::{TraceContext, is_carried_by as carries_trace};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

/// The most attributes one message may carry (AWS limit: 10 message attributes per message).
pub const MAX_ATTRIBUTES: usize = 10;

/// The longest delay a sender may ask for (AWS limit: 15 minutes).
pub const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// The name of the attribute that carries the body's media type, by convention.
pub const CONTENT_TYPE: &str = "content-type";

/// Attributes, sorted by name.
pub type Attributes = BTreeMap<String, AttributeValue>;

/// The value of one message attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// UTF-8 text; numbers travel as text too.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// A value with a data type that its producer chose (SQS: `Number`, `String.label`, `Binary.label`). Copies of the message
    /// keep it.
    Typed(Box<Typed>),
}

/// A value as handlers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

/// A value with the data type that its producer chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// The data type's name, as the queue spells it.
    pub data_type: String,
    /// The value itself: text or bytes.
    pub value: AttributeValue,
}

impl AttributeValue {
    /// Returns the value if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match self.plain() {
            Plain::Text(text) => Some(text),
            Plain::Binary(_) => None,
        }
    }

    /// Returns the value without its data type.
    pub fn plain(&self) -> Plain<'_> {
        match self {
            Self::Text(text) => Plain::Text(text),
            Self::Binary(bytes) => Plain::Binary(bytes),
            Self::Typed(typed) => typed.value.plain(),
        }
    }

    /// Returns its size in bytes, as the limits count it. A data type that the producer chose counts. The sender adds `String`
    /// and `Binary`, because only some queues have them.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
            Self::Typed(typed) => typed.data_type.len() + typed.value.len(),
        }
    }

    /// Returns true if the size is zero; never so if its producer chose a data type.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The queue's id of the message, the same at every delivery.
    pub id: String,
    /// The body, as the producer sent it; cheap to clone.
    pub body: Bytes,
    /// The producer's attributes.
    pub attributes: Attributes,
    /// The time at which the queue accepted the message from its producer.
    pub enqueued_at: SystemTime,
    /// The FIFO group, or the fair-queue tenant on a standard queue.
    pub group: Option<String>,
    /// The routing key that it was published with.
    pub routing_key: Option<String>,
    /// The location of the body, if it is not in the message: `body` is then empty until `Queue::load` has fetched it.
    pub claim: Option<Arc<Claim>>,
    /// The trace that its producer sent it in, however the queue carries it.
    pub trace: Option<Arc<TraceContext>>,
}

impl Message {
    /// Returns a message with this id and body and nothing else, enqueued at the start of 1970.
    pub fn new(id: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            body: body.into(),
            attributes: Attributes::new(),
            enqueued_at: SystemTime::UNIX_EPOCH,
            group: None,
            routing_key: None,
            claim: None,
            trace: None,
        }
    }

    /// Returns the media type from the attribute [`CONTENT_TYPE`]; the case of its name does not matter.
    pub fn content_type(&self) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE))
            .and_then(|(_, value)| value.as_text())
    }

    /// Returns the message's age at `now`; zero if the clocks disagree.
    pub fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.enqueued_at).unwrap_or_default()
    }
}

/// A message on its way to a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// The body.
    pub body: Vec<u8>,
    /// Attributes; at most [`MAX_ATTRIBUTES`].
    pub attributes: Attributes,
    /// The key that decides which subscribed queues of an exchange get the message.
    pub routing_key: Option<String>,
    /// The time before which it is not delivered; at most [`MAX_DELAY`].
    pub delay: Duration,
    /// The FIFO group. An ordered channel puts messages without one into a common group.
    pub group: Option<String>,
    /// The deduplication key. A second message with the same key within 5 minutes is accepted and dropped.
    pub dedupe: Option<String>,
    /// The claim of a body that is already in S3: the message is sent with it, and `body` is ignored.
    pub claim: Option<Arc<Claim>>,
    /// The trace that it is sent in. The queue adds it to the attributes if there is room and they carry none.
    pub trace: Option<Arc<TraceContext>>,
}

impl Outgoing {
    /// Returns the size in bytes that counts against every queue's limit: the body and, for each attribute, its name, its value,
    /// and its data type if the producer chose one ([`AttributeValue::len`]).
    pub fn size(&self) -> usize {
        let attributes: usize = self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.len() + attributes
    }

    /// Adds the trace to the attributes if they carry none and have room, up to `most`. Queues do this last, because a trace must
    /// never prevent a send.
    pub fn carry_trace(&mut self, most: usize) {
        if let Some(trace) = self.trace.take() {
            trace.add_within(&mut self.attributes, most);
        }
    }

    /// Checks the limits that every queue shares; `max_size` (bytes) is the queue's own.
    ///
    /// # Errors
    /// Returns the first limit that the message breaks.
    pub fn validate(&self, max_size: usize) -> Result<(), Invalid> {
        if self.size() > max_size {
            return Err(Invalid::TooLarge { size: self.size(), max: max_size });
        }
        if self.attributes.len() > MAX_ATTRIBUTES {
            return Err(Invalid::TooManyAttributes { count: self.attributes.len() });
        }
        if self.delay > MAX_DELAY {
            return Err(Invalid::DelayTooLong { delay: self.delay });
        }
        match self.attributes.keys().find(|name| !is_attribute_name(name)) {
            Some(name) => Err(Invalid::AttributeName { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// A reason why a message can never be sent unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Body and attributes together exceed the queue's limit.
    #[error("the message has {size} bytes (body and attributes); the queue takes at most {max}")]
    TooLarge {
        /// Size of body and attributes in bytes.
        size: usize,
        /// The queue's limit in bytes.
        max: usize,
    },
    /// It has too many attributes.
    #[error("the message has {count} attributes; at most {MAX_ATTRIBUTES} are allowed")]
    TooManyAttributes {
        /// Their number.
        count: usize,
    },
    /// The channel does not support the delay.
    #[error("{0}")]
    DelayUnsupported(&'static str),
    /// The channel cannot detect duplicates, so it takes no dedupe key.
    #[error("{0}")]
    DedupeUnsupported(&'static str),
    /// The message contains something that this queue cannot carry.
    #[error("{0}")]
    Unsupported(String),
    /// The delay is longer than [`MAX_DELAY`].
    #[error("the delay of {} is longer than the 15 minutes that a queue allows", humantime::format_duration(*.delay))]
    DelayTooLong {
        /// The requested delay.
        delay: Duration,
    },
    /// SQS would refuse the name of an attribute.
    #[error(
        "`{name}` is no attribute name: use 1 to 256 of A-Z a-z 0-9 _ - . without a leading, trailing or doubled dot"
    )]
    AttributeName {
        /// The name.
        name: String,
    },
}

/// Returns true if SQS would accept `name` (AWS: 256 characters of `A-Za-z0-9_-.`, dots neither first, last nor doubled).
fn is_attribute_name(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && name.split('.').all(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named() {
        let message = Outgoing { body: vec![b'x'; 11], ..Default::default() };
        assert_eq!(message.validate(10), Err(Invalid::TooLarge { size: 11, max: 10 }));
        assert_eq!(message.validate(11), Ok(()));

        let attributes = (0..11).map(|n| (format!("a{n}"), AttributeValue::Text(String::new()))).collect();
        let message = Outgoing { attributes, ..Default::default() };
        assert_eq!(message.validate(100), Err(Invalid::TooManyAttributes { count: 11 }));

        let delay = Duration::from_secs(901);
        let message = Outgoing { delay, ..Default::default() };
        assert_eq!(message.validate(100), Err(Invalid::DelayTooLong { delay }));
    }

    #[test]
    fn attribute_names_follow_sqs() {
        for good in ["a", "content-type", "x.y_z-1"] {
            assert!(is_attribute_name(good), "{good}");
        }
        for bad in ["", ".a", "a.", "a..b", "a b", "ä", &"x".repeat(257)] {
            assert!(!is_attribute_name(bad), "{bad}");
        }
    }
}
