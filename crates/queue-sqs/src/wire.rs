//! Converts between SQS or SNS messages and hostler's own messages. No I/O.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    MessageAttributeValue, MessageSystemAttributeName, MessageSystemAttributeNameForSends, MessageSystemAttributeValue,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::envelope;
use hostler_types::message::{
    AttributeValue, Attributes, Claim, Invalid, LEGACY_SIZE_ATTRIBUTE, MAX_ATTRIBUTES, Message, Outgoing, Plain,
    SIZE_ATTRIBUTE, TraceContext, Typed,
};

/// Name of the message attribute that contains the routing key. Filter policies apply to this attribute.
pub(super) const ROUTING_KEY_ATTRIBUTE: &str = "routing-key";

/// Name of the message attribute that states the encoding of the body. A body is encoded if SQS cannot carry it
/// unchanged, because SQS accepts only text that is not empty.
const ENCODING_ATTRIBUTE: &str = "hostler-body-encoding";
const BASE64: &str = "base64";
/// Name of the encoding of an empty body. Base64 cannot encode it, because the result would be empty too.
const EMPTY: &str = "empty";
const EMPTY_BODY: &str = "-";

/// System attributes that every receive call requests.
pub(super) const SYSTEM_ATTRIBUTES: [MessageSystemAttributeName; 5] = [
    MessageSystemAttributeName::ApproximateFirstReceiveTimestamp,
    MessageSystemAttributeName::ApproximateReceiveCount,
    MessageSystemAttributeName::AwsTraceHeader,
    MessageSystemAttributeName::MessageGroupId,
    MessageSystemAttributeName::SentTimestamp,
];

/// A message in the form in which it is sent to SQS or SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Body in a form that SQS accepts: not empty, and without characters that SQS cannot carry.
    pub body: String,
    pub(super) attributes: Vec<(String, AttributeValue)>,
    pub(super) group: Option<String>,
    pub(super) dedupe: Option<String>,
    /// Delay in whole seconds.
    pub(super) delay: i32,
    /// Trace context in X-Ray format, set by the code that sends the message. SQS carries it outside the message and
    /// does not count its size.
    pub(super) xray: Option<String>,
}

/// System attribute that carries the trace context.
const XRAY: MessageSystemAttributeNameForSends = MessageSystemAttributeNameForSends::AwsTraceHeader;

impl Entry {
    /// Converts a message. Leaves `xray` empty.
    ///
    /// # Errors
    /// [`Invalid`]: SQS cannot carry the message. The error names the part at fault.
    pub fn new(mut message: Outgoing) -> Result<Self, Invalid> {
        let beside = beside(&message.body, message.routing_key.is_some(), message.claim.is_some());
        message.carry_trace(MAX_ATTRIBUTES - beside);
        let Outgoing { body, attributes, routing_key, delay, group, dedupe, claim, .. } = message;
        let marked = claimed_size(&attributes).map(|(mark, _)| mark);
        let mut wire: Vec<_> = attributes.into_iter().collect();
        let mut add = |name: &str, value| wire.push((name.to_owned(), value));
        if let Some(key) = routing_key {
            add(ROUTING_KEY_ATTRIBUTE, AttributeValue::Text(key));
        }
        let has_claim = claim.is_some();
        let body = match claim {
            Some(claim) => {
                let value = AttributeValue::Text(claim.size.unwrap_or(0).to_string());
                add(SIZE_ATTRIBUTE, AttributeValue::Typed(Box::new(Typed { data_type: "Number".to_owned(), value })));
                claim.to_body()
            }
            None => match encode(body) {
                (text, None) => text,
                (text, Some(encoding)) => {
                    add(ENCODING_ATTRIBUTE, AttributeValue::Text(encoding.to_owned()));
                    text
                }
            },
        };
        // With this attribute, the consumer would fetch the object, and would delete it together with the message. Only
        // a claim may select an object.
        if let Some(mark) = marked.filter(|_| !has_claim && Claim::from_body(&body, None).is_some()) {
            return Err(Invalid::Unsupported(format!(
                "the body is a pointer to an object in S3, and the attribute `{mark}` would have its consumer fetch and \
                 remove that object: send it without the attribute"
            )));
        }
        if wire.len() > MAX_ATTRIBUTES {
            return Err(Invalid::TooManyAttributes { count: wire.len() });
        }
        wire.iter().try_for_each(|(name, value)| carries(name, value))?;
        for (what, text) in [("group", &group), ("dedupe key", &dedupe)] {
            if let Some(text) = text.as_ref().filter(|text| !is_token(text)) {
                let wanted = "1 to 128 ASCII letters, digits and punctuation marks, without blanks";
                return Err(Invalid::Unsupported(format!(
                    "SQS does not take the {what} `{text}`: it has to be {wanted}"
                )));
            }
        }
        let delay = i32::try_from(whole_seconds(delay)).unwrap_or(i32::MAX);
        Ok(Self { body, attributes: wire, group, dedupe, delay, xray: None })
    }

