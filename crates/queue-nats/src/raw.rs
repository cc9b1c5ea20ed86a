//! Stored messages with the bytes of their headers.
//!
//! The API returns them in JSON, in which the client library can read every message: see `frames`.

use async_nats::{Message, Subject};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hostler_queue::QueueError;
use serde_json::{Value, json};

use super::api;
use super::frames::{self, Unreadable};
use super::line::Line;

/// Character that stands for bytes which are not UTF-8 in the subjects that the API returns.
const REPLACED: char = char::REPLACEMENT_CHARACTER;

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawMessage {
    pub(crate) sequence: u64,
    /// Time at which the server stored the message, in nanoseconds since 1970.
    pub(crate) stored_at: u64,
    /// Subject. Bytes that are not UTF-8 are replaced.
    pub(crate) subject: String,
    /// Headers as they are sent. Empty: the message has none.
    headers: Vec<u8>,
    body: Bytes,
}

impl RawMessage {
    /// Returns the message in the form in which the client library returns messages, with headers that can be read.
    pub(crate) fn readable(&self) -> Message {
        Message {
            subject: Subject::from(self.subject.as_str()),
            reply: None,
            payload: self.body.clone(),
            headers: (!self.headers.is_empty()).then(|| frames::readable(&self.headers)),
            status: None,
            description: None,
            length: 0,
        }
    }
}

/// Returns the first message of a stream from a sequence number on whose subject fits, from the stream's leader. `subject` may have
/// wildcards.
pub(crate) async fn next(
    line: &Line,
    stream: &str,
    from: u64,
    subject: &str,
) -> Result<Option<RawMessage>, QueueError> {
    let wanted = json!({ "seq": from, "next_by_subj": subject });
    let found = api::existing(api::call(line, &format!("STREAM.MSG.GET.{stream}"), &wanted).await)?;
    // A server that begins anew from the start, or that returns something else, would let the caller ask for ever.
    Ok(found.and_then(|found| raw(&found["message"])).filter(|message| message.sequence >= from))
}

/// Returns the reason why the client library cannot read a message. `None`: it can.
pub(crate) async fn fault(line: &Line, stream: &str, message: &RawMessage) -> Result<Option<Unreadable>, QueueError> {
    if let Err(unreadable) = frames::check(&message.subject, &message.headers) {
        return Ok(Some(unreadable));
    }
    if !message.subject.contains(REPLACED) {
        return Ok(None);
    }
    // The subject has this character itself if the server finds the message under it.
    let same = next(line, stream, message.sequence, &message.subject).await?;
    let is_same = same.is_some_and(|same| same.sequence == message.sequence);
    Ok((!is_same).then_some(Unreadable::Subject))
}

fn raw(message: &Value) -> Option<RawMessage> {
    let bytes = |field: &str| BASE64.decode(message[field].as_str().unwrap_or_default()).ok();
    Some(RawMessage {
        sequence: message["seq"].as_u64()?,
        stored_at: message["time"].as_str().and_then(api::nanos).unwrap_or_default(),
        subject: message["subject"].as_str()?.to_owned(),
        headers: bytes("hdrs")?,
        body: bytes("data")?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_api_is_read_with_all_its_bytes() {
        let headers = BASE64.encode(b"NATS/1.0 503\r\nname: caf\xe9\r\nNats-Sequence: 1\r\n\r\n");
        let stored = json!({
            "subject": "jobs", "seq": 7, "hdrs": headers, "data": BASE64.encode([0, 255]), "time": "2026-11-21T05:00:00.5Z",
        });
        let message = raw(&stored).unwrap();
        assert_eq!((message.sequence, message.stored_at), (7, 1_795_237_200_500_000_000));
        assert_eq!(frames::check(&message.subject, &message.headers), Err(Unreadable::Encoding));
        let readable = message.readable();
        assert_eq!((&*readable.payload, readable.status), (&[0, 255][..], None));
        assert_eq!(readable.headers.unwrap().get("name").map(|name| name.as_str()), Some("caf\u{fffd}"));
        let bare = raw(&json!({ "subject": "jobs", "seq": 8, "time": "" })).unwrap();
        assert_eq!((bare.readable().headers, bare.body.len()), (None, 0));
        assert_eq!(raw(&json!({ "seq": 8 })), None);
    }
}
