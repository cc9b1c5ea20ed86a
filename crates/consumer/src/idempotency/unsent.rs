//! The messages of a run as bytes for its record: JSON, with bodies in Base64.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Outgoing, Plain};

/// A message as written. A missing text is written as null.
#[derive(Deserialize)]
struct Written {
    channel: String,
    body: String,
    attributes: Vec<(String, WrittenValue)>,
    routing_key: Option<String>,
    delay_ms: u64,
    group: Option<String>,
    dedupe: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenValue {
    Text(String),
    Binary(String),
}

/// Writes messages. Data types of attributes are not written, because handlers cannot set them.
pub(super) fn write(sends: &[(Channel, Outgoing)]) -> Vec<u8> {
    let written = sends.iter().map(|(channel, message)| {
        let attributes = message.attributes.iter().map(|(name, value)| match value.plain() {
            Plain::Text(text) => json!([name, { "text": text }]),
            Plain::Binary(bytes) => json!([name, { "binary": STANDARD.encode(bytes) }]),
        });
        json!({
            "channel": channel.to_string(),
            "body": STANDARD.encode(&message.body),
            "attributes": attributes.collect::<Vec<_>>(),
            "routing_key": message.routing_key,
            "delay_ms": u64::try_from(message.delay.as_millis()).unwrap_or(u64::MAX),
            "group": message.group,
            "dedupe": message.dedupe,
        })
    });
    Value::from(written.collect::<Vec<_>>()).to_string().into_bytes()
}

/// Reads messages.
///
/// # Errors
/// The bytes are not what [`write`] returned.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(Channel, Outgoing)>, String> {
    let written: Vec<Written> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    written.into_iter().map(Written::message).collect()
}

impl Written {
    fn message(self) -> Result<(Channel, Outgoing), String> {
        let attributes = self.attributes.into_iter().map(|(name, value)| Ok((name, value.read()?)));
        let message = Outgoing {
            body: decode(&self.body)?,
            attributes: attributes.collect::<Result<_, String>>()?,
            routing_key: self.routing_key,
            delay: Duration::from_millis(self.delay_ms),
            group: self.group,
            dedupe: self.dedupe,
            ..Outgoing::default()
        };
        Ok((self.channel.parse().map_err(|error| format!("{error}"))?, message))
    }
}

impl WrittenValue {
    fn read(self) -> Result<AttributeValue, String> {
        Ok(match self {
            Self::Text(text) => AttributeValue::Text(text),
            Self::Binary(text) => AttributeValue::Binary(decode(&text)?),
        })
    }
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let attributes = [
            ("text".to_owned(), AttributeValue::Text("ä\0".to_owned())),
            ("binary".to_owned(), AttributeValue::Binary(vec![0, 255])),
        ];
        let full = Outgoing {
            body: vec![0, 159, 146, 150],
            attributes: attributes.into(),
            routing_key: Some("key".to_owned()),
            delay: Duration::from_millis(1_500),
            group: Some("group".to_owned()),
            dedupe: Some("dedupe".to_owned()),
            ..Outgoing::default()
        };
        let sends = vec![("jobs".parse().unwrap(), full), ("events.jobs".parse().unwrap(), Outgoing::default())];
        assert_eq!(read(&write(&sends)).unwrap(), sends);
        assert_eq!(read(&write(&[])).unwrap(), []);
        for damaged in ["", "{}", "[{}]", "[1]"] {
            assert!(read(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }
}
