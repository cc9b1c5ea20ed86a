//! Messages: a body and attributes, independent of the queue.

mod claim;
mod trace;

pub use claim::{Claim, LEGACY_SIZE_ATTRIBUTE, SIZE_ATTRIBUTE};
pub use trace::TRACEPARENT;
pub use trace::{TraceContext, is_carried_by as carries_trace};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

/// Maximum number of attributes of a message (AWS limit: 10 message attributes per message).
pub const MAX_ATTRIBUTES: usize = 10;

/// Maximum delay of a message. SQS stores a message for at most 14 days (AWS limit). The maximum delay is one day
/// shorter than this limit.
pub const MAX_DELAY: Duration = Duration::from_secs(13 * 86_400);

/// Conventional name of the attribute that contains the body's media type.
pub const CONTENT_TYPE: &str = "content-type";

/// Attributes, sorted by name.
pub type Attributes = BTreeMap<String, AttributeValue>;

/// The value of a message attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// UTF-8 text. Numbers are text too.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// A value with a data type that the producer chose (SQS: `Number`, `String.label`, `Binary.label`). A copy of the
    /// message has the same data type.
    Typed(Box<Typed>),
}

/// The value of a message attribute without its data type, as handlers receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

/// A value with the data type that the producer chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// Name of the data type in the queue's notation.
    pub data_type: String,
    /// The value: text or bytes.
    pub value: AttributeValue,
}

impl AttributeValue {
    /// Returns the text of the value. `None`: the value is binary.
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

    /// Returns the size in bytes that counts against size limits. The size includes a data type that the producer
    /// chose. The size does not include the default data types `String` and `Binary`, because not all queues have data
    /// types. The driver of a queue with data types adds their size itself.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
            Self::Typed(typed) => typed.data_type.len() + typed.value.len(),
        }
    }

    /// Returns `true` if the size is zero. A value with a data type that the producer chose is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Id of the message, assigned by the queue. All deliveries of the message have the same id.
    pub id: String,
    /// Body of the message, unchanged since the producer sent it. Cheap to clone.
    pub body: Bytes,
    /// Attributes that the producer set.
    pub attributes: Attributes,
    /// Time at which the queue accepted the message from the producer.
    pub enqueued_at: SystemTime,
    /// FIFO group of the message. On a standard SQS queue, the group identifies a tenant instead (fair queues).
    pub group: Option<String>,
    /// Routing key that the producer published the message with.
    pub routing_key: Option<String>,
    /// Location of a body that is stored outside of the message. If set, `body` is empty until `Queue::load` has
    /// fetched the body.
    pub claim: Option<Arc<Claim>>,
    /// Trace context that the producer sent with the message.
    pub trace: Option<Arc<TraceContext>>,
}

impl Message {
    /// Creates a message with this id and body. The enqueue time is the start of 1970, and all other fields are empty.
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

    /// Returns the media type from the attribute [`CONTENT_TYPE`]. The attribute's name is matched without regard to
    /// case.
    pub fn content_type(&self) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE))
            .and_then(|(_, value)| value.as_text())
    }

    /// Returns the age of the message at `now`. Returns zero if `now` is before the enqueue time.
    pub fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.enqueued_at).unwrap_or_default()
    }
}

/// Name of the attribute with the original id of a requeued message, that is, the id before the first move.
pub const ORIGINAL_ID_ATTRIBUTE: &str = "hostler-original-id";

/// A message to send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// Body of the message.
    pub body: Vec<u8>,
    /// Attributes: at most [`MAX_ATTRIBUTES`].
    pub attributes: Attributes,
    /// Routing key. The subscription filters of an exchange select the queues that receive the message by this key.
    pub routing_key: Option<String>,
    /// Delay before the first delivery: at most [`MAX_DELAY`].
    pub delay: Duration,
    /// FIFO group. An ordered channel assigns messages without a group to a common group.
    pub group: Option<String>,
    /// Deduplication key. If a message with the same key was accepted less than 5 minutes ago, the queue accepts this
    /// message too, but drops it.
    pub dedupe: Option<String>,
    /// Location of a body that is already stored in S3. If set, the message is sent with the location, and `body` is
    /// ignored.
    pub claim: Option<Arc<Claim>>,
    /// Trace context in which the message is sent. If the attributes contain no trace context and have room for one,
    /// the driver adds this context to them.
    pub trace: Option<Arc<TraceContext>>,
}

impl Outgoing {
    /// Returns the size in bytes that counts against the size limit of every queue: the sizes of the body, and of each
    /// attribute's name and value. The size of a value may include its data type (see [`AttributeValue::len`]).
    pub fn size(&self) -> usize {
        let attributes: usize = self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.len() + attributes
    }

    /// Adds the trace context to the attributes. Adds nothing if the attributes already contain a context, or if there
    /// are `most` attributes or more. Drivers call this function after all checks, because no message may be refused
    /// only because of its trace context.
    pub fn carry_trace(&mut self, most: usize) {
        if let Some(trace) = self.trace.take() {
            trace.add_within(&mut self.attributes, most);
        }
    }

    /// Checks the rules that all queues share. `max_size` is the queue's size limit in bytes.
    ///
    /// # Errors
    /// The first rule that the message violates.
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

/// The reason why a message is not valid and therefore cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The body and the attributes together exceed the queue's size limit.
    #[error(
        "the message has {size} bytes (body and attributes); the queue takes at most {max}: send a reference to the data, or on SQS set payload.bucket"
    )]
    TooLarge {
        /// Size of the body and the attributes in bytes.
        size: usize,
        /// The queue's size limit in bytes.
        max: usize,
    },
    /// The message has too many attributes.
    #[error("the message has {count} attributes; at most {MAX_ATTRIBUTES} are allowed: put the others into the body")]
    TooManyAttributes {
        /// Number of attributes.
        count: usize,
    },
    /// The channel does not support the delay.
    #[error("{0}")]
    DelayUnsupported(&'static str),
    /// The channel cannot detect duplicates, so a deduplication key is not accepted.
    #[error("{0}")]
    DedupeUnsupported(&'static str),
    /// The message contains something that the queue does not support.
    #[error("{0}")]
    Unsupported(String),
    /// The delay is longer than [`MAX_DELAY`].
    #[error("the delay of {} is longer than the 13 days that a queue allows", humantime::format_duration(*.delay))]
    DelayTooLong {
        /// The requested delay.
        delay: Duration,
    },
    /// SQS does not allow the name of an attribute.
    #[error(
        "`{name}` is not a valid attribute name: use 1 to 256 of A-Z a-z 0-9 _ - . without a leading, trailing or doubled dot"
    )]
    AttributeName {
        /// Name of the attribute.
        name: String,
    },
}

/// Returns `true` if SQS allows the name of an attribute. A name has 1 to 256 characters of `A-Za-z0-9_-.`, and no
/// leading, trailing or doubled dot (Amazon SQS developer guide, message attributes).
pub(crate) fn is_attribute_name(name: &str) -> bool {
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

        let delay = MAX_DELAY + Duration::from_secs(1);
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