    /// Returns the size in bytes as counted by SQS: the body, plus the name, data type and value of each attribute.
    pub fn size(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| attribute_size(name, value));
        self.body.len() + attributes.sum::<usize>()
    }

    /// Returns the attributes in the form in which SQS accepts them. `None`: the message has no attributes.
    pub fn for_sqs(&self) -> Option<HashMap<String, MessageAttributeValue>> {
        let typed = |(name, value): &(String, AttributeValue)| {
            let typed = MessageAttributeValue::builder().data_type(data_type(value));
            let typed = match value.plain() {
                Plain::Text(text) => typed.string_value(text),
                Plain::Binary(bytes) => typed.binary_value(Blob::new(bytes)),
            };
            Some((name.clone(), typed.build().ok()?))
        };
        (!self.attributes.is_empty()).then(|| self.attributes.iter().filter_map(typed).collect())
    }

    /// Returns the system attributes in the form in which SQS accepts them. `None`: the message has no trace context.
    pub(super) fn system(&self) -> Option<HashMap<MessageSystemAttributeNameForSends, MessageSystemAttributeValue>> {
        let value = MessageSystemAttributeValue::builder().data_type("String").string_value(self.xray.as_ref()?);
        Some([(XRAY, value.build().ok()?)].into())
    }

    /// Returns the attributes in the form in which SNS accepts them. `None`: the message has no attributes.
    pub fn for_sns(&self) -> Option<HashMap<String, aws_sdk_sns::types::MessageAttributeValue>> {
        let typed = |(name, value): &(String, AttributeValue)| {
            let typed = aws_sdk_sns::types::MessageAttributeValue::builder().data_type(data_type(value));
            let typed = match value.plain() {
                Plain::Text(text) => typed.string_value(text),
                Plain::Binary(bytes) => typed.binary_value(Blob::new(bytes)),
            };
            Some((name.clone(), typed.build().ok()?))
        };
        (!self.attributes.is_empty()).then(|| self.attributes.iter().filter_map(typed).collect())
    }
}

/// Returns the AWS name of an attribute's data type.
fn data_type(value: &AttributeValue) -> &str {
    match value {
        AttributeValue::Text(_) => "String",
        AttributeValue::Binary(_) => "Binary",
        AttributeValue::Typed(typed) => &typed.data_type,
    }
}

/// Returns the number of bytes that SQS counts for an attribute: name, data type and value.
fn attribute_size(name: &str, value: &AttributeValue) -> usize {
    let data_type = if let AttributeValue::Typed(_) = value { 0 } else { "String".len() };
    name.len() + data_type + value.len()
}

/// Returns the size of a message in bytes, as SQS will count it for the message's [`Entry`], but without the trace
/// context. For a message with a claim, the result may be a few bytes too large.
pub fn size(message: &Outgoing) -> usize {
    let Outgoing { body, attributes, routing_key, claim, .. } = message;
    let body = match (claim, as_it_is(body)) {
        (Some(claim), _) => claim.to_body().len() + SIZE_ATTRIBUTE.len() + "Number".len() + 20,
        (None, Some(text)) => text.len(),
        (None, None) => body.len().div_ceil(3) * 4 + ENCODING_ATTRIBUTE.len() + "String".len() + BASE64.len(),
    };
    let key = routing_key.as_ref().map_or(0, |key| ROUTING_KEY_ATTRIBUTE.len() + "String".len() + key.len());
    let attributes = attributes.iter().map(|(name, value)| attribute_size(name, value));
    body + key + attributes.sum::<usize>()
}

/// Returns the maximum number of bytes that the trace context adds to [`size`].
pub(super) fn trace_size(message: &Outgoing) -> usize {
    let fields = message.trace.iter().flat_map(|trace| trace.fields());
    fields.map(|(name, value)| name.len() + "String".len() + value.len()).sum()
}

/// Returns an error if SQS cannot carry an attribute.
fn carries(name: &str, value: &AttributeValue) -> Result<(), Invalid> {
    let reserved =
        RESERVED.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)));
    let fault = match value.plain() {
        _ if reserved => "has a name that AWS keeps for itself",
        Plain::Text("") | Plain::Binary([]) => "is empty, and SQS takes no empty attribute",
        Plain::Text(text) if !text.chars().all(is_carried) => {
            "has a character that SQS does not carry: send it as bytes"
        }
        _ => return Ok(()),
    };
    Err(Invalid::Unsupported(format!("the attribute `{name}` {fault}")))
}

