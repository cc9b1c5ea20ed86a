//! Messages as SQS hands them out, in the JSON of ReceiveMessage: bodies of every kind (SNS envelopes and pointers to S3
//! too), attributes, trace contexts. A body arrives as it was unless an attribute says that it is encoded or elsewhere;
//! nothing else is lost; and what SQS can carry can be copied to a dead-letter queue, where it reads the same.

#![no_main]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{self, MessageAttributeValue, MessageSystemAttributeName};
use hostler_queue::dead_letter_attributes;
use hostler_queue_sqs::wire::{Entry, Incoming, incoming, is_carried};
use hostler_types::message::{
    Attributes, Claim, LEGACY_SIZE_ATTRIBUTE, MAX_ATTRIBUTES, Message, Outgoing, Plain, SIZE_ATTRIBUTE, TraceContext,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const ENCODING: &str = "hostler-body-encoding";

fuzz_target!(|text: &str| {
    let Ok(json) = serde_json::from_str::<Value>(text) else { return };
    let wire = message(&json);
    let (body, receipt) = (wire.body.clone().unwrap_or_default(), wire.receipt_handle.clone());
    let count = wire.message_attributes.as_ref().map_or(0, HashMap::len);
    let Some(Incoming { message, receipt: handle, attempt, .. }) = incoming(wire) else {
        return assert_eq!(receipt, None);
    };
    assert_eq!(Some(handle), receipt);
    assert!(attempt > 0);
    arrived(&json, &body, &message);
    let _ = (message.content_type(), message.age(SystemTime::now()));
    traced(&message);
    if count <= MAX_ATTRIBUTES && !body.is_empty() && body.chars().all(is_carried) {
        copied(&message, attempt);
    }
});

/// A message of the SDK, from what SQS would have answered.
fn message(json: &Value) -> types::Message {
    let text = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
    let table = |name: &str| json.get(name).and_then(Value::as_object).into_iter().flatten();
    let attribute = |value: &Value| {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let typed = MessageAttributeValue::builder().data_type(text("DataType")?);
        let typed = typed.set_string_value(text("StringValue").map(str::to_owned));
        typed.set_binary_value(text("BinaryValue").map(Blob::new)).build().ok()
    };
    let attributes: HashMap<_, _> =
        table("MessageAttributes").filter_map(|(name, value)| Some((name.clone(), attribute(value)?))).collect();
    let system = |(name, value): (&String, &Value)| {
        Some((MessageSystemAttributeName::from(name.as_str()), value.as_str()?.to_owned()))
    };
    types::Message::builder()
        .set_message_id(text("MessageId"))
        .set_receipt_handle(text("ReceiptHandle"))
        .set_body(text("Body"))
        .set_attributes(Some(table("Attributes").filter_map(system).collect()))
        .set_message_attributes(Some(attributes))
        .build()
}

/// The body, and every attribute that says nothing of it.
fn arrived(json: &Value, body: &str, message: &Message) {
    let sent = json.get("MessageAttributes").and_then(Value::as_object);
    let marks = [ENCODING, SIZE_ATTRIBUTE, LEGACY_SIZE_ATTRIBUTE];
    if !marks.iter().any(|mark| sent.is_some_and(|sent| sent.contains_key(*mark))) {
        assert_eq!((&*message.body, &message.claim), (body.as_bytes(), &None));
    }
    if let Some(claim) = &message.claim {
        assert!(message.body.is_empty());
        let again = Claim::from_body(&claim.to_body(), claim.size);
        assert_eq!(again.as_ref(), Some(&**claim));
    }
    for (name, value) in sent.into_iter().flatten() {
        let text = |part: &str| value.get(part).and_then(Value::as_str);
        let Some(kind) = text("DataType") else { continue };
        match message.attributes.get(name).map(|value| value.plain()) {
            Some(Plain::Text(found)) => assert_eq!(found, text("StringValue").unwrap_or_default()),
            Some(Plain::Binary(found)) => assert_eq!(Some(found), text("BinaryValue").map(str::as_bytes), "{kind}"),
            None if marks.contains(&name.as_str()) => {}
            None => assert_eq!(message.routing_key.as_deref(), Some(text("StringValue").unwrap_or_default()), "{name}"),
        }
    }
}

/// Checks the trace context that a message passes on: it is valid or absent, and attributes take precedence over SNS and X-Ray.
fn traced(message: &Message) {
    let own = TraceContext::of(&message.attributes);
    let Some(context) = message.trace.as_deref() else { return assert_eq!(own, None) };
    let mut sent = Attributes::new();
    context.add_to(&mut sent);
    assert_eq!(TraceContext::of(&sent).as_ref(), Some(context));
    if let Some(own) = own {
        assert_eq!(own, *context);
        let mut full = message.attributes.clone();
        context.add_to(&mut full);
        assert_eq!(full, message.attributes, "it carries one already");
    }
}

/// The copy in a dead-letter queue is taken by SQS, and reads the same.
fn copied(message: &Message, attempt: u32) {
    let outgoing = |attributes| Outgoing {
        body: message.body.to_vec(),
        attributes,
        routing_key: message.routing_key.clone(),
        group: message.group.clone(),
        claim: message.claim.clone(),
        ..Outgoing::default()
    };
    let plain = outgoing(message.attributes.clone());
    let values = message.attributes.iter().map(|(name, value)| (name.as_str(), value.plain()));
    let key = message.routing_key.iter().map(|key| ("key", Plain::Text(key.as_str())));
    let sound = values.chain(key).all(|(name, value)| {
        let reserved = ["aws.", "amazon."].iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix));
        !reserved
            && match value {
                Plain::Text(text) => !text.is_empty() && text.chars().all(is_carried),
                Plain::Binary(bytes) => !bytes.is_empty(),
            }
    });
    // Base64 of a pointer, with its size beside it: no client writes that, and its copy is refused.
    let hides_pointer = message.claim.is_none()
        && str::from_utf8(&message.body).is_ok_and(|body| Claim::from_body(body, None).is_some());
    let is_token = |text: &String| (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !sound || hides_pointer || plain.validate(usize::MAX).is_err() || !message.group.iter().all(is_token) {
        return;
    }
    let room = MAX_ATTRIBUTES - usize::from(message.routing_key.is_some()) - 1;
    let story = dead_letter_attributes(&message.attributes, "a reason", "a-channel", Some(attempt), room);
    for copy in [plain, outgoing(story)] {
        let entry = Entry::new(copy.clone()).unwrap_or_else(|error| panic!("it cannot be dead-lettered: {error}"));
        assert!(!entry.body.is_empty() && entry.body.chars().all(is_carried), "{:?}", entry.body);
        let wire = types::Message::builder().receipt_handle("r").body(&entry.body);
        let again = incoming(wire.set_message_attributes(entry.for_sqs()).build()).expect("a message").message;
        // A size that was not told, or not as a number, is told as 0.
        let claim = message.claim.as_deref().map(|claim| Claim { size: claim.size.or(Some(0)), ..claim.clone() });
        assert_eq!(
            (&again.body, again.attributes, again.routing_key, again.claim),
            (&message.body, copy.attributes, copy.routing_key, claim.map(Arc::new))
        );
    }
}
