//! Calls of the JetStream API, in JSON. The server's answers are kept whole, so that they can be compared with what was asked for:
//! older servers silently drop settings that they do not know.

use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;
use hostler_queue::QueueError;
use serde_json::{Value, json};

use super::envelope::Parcel;
use super::line::{Line, PATIENCE, Unanswered};

/// Beginning of the subjects of the API.
const API: &str = "$JS.API";

/// Numbers of the server's errors (`server/errors.json` of nats-server).
const STREAM_NOT_FOUND: u64 = 10059;
const CONSUMER_NOT_FOUND: u64 = 10014;
const MESSAGE_NOT_FOUND: u64 = 10037;
const NOT_ENABLED: [u64; 2] = [10076, 10039];
const WRONG_STREAM: u64 = 10060;
const TOO_LARGE: u64 = 10054;
const OVERLAP: u64 = 10065;
/// The second comes from clusters, where the other message may not be stored yet.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10071, 10164];
/// Another message with the same id is about to be stored.
const ID_IN_PROCESS: u64 = 10158;
/// Errors of a cluster that is about to choose its leaders, or short of servers.
const PASSING: [u64; 4] = [10008, 10009, 10004, 10074];

/// Error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiError {
    /// The stream, the consumer or the message does not exist.
    Missing,
    /// Another stream has the subject.
    Overlap(String),
    Other(QueueError),
}

impl ApiError {
    /// Returns the queue error. `missing`: the error for something that does not exist.
    pub(crate) fn or(self, missing: impl FnOnce() -> QueueError) -> QueueError {
        match self {
            Self::Missing => missing(),
            Self::Overlap(text) => QueueError::Refused(text),
            Self::Other(error) => error,
        }
    }
}

/// Result of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PubAck {
    pub(crate) sequence: u64,
    pub(crate) duplicate: bool,
}

/// Reason why a message was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishError {
    /// No stream has the subject, or another one than expected.
    Missing,
    /// The stream exists, but does not take the message at present.
    Unattended(String),
    /// The subject has another last message than the sender expects.
    Conflict(String),
    /// The message is larger than the server takes.
    TooLarge(String),
    Other(QueueError),
}

/// Calls the API, and returns the answer.
pub(crate) async fn call(line: &Line, operation: &str, body: &Value) -> Result<Value, ApiError> {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let what = || format!("call {operation}");
    let answer = line.request(&format!("{API}.{operation}"), None, body).await;
    let answer = answer.map_err(|error| ApiError::Other(error.of(&what())))?;
    let answer: Value = serde_json::from_slice(&answer.payload)
        .map_err(|error| ApiError::Other(QueueError::Unavailable(format!("cannot {}: {error}", what()))))?;
    match answer.get("error") {
        Some(error) => Err(api_error(&what(), error)),
        None => Ok(answer),
    }
}

fn api_error(what: &str, error: &Value) -> ApiError {
    let number = error["err_code"].as_u64().unwrap_or_default();
    let text =
        format!("cannot {what}: {} (NATS error {number})", error["description"].as_str().unwrap_or("no reason given"));
    match number {
        STREAM_NOT_FOUND | CONSUMER_NOT_FOUND | MESSAGE_NOT_FOUND => ApiError::Missing,
        OVERLAP => ApiError::Overlap(text),
        number if NOT_ENABLED.contains(&number) => ApiError::Other(QueueError::Refused(format!(
            "{text}: start the server with `-js`, and enable JetStream for the user's account"
        ))),
        number if PASSING.contains(&number) => ApiError::Other(QueueError::Unavailable(text)),
        _ if error["code"].as_u64() == Some(503) => ApiError::Other(QueueError::Unavailable(text)),
        _ => ApiError::Other(QueueError::Refused(text)),
    }
}

/// Returns `None` for something that does not exist.
pub(crate) fn existing<T>(result: Result<T, ApiError>) -> Result<Option<T>, QueueError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ApiError::Missing) => Ok(None),
        Err(error) => Err(error.or(|| QueueError::Unavailable(String::new()))),
    }
}

/// Returns a stream's configuration and state.
pub(crate) async fn stream(line: &Line, name: &str) -> Result<Option<Value>, QueueError> {
    existing(call(line, &format!("STREAM.INFO.{name}"), &Value::Null).await)
}

/// Returns a consumer's configuration and state.
pub(crate) async fn consumer(line: &Line, stream: &str, name: &str) -> Result<Option<Value>, QueueError> {
    existing(call(line, &format!("CONSUMER.INFO.{stream}.{name}"), &Value::Null).await)
}

/// Returns all streams of the account, with their states.
pub(crate) async fn streams(line: &Line) -> Result<Vec<Value>, QueueError> {
    pages(line, "STREAM.LIST", "streams").await
}