/// Prefixes of attribute names that AWS reserves, whether in upper or lower case.
const RESERVED: [&str; 2] = ["AWS.", "Amazon."];

/// Returns `true` if `text` is valid as a message group id or a dedupe key (AWS limit: 1 to 128 ASCII letters, digits
/// and punctuation marks).
fn is_token(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the number of attributes that hostler adds to the message's own ones. `has_key`: set if the message has a
/// routing key. `has_claim`: set if the message has a claim in place of its body.
pub(super) fn beside(body: &[u8], has_key: bool, has_claim: bool) -> usize {
    usize::from(has_key) + usize::from(has_claim || as_it_is(body).is_none())
}

/// Returns the body as text if SQS can carry it unchanged.
fn as_it_is(body: &[u8]) -> Option<&str> {
    std::str::from_utf8(body).ok().filter(|text| !text.is_empty() && text.chars().all(is_carried))
}

/// Converts a body to text. Returns the text and the name of its encoding. `None`: the text is the unchanged body.
fn encode(body: Vec<u8>) -> (String, Option<&'static str>) {
    match String::from_utf8(body) {
        Ok(text) if text.is_empty() => (EMPTY_BODY.to_owned(), Some(EMPTY)),
        Ok(text) if text.chars().all(is_carried) => (text, None),
        Ok(text) => (STANDARD.encode(text), Some(BASE64)),
        Err(error) => (STANDARD.encode(error.into_bytes()), Some(BASE64)),
    }
}

/// Returns `true` if a body may contain this character.
///
/// Source: AWS API reference, SendMessage (`#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | …`).
pub fn is_carried(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\r' | ' '..='\u{FFFD}' | '\u{10000}'..)
}

/// Converts a duration to whole seconds, as AWS requires, rounded up.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// A received message.
#[derive(Debug)]
pub struct Incoming {
    /// The message, with its decoded body or with the claim for its body.
    pub message: Message,
    /// The receipt handle of this delivery.
    pub receipt: String,
    /// Number of times that the message has been delivered, including this delivery.
    pub attempt: u32,
    /// Time of the first delivery. `None`: SQS did not report it.
    pub first_received: Option<SystemTime>,
}

/// Fields of a received message, regardless of the parser that read them (the SDK's or the one in `json`).
pub(super) struct Arrived<'a> {
    pub(super) id: Option<String>,
    pub(super) receipt: Option<String>,
    pub(super) body: Option<String>,
    /// `ApproximateReceiveCount`.
    pub(super) count: Option<Cow<'a, str>>,
    /// `SentTimestamp`, in milliseconds.
    pub(super) sent: Option<Cow<'a, str>>,
    /// `ApproximateFirstReceiveTimestamp`, in milliseconds.
    pub(super) first_received: Option<Cow<'a, str>>,
    /// `MessageGroupId`.
    pub(super) group: Option<String>,
    /// `AWSTraceHeader`.
    pub(super) xray: Option<Cow<'a, str>>,
    pub(super) attributes: Attributes,
}

/// Converts a message that the SDK has parsed. `None`: the message has no receipt, so it cannot be settled.
pub fn incoming(wire: aws_sdk_sqs::types::Message) -> Option<Incoming> {
    let mut system = wire.attributes.unwrap_or_default();
    let mut take = |name| system.remove(&name).map(Cow::Owned);
    let own = wire.message_attributes.unwrap_or_default().into_iter();
    let read = |value: MessageAttributeValue| {
        value_of(value.data_type, value.string_value, value.binary_value.map(Blob::into_inner))
    };
    let arrived = Arrived {
        id: wire.message_id,
        receipt: wire.receipt_handle,
        body: wire.body,
        count: take(MessageSystemAttributeName::ApproximateReceiveCount),
        sent: take(MessageSystemAttributeName::SentTimestamp),
        first_received: take(MessageSystemAttributeName::ApproximateFirstReceiveTimestamp),
        group: take(MessageSystemAttributeName::MessageGroupId).map(Cow::into_owned),
        xray: take(MessageSystemAttributeName::AwsTraceHeader),
        attributes: own.map(|(name, value)| (name, read(value))).collect(),
    };
    arrived.read()
}

