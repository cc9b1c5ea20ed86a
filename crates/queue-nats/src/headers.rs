//! Attributes as headers of NATS. No I/O.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hostler_types::message::{AttributeValue, Attributes, Typed};
use serde_json::{Map, Value, json};

/// Header with the message's id. Without it, the id is that of [`NATS_ID`].
pub(crate) const ID: &str = "Hostler-Id";
/// Header with the FIFO group, encoded.
pub(crate) const GROUP: &str = "Hostler-Group";
/// Header with the routing key, encoded.
pub(crate) const KEY: &str = "Hostler-Routing-Key";
/// Header with the time before which the message is not delivered, in milliseconds since 1970.
pub(crate) const NOT_BEFORE: &str = "Hostler-Not-Before";
/// Header with the time of sending, in nanoseconds since 1970. Only copies have it: for others, the server knows the time.
pub(crate) const SENT_AT: &str = "Hostler-Sent-At";
/// Header with the attributes that a header of their own cannot hold, as JSON.
pub(crate) const ATTRIBUTES: &str = "Hostler-Attributes";
/// Header by which the server drops duplicates.
pub(crate) const NATS_ID: &str = "Nats-Msg-Id";
/// Header by which the server refuses a message that another stream would store.
pub(crate) const NATS_STREAM: &str = "Nats-Expected-Stream";

/// Headers that are no attributes.
const OURS: [&str; 6] = [ID, GROUP, KEY, NOT_BEFORE, SENT_AT, ATTRIBUTES];
/// Beginning of the names of the server's own headers.
const SERVER: &str = "nats-";

/// Returns the headers of attributes. A text on one line has a header of its own, which other clients can read.
pub(crate) fn of(attributes: &Attributes) -> HeaderMap {
    let (mut headers, mut others) = (HeaderMap::new(), Map::new());
    for (name, value) in attributes {
        match value {
            AttributeValue::Text(text) if is_plain(name, text) => headers.insert(name.as_str(), text.as_str()),
            value => drop(others.insert(name.clone(), to_json(value))),
        }
    }
    if !others.is_empty() {
        headers.insert(ATTRIBUTES, Value::Object(others).to_string().as_str());
    }
    headers
}

/// Returns the attributes of headers.
pub(crate) fn attributes(headers: &HeaderMap) -> Attributes {
    let mut attributes = Attributes::new();
    for (name, values) in headers.iter() {
        let name: &str = name.as_ref();
        if !is_reserved(name) {
            let text = values.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(", ");
            attributes.insert(name.to_owned(), AttributeValue::Text(text));
        }
    }
    let others =
        headers.get(ATTRIBUTES).and_then(|text| serde_json::from_str::<Map<String, Value>>(text.as_str()).ok());
    for (name, value) in others.unwrap_or_default() {
        if let Some(value) = from_json(&value) {
            attributes.insert(name, value);
        }
    }
    attributes
}

/// Returns the number of bytes of headers on their way to the server.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| name.len() + value.as_str().len() + ": \r\n".len())
    });
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}

/// Returns `true` if an attribute can be a header of its own.
fn is_plain(name: &str, text: &str) -> bool {
    !is_reserved(name)
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
        && !text.is_empty()
        && text.trim() == text
        && !text.contains(char::is_control)
}

fn is_reserved(name: &str) -> bool {
    let is_servers = name.get(..SERVER.len()).is_some_and(|start| start.eq_ignore_ascii_case(SERVER));
    is_servers || OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

fn to_json(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::Text(text) => json!(text),
        AttributeValue::Binary(bytes) => json!({ "base64": BASE64.encode(bytes) }),
        AttributeValue::Typed(typed) => json!({ "type": typed.data_type, "value": to_json(&typed.value) }),
    }
}

fn from_json(value: &Value) -> Option<AttributeValue> {
    if let Some(text) = value.as_str() {
        return Some(AttributeValue::Text(text.to_owned()));
    }
    if let Some(text) = value.get("base64").and_then(Value::as_str) {
        return BASE64.decode(text).ok().map(AttributeValue::Binary);
    }
    let data_type = value.get("type")?.as_str()?.to_owned();
    match from_json(value.get("value")?)? {
        AttributeValue::Typed(_) => None,
        value => Some(AttributeValue::Typed(Box::new(Typed { data_type, value }))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_their_headers() {
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        let typed = |value| AttributeValue::Typed(Box::new(Typed { data_type: "Number".to_owned(), value }));
        let sent: Attributes = [
            ("content-type", text("text/plain")),
            ("text", text("żółć \u{1F980} \"quoted\"")),
            ("lines", text("a\r\nNats-Msg-Id: b")),
            ("space", text(" a ")),
            ("empty", text("")),
            ("nats-msg-id", text("x")),
            ("hostler-group", text("x")),
            ("hostler-source", text("jobs")),
            ("bytes", AttributeValue::Binary((0..=255).collect())),
            ("number", typed(text("12"))),
            ("typed", typed(AttributeValue::Binary(vec![0]))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let headers = of(&sent);
        assert_eq!(attributes(&headers), sent);
        let own: Vec<_> =
            ["content-type", "text", "hostler-source"].iter().filter(|name| headers.get(**name).is_some()).collect();
        assert_eq!((own.len(), headers.len()), (3, 4));
        assert!(headers.iter().all(|(_, values)| values.iter().all(|value| !value.as_str().contains(['\r', '\n']))));
    }
}
