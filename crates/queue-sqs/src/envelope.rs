//! Reads the trace context from the SNS envelope around a message. SNS adds the envelope if the subscription does not
//! use raw delivery. No I/O.
//!
//! Reads only the trace context. The message body remains the whole envelope, because another producer may have sent an
//! envelope on purpose.

use serde::Deserialize;

use hostler_types::message::TraceContext;

/// Maximum size in bytes of an envelope that is parsed. Twice the SNS limit of 256 KiB, because the envelope escapes
/// quotes and line breaks.
const MAX: usize = 512 * 1024;

/// Number of bytes at the start of a body in which to look for the type of an envelope.
const HEAD: usize = 64;

/// The part of an SNS notification that hostler reads.
///
/// Source: Amazon SNS developer guide, "Parsing message formats".
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    message_attributes: Attributes<'a>,
}

#[derive(Deserialize)]
struct Attributes<'a> {
    #[serde(borrow, alias = "Traceparent", alias = "TraceParent")]
    traceparent: Attribute<'a>,
    #[serde(borrow, alias = "Tracestate", alias = "TraceState")]
    tracestate: Option<Attribute<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute<'a> {
    #[serde(borrow)]
    value: std::borrow::Cow<'a, str>,
}

/// Returns the trace context of an SNS envelope. `None`: the body is not an envelope, or has no valid trace context.
pub(super) fn trace(body: &[u8]) -> Option<TraceContext> {
    let head = &body[..body.len().min(HEAD)];
    if body.len() > MAX || !head.starts_with(b"{") || !contains(head, b"\"Notification\"") {
        return None;
    }
    let Attributes { traceparent, tracestate } = serde_json::from_slice::<Envelope<'_>>(body).ok()?.message_attributes;
    TraceContext::parse(&traceparent.value, tracestate.as_ref().map(|state| &*state.value))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn envelope(attributes: &str) -> String {
        format!(
            "{{\n  \"Type\" : \"Notification\",\n  \"MessageId\" : \"22b8\",\n  \"TopicArn\" : \"arn:aws:sns:eu-west-1:1:t\",\n  \
             \"Message\" : \"{{\\\"a\\\": \\\"\\u00fc\\\"}}\",\n  \"Timestamp\" : \"2026-11-22T07:00:00.000Z\"{attributes}\n}}"
        )
    }

    #[test]
    fn the_trace_of_a_notification_is_that_of_its_attributes() {
        let attributes = format!(
            r#", "MessageAttributes" : {{ "n" : {{"Type":"Number","Value":"1"}},
            "traceparent" : {{"Type":"String","Value":"{PARENT}"}}, "tracestate": {{"Type":"String","Value":"a=1"}} }}"#
        );
        let context = trace(envelope(&attributes).as_bytes()).unwrap();
        assert_eq!((context.to_string().as_str(), context.tracestate().as_deref()), (PARENT, Some("a=1")));
    }

    #[test]
    fn what_is_no_such_notification_has_none() {
        let one = |value: &str| {
            format!(r#", "MessageAttributes": {{"traceparent": {{"Type": "String", "Value": {value}}}}}"#)
        };
        let parent = format!("\"{PARENT}\"");
        let sound = envelope(&one(&parent));
        assert!(trace(sound.as_bytes()).is_some());
        for body in [
            envelope(""),
            envelope(", \"MessageAttributes\": null"),
            envelope(&one("\"00-1\"")),
            envelope(&one("7")),
            sound[..sound.len() - 1].to_owned(),
            sound.replace("Notification", "UnsubscribeConfirmation"),
            format!("[{sound}]"),
            sound.replace("\\u00fc", &"x".repeat(MAX)),
            String::new(),
        ] {
            assert_eq!(trace(body.as_bytes()), None, "{}", &body[..body.len().min(500)]);
        }
    }
}