/// Returns the names of a stream's consumers.
pub(crate) async fn consumers(line: &Line, stream: &str) -> Result<Vec<String>, QueueError> {
    let names = pages(line, &format!("CONSUMER.NAMES.{stream}"), "consumers").await?;
    Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

async fn pages(line: &Line, operation: &str, field: &str) -> Result<Vec<Value>, QueueError> {
    let mut found = Vec::new();
    loop {
        let page = existing(call(line, operation, &json!({ "offset": found.len() })).await)?.unwrap_or_default();
        let entries = page[field].as_array().map(Vec::as_slice).unwrap_or_default();
        found.extend_from_slice(entries);
        if entries.is_empty() || found.len() as u64 >= page["total"].as_u64().unwrap_or_default() {
            return Ok(found);
        }
    }
}

/// Returns the sequence number of the first message of a subject, from any server that has the stream.
pub(crate) async fn next(line: &Line, stream: &str, subject: &str) -> Result<Option<u64>, QueueError> {
    direct(line, stream, &json!({ "seq": 1, "next_by_subj": subject })).await
}

async fn direct(line: &Line, stream: &str, wanted: &Value) -> Result<Option<u64>, QueueError> {
    let what = || format!("read a message of the stream `{stream}`");
    let answer = line.request(&format!("{API}.DIRECT.GET.{stream}"), None, wanted.to_string().into()).await;
    let message = match answer {
        Ok(message) => message,
        Err(Unanswered::NoResponders) => {
            let found = self::stream(line, stream).await?;
            if found.is_some_and(|found| found["config"]["allow_direct"] == true) {
                return Err(QueueError::Unavailable(format!("cannot {}: it has no leader at present", what())));
            }
            return Err(QueueError::Refused(format!(
                "cannot {}: the stream is missing, or does not allow direct reads: run `hostler provision`",
                what()
            )));
        }
        Err(error) => return Err(error.of(&what())),
    };
    match message.status {
        // A message may have a status, too: its sender's headers are the server's to store. No refusal names a sequence number.
        _ if sequence(&message).is_some() => Ok(sequence(&message)),
        None | Some(StatusCode::NOT_FOUND) => Ok(None),
        Some(status) => {
            let why = message.description.unwrap_or_default();
            Err(QueueError::Unavailable(format!("cannot {}: {status} {why}", what())))
        }
    }
}

/// Returns the sequence number of a message that the server returned. The server appends its headers to those of the sender, which may
/// have the same names.
fn sequence(message: &Message) -> Option<u64> {
    message.headers.as_ref()?.get_last("Nats-Sequence")?.as_str().parse().ok()
}

/// Returns the sequence number and the body of the last message of a subject, from the stream's leader.
pub(crate) async fn last(line: &Line, stream: &str, subject: &str) -> Result<Option<(u64, Vec<u8>)>, QueueError> {
    leaders(line, stream, &json!({ "last_by_subj": subject })).await
}

/// Returns the sequence number of the first message of a subject, from the stream's leader.
pub(crate) async fn first(line: &Line, stream: &str, subject: &str) -> Result<Option<u64>, QueueError> {
    Ok(leaders(line, stream, &json!({ "seq": 1, "next_by_subj": subject })).await?.map(|(sequence, _)| sequence))
}

/// Returns `true` if a stream has a message, from the stream's leader.
pub(crate) async fn has(line: &Line, stream: &str, sequence: u64) -> Result<bool, QueueError> {
    Ok(leaders(line, stream, &json!({ "seq": sequence })).await?.is_some())
}

async fn leaders(line: &Line, stream: &str, wanted: &Value) -> Result<Option<(u64, Vec<u8>)>, QueueError> {
    use base64::Engine as _;
    let found = existing(call(line, &format!("STREAM.MSG.GET.{stream}"), wanted).await)?;
    Ok(found.and_then(|found| {
        let message = &found["message"];
        let body = base64::engine::general_purpose::STANDARD.decode(message["data"].as_str().unwrap_or_default());
        Some((message["seq"].as_u64()?, body.ok()?))
    }))
}

/// Publishes a message to a stream. The message is stored when this returns `Ok`.
pub(crate) async fn publish(line: &Line, stream: &str, parcel: Parcel) -> Result<PubAck, PublishError> {
    publish_within(PATIENCE, line, stream, parcel).await
}

/// Publishes a message to a stream. Waits for at most `patience` until it is stored.
pub(crate) async fn publish_within(
    patience: Duration,
    line: &Line,
    stream: &str,
    parcel: Parcel,
) -> Result<PubAck, PublishError> {
    let published = publish_once(patience, line, parcel).await;
    if published != Err(PublishError::Missing) {
        return published;
    }
    // Nobody answers for a stream without a leader either. Whether it exists, the leader of all streams knows.
    match self::stream(line, stream).await {
        Ok(Some(_)) => Err(PublishError::Unattended(format!(
            "cannot store a message in `{stream}`: the stream exists, but nobody takes messages for it: it has no leader at \
             present, or not the subject"
        ))),
        Ok(None) => Err(PublishError::Missing),
        Err(error) => Err(PublishError::Other(error)),
    }
}

async fn publish_once(patience: Duration, line: &Line, parcel: Parcel) -> Result<PubAck, PublishError> {
    let Parcel { subject, headers, body } = parcel;
    let what = || format!("store a message under `{subject}`");
    let headers = Some(headers).filter(|headers| !headers.is_empty());
    let answer = line.request_within(patience, &subject, headers, body).await.map_err(|error| match error {
        Unanswered::NoResponders => PublishError::Missing,
        Unanswered::TooLarge(why) => PublishError::TooLarge(why),
        error => PublishError::Other(error.of(&what())),
    })?;
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
    if let Some(error) = answer.get("error") {
        return Err(publish_error(&what(), error));
    }
    match answer["seq"].as_u64() {
        Some(sequence) => Ok(PubAck { sequence, duplicate: answer["duplicate"] == true }),
        None => Err(PublishError::Other(QueueError::Unavailable(format!(
            "cannot {}: something other than JetStream answered",
            what()
        )))),
    }
}

fn publish_error(what: &str, error: &Value) -> PublishError {
    let text = || error["description"].as_str().unwrap_or_default().to_owned();
    match error["err_code"].as_u64() {
        Some(WRONG_STREAM | STREAM_NOT_FOUND) => PublishError::Missing,
        Some(TOO_LARGE) => PublishError::TooLarge(text()),
        Some(ID_IN_PROCESS) => PublishError::Unattended(format!("cannot {what}: {}", text())),
        Some(number) if WRONG_LAST_SEQUENCE.contains(&number) => PublishError::Conflict(text()),
        _ => PublishError::Other(match api_error(what, error) {
            // The stream is full, for example. Space may come back.
            ApiError::Other(QueueError::Refused(text)) => QueueError::Unavailable(text),
            error => error.or(|| QueueError::Unavailable(what.to_owned())),
        }),
    }
}

/// Publishes a message without headers of its own.
pub(crate) async fn publish_plain(
    line: &Line,
    stream: &str,
    subject: String,
    body: String,
) -> Result<PubAck, PublishError> {
    publish(line, stream, Parcel { subject, headers: HeaderMap::new(), body: body.into() }).await
}

/// Returns a time of the API in nanoseconds since 1970.
pub(crate) fn nanos(text: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    u64::try_from(time.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_what_the_caller_does_next() {
        let error = |number: u64, code: u64| {
            api_error("call STREAM.INFO.x", &json!({ "code": code, "err_code": number, "description": "no luck" }))
        };
        assert_eq!(error(10059, 404), ApiError::Missing);
        assert!(matches!(error(10065, 400), ApiError::Overlap(_)));
        assert!(matches!(error(10008, 503), ApiError::Other(QueueError::Unavailable(_))));
        assert!(matches!(error(10039, 503), ApiError::Other(QueueError::Refused(text)) if text.contains("-js")));
        assert!(matches!(error(10052, 400), ApiError::Other(QueueError::Refused(text)) if text.contains("no luck")));
    }

    #[test]
    fn refusals_of_messages_are_told_apart_by_what_the_sender_does_next() {
        let error =
            |number: u64| publish_error("store", &json!({ "code": 400, "err_code": number, "description": "no luck" }));
        assert_eq!((error(10060), error(10054)), (PublishError::Missing, PublishError::TooLarge("no luck".to_owned())));
        for number in [10071, 10164] {
            assert_eq!(error(number), PublishError::Conflict("no luck".to_owned()), "{number}");
        }
        // Only a cluster refuses a message because it is about to store its duplicate.
        assert_eq!(error(10158), PublishError::Unattended("cannot store: no luck".to_owned()));
        let full = "cannot store: no luck (NATS error 10077)".to_owned();
        assert_eq!(error(10077), PublishError::Other(QueueError::Unavailable(full)));
    }

    #[test]
    fn a_sender_does_not_choose_the_sequence_number() {
        let mut headers = HeaderMap::new();
        headers.append("Nats-Sequence", "1");
        headers.append("Nats-Sequence", "21");
        let message = Message {
            subject: "jobs".into(),
            reply: None,
            payload: Bytes::new(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        };
        assert_eq!(sequence(&message), Some(21));
        assert_eq!(sequence(&Message { headers: None, ..message }), None);
    }

    #[test]
    fn times_keep_their_nanoseconds() {
        assert_eq!(nanos("2026-11-21T05:00:00.123456789Z"), Some(1_795_237_200_123_456_789));
        assert_eq!(nanos("yesterday"), None);
    }
}
