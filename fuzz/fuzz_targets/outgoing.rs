//! Messages on their way to SQS: refused by name, or taken as they are. What is taken is of the characters that SQS carries,
//! no larger than was reckoned, and arrives as it was sent.

#![no_main]

use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use hostler_queue_sqs::wire::{Entry, incoming, is_carried, size};
use hostler_types::message::{
    AttributeValue, Attributes, Claim, Invalid, LEGACY_SIZE_ATTRIBUTE, MAX_ATTRIBUTES, Outgoing, SIZE_ATTRIBUTE, Typed,
};
use libfuzzer_sys::fuzz_target;

/// Names that say how a body is carried: who sets them means that.
const MARKS: [&str; 4] = ["hostler-body-encoding", "routing-key", SIZE_ATTRIBUTE, LEGACY_SIZE_ATTRIBUTE];

#[derive(Debug, Arbitrary)]
struct Input {
    body: Vec<u8>,
    attributes: Vec<(Name, Value)>,
    routing_key: Option<String>,
    group: Option<String>,
    dedupe: Option<String>,
    delay: u16,
    claim: Option<(String, String, Option<u32>)>,
}

#[derive(Debug, Arbitrary)]
enum Name {
    Short(u8),
    Mark(u8),
    Any(String),
}

#[derive(Debug, Arbitrary)]
enum Value {
    Text(String),
    Binary(Vec<u8>),
    Number(i64),
    Labelled(String),
}

fuzz_target!(|input: Input| {
    let message = outgoing(input);
    let valid = message.validate(usize::MAX);
    let (reckoned, marked) = (size(&message), message.attributes.keys().any(|name| MARKS.contains(&name.as_str())));
    let entry = match Entry::new(message.clone()) {
        Ok(entry) => entry,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(entry.size() <= reckoned, "{} bytes, reckoned as {reckoned}", entry.size());
    assert!(!entry.body.is_empty() && entry.body.chars().all(is_carried), "{:?}", entry.body);
    let attributes = entry.for_sqs();
    assert!(attributes.as_ref().is_none_or(|all| all.len() <= MAX_ATTRIBUTES));
    assert_eq!(entry.for_sns().map(|all| all.len()), attributes.as_ref().map(|all| all.len()));
    if marked || matches!(valid, Err(Invalid::AttributeName { .. })) {
        return;
    }
    let wire = aws_sdk_sqs::types::Message::builder().receipt_handle("r").body(&entry.body);
    let arrived = incoming(wire.set_message_attributes(attributes).build()).expect("it has a receipt").message;
    let claim = message.claim.as_deref().map(|claim| Claim { size: claim.size.or(Some(0)), ..claim.clone() });
    let body = if claim.is_some() { &[][..] } else { &message.body };
    assert_eq!(
        (&*arrived.body, arrived.attributes, arrived.routing_key, arrived.claim),
        (body, message.attributes, message.routing_key, claim.map(Arc::new))
    );
});

fn outgoing(input: Input) -> Outgoing {
    let Input { body, attributes, routing_key, group, dedupe, delay, claim } = input;
    let attributes: Attributes = attributes.into_iter().map(|(name, value)| (name.text(), value.typed())).collect();
    let claim = claim.map(|(bucket, key, size)| Arc::new(Claim { bucket, key, size: size.map(u64::from) }));
    let delay = Duration::from_millis(delay.into());
    Outgoing { body, attributes, routing_key, delay, group, dedupe, claim, trace: None }
}

impl Name {
    fn text(self) -> String {
        match self {
            Self::Short(number) => format!("a{number}"),
            Self::Mark(number) => MARKS[usize::from(number) % MARKS.len()].to_owned(),
            Self::Any(text) => text,
        }
    }
}

impl Value {
    fn typed(self) -> AttributeValue {
        let typed = |data_type: &str, text| {
            AttributeValue::Typed(Box::new(Typed {
                data_type: data_type.to_owned(),
                value: AttributeValue::Text(text),
            }))
        };
        match self {
            Self::Text(text) => AttributeValue::Text(text),
            Self::Binary(bytes) => AttributeValue::Binary(bytes),
            Self::Number(number) => typed("Number", number.to_string()),
            Self::Labelled(text) => typed("String.label", text),
        }
    }
}