impl Arrived<'_> {
    /// Converts the fields to a message. `None`: there is no receipt, so the message cannot be settled.
    pub(super) fn read(self) -> Option<Incoming> {
        let number = |text: Option<Cow<'_, str>>| text?.parse::<u64>().ok();
        let time = |text| UNIX_EPOCH.checked_add(Duration::from_millis(number(text)?));
        let attempt = number(self.count).unwrap_or(1).max(1);
        let mut attributes = self.attributes;
        let routing_key = take_text(&mut attributes, ROUTING_KEY_ATTRIBUTE);
        let (body, claim) = content(self.body.unwrap_or_default(), &mut attributes);
        let trace = TraceContext::of(&attributes)
            .or_else(|| envelope::trace(&body))
            .or_else(|| TraceContext::from_xray(self.xray.as_deref()?));
        Some(Incoming {
            message: Message {
                id: self.id.unwrap_or_default(),
                body,
                attributes,
                enqueued_at: time(self.sent).unwrap_or_else(SystemTime::now),
                group: self.group,
                routing_key,
                claim: claim.map(Arc::new),
                trace: trace.map(Arc::new),
            },
            receipt: self.receipt?,
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            first_received: time(self.first_received),
        })
    }
}

/// Converts the parts of a received attribute to a value. SQS returns the value either as text or as bytes.
pub(super) fn value_of(data_type: String, text: Option<String>, bytes: Option<Vec<u8>>) -> AttributeValue {
    let plain = match bytes {
        Some(bytes) if data_type.starts_with("Binary") => AttributeValue::Binary(bytes),
        _ => AttributeValue::Text(text.unwrap_or_default()),
    };
    match data_type.as_str() {
        "String" | "Binary" => plain,
        _ => AttributeValue::Typed(Box::new(Typed { data_type, value: plain })),
    }
}

fn take_text(attributes: &mut Attributes, name: &str) -> Option<String> {
    let text = attributes.get(name)?.as_text()?.to_owned();
    attributes.remove(name);
    Some(text)
}

/// Returns the name and the value of the attribute that marks a body as a pointer. The value is the size of the stored
/// body. `None`: there is no such attribute.
fn claimed_size(attributes: &Attributes) -> Option<(&'static str, &str)> {
    let told = |name| Some((name, attributes.get(name)?.as_text()?));
    [SIZE_ATTRIBUTE, LEGACY_SIZE_ATTRIBUTE].into_iter().find_map(told)
}

/// Returns the decoded body. If the body is a pointer, returns its claim instead. Removes the attributes that describe
/// the body.
fn content(text: String, attributes: &mut Attributes) -> (Bytes, Option<Claim>) {
    let size = claimed_size(attributes).map(|(_, size)| size);
    if let Some(size) = size
        && let Some(claim) = Claim::from_body(&text, size.parse().ok())
    {
        attributes.remove(SIZE_ATTRIBUTE);
        attributes.remove(LEGACY_SIZE_ATTRIBUTE);
        return (Bytes::new(), Some(claim));
    }
    let decoded = match attributes.get(ENCODING_ATTRIBUTE).and_then(AttributeValue::as_text) {
        Some(BASE64) => STANDARD.decode(&text).ok(),
        Some(EMPTY) => Some(Vec::new()),
        _ => None,
    };
    match decoded {
        Some(body) => {
            attributes.remove(ENCODING_ATTRIBUTE);
            (body.into(), None)
        }
        None => (text.into_bytes().into(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(message: Outgoing) -> Message {
        let entry = Entry::new(message).unwrap();
        let wire = aws_sdk_sqs::types::Message::builder()
            .receipt_handle("r")
            .body(&entry.body)
            .set_message_attributes(entry.for_sqs())
            .build();
        incoming(wire).unwrap().message
    }

    #[test]
    fn every_body_arrives_as_it_was_sent() {
        let odd = "\u{1}\u{FFFE}".as_bytes().to_vec();
        for body in [b"plain \t\r\n text".to_vec(), "żółć \u{1F980}".into(), Vec::new(), (0..=255).collect(), odd] {
            let message = there_and_back(Outgoing { body: body.clone(), ..Outgoing::default() });
            assert_eq!((&*message.body, message.attributes.len()), (&*body, 0));
        }
    }

    #[test]
    fn attributes_keep_their_data_types() {
        let typed =
            |data_type: &str, value| AttributeValue::Typed(Box::new(Typed { data_type: data_type.into(), value }));
        let attributes: Attributes = [
            ("bytes", AttributeValue::Binary((0..=255).collect())),
            ("count", typed("Number", AttributeValue::Text("1.5".into()))),
            ("picture", typed("Binary.png", AttributeValue::Binary(vec![0]))),
            ("text", AttributeValue::Text("żółć".into())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let message = Outgoing {
            body: b"x".to_vec(),
            attributes: attributes.clone(),
            routing_key: Some("EU.order".into()),
            ..Outgoing::default()
        };
        let message = there_and_back(message);
        assert_eq!((message.attributes, message.routing_key.as_deref()), (attributes, Some("EU.order")));
    }

    #[test]
    fn a_claim_is_a_pointer_and_its_size() {
        let claim = Arc::new(Claim { bucket: "b".into(), key: "k".into(), size: Some(2 << 20) });
        let message = there_and_back(Outgoing { claim: Some(claim.clone()), ..Outgoing::default() });
        assert_eq!((message.claim, message.attributes.len(), message.body.len()), (Some(claim), 0, 0));
    }

    #[test]
    fn a_claim_may_have_any_key() {
        let key: String = ('\0'..='\u{ffff}').collect();
        let claim = Arc::new(Claim { bucket: "b".into(), key, size: Some(1) });
        let entry = Entry::new(Outgoing { claim: Some(claim.clone()), ..Outgoing::default() }).unwrap();
        assert!(entry.body.chars().all(is_carried));
        assert_eq!(Claim::from_body(&entry.body, Some(1)).as_ref(), Some(&*claim));
    }

    #[test]
    fn a_pointer_is_one_only_with_its_attribute() {
        let claim = Claim { bucket: "b".into(), key: "k".into(), size: None };
        let message = there_and_back(Outgoing { body: claim.to_body().into_bytes(), ..Outgoing::default() });
        assert_eq!((message.claim, &*message.body), (None, claim.to_body().as_bytes()));
    }

    #[test]
    fn a_pointer_that_is_no_claim_is_not_sent_with_the_attribute() {
        let claim = Claim { bucket: "b".into(), key: "k".into(), size: None };
        let pointer = claim.to_body().into_bytes();
        let marked = |mark: &str, value, body: &[u8], claim: Option<Claim>| {
            let attributes = [(mark.to_owned(), value)].into();
            Entry::new(Outgoing { body: body.to_vec(), attributes, claim: claim.map(Arc::new), ..Outgoing::default() })
        };
        let number = Typed { data_type: "Number".into(), value: AttributeValue::Text("7".into()) };
        for value in [AttributeValue::Text("7".into()), AttributeValue::Typed(Box::new(number))] {
            for mark in [SIZE_ATTRIBUTE, LEGACY_SIZE_ATTRIBUTE] {
                let refused = marked(mark, value.clone(), &pointer, None);
                assert!(matches!(&refused, Err(Invalid::Unsupported(text)) if text.contains(mark)), "{refused:?}");
                assert!(marked(mark, value.clone(), b"no pointer", None).is_ok(), "{mark}");
                assert!(marked(mark, value.clone(), &pointer, Some(claim.clone())).is_ok(), "{mark}");
            }
        }
        // The size attribute has a binary value, which is not read as a size. Therefore, the body is not a pointer.
        assert!(marked(SIZE_ATTRIBUTE, AttributeValue::Binary(vec![7]), &pointer, None).is_ok());
    }

    #[test]
    fn what_sqs_cannot_carry_is_named() {
        let attributes = |count| (0..count).map(|n| (format!("a{n}"), AttributeValue::Text("x".into()))).collect();
        let full = Outgoing { body: vec![0], attributes: attributes(10), ..Outgoing::default() };
        assert_eq!(Entry::new(full), Err(Invalid::TooManyAttributes { count: 11 }));
        let empty = Outgoing {
            attributes: [("e".to_owned(), AttributeValue::Text(String::new()))].into(),
            ..Outgoing::default()
        };
        assert!(matches!(Entry::new(empty), Err(Invalid::Unsupported(text)) if text.contains("`e`")));
        let named = |name: &str, text: &str| [(name.to_owned(), AttributeValue::Text(text.to_owned()))].into();
        let text = |text: &str| Some(text.to_owned());
        for message in [
            Outgoing { attributes: named("aws.x", "x"), ..Outgoing::default() },
            Outgoing { attributes: named("x", "\u{1b}[0m"), ..Outgoing::default() },
            Outgoing { group: text("tenant 7"), ..Outgoing::default() },
            Outgoing { group: text(""), ..Outgoing::default() },
            Outgoing { dedupe: text(&"k".repeat(129)), ..Outgoing::default() },
        ] {
            assert!(matches!(Entry::new(message.clone()), Err(Invalid::Unsupported(_))), "{message:?}");
        }
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!([0, 1, 1000, 1001].map(|ms| whole_seconds(Duration::from_millis(ms))), [0, 1, 1, 2]);
    }
}
