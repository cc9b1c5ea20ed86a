//! The JSON protocol of SQS, for the calls that every batch needs: serializes request bodies and parses answers. No
//! I/O.
//!
//! The SDK parses byte by byte. For a message of 100 KB, its parser takes more than half of the total time of the call.

use std::borrow::Cow;
use std::collections::HashMap;

use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::operation::receive_message::builders::ReceiveMessageInputBuilder;
use aws_sdk_sqs::types::{BatchResultErrorEntry, MessageSystemAttributeName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::wire::{Arrived, Incoming, value_of};
use hostler_types::message::AttributeValue;

/// Body of a `ReceiveMessage` request.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Ask<'a> {
    queue_url: Option<&'a str>,
    max_number_of_messages: Option<i32>,
    wait_time_seconds: Option<i32>,
    visibility_timeout: Option<i32>,
    message_system_attribute_names: Vec<&'a str>,
    message_attribute_names: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_request_attempt_id: Option<&'a str>,
}

/// Body of a `DeleteMessageBatch` or `ChangeMessageVisibilityBatch` request.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Batch<'a> {
    queue_url: &'a str,
    entries: &'a [Entry<'a>],
}

/// One entry of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry<'a> {
    pub(super) id: String,
    pub(super) receipt_handle: &'a str,
    /// Visibility timeout in seconds. `None`: the entry is a delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) visibility_timeout: Option<i32>,
}

/// Serializes the body of a `ReceiveMessage` request.
pub(super) fn ask(input: &ReceiveMessageInputBuilder) -> Result<Vec<u8>, serde_json::Error> {
    let names = input.get_message_system_attribute_names().iter().flatten();
    serde_json::to_vec(&Ask {
        queue_url: input.get_queue_url().as_deref(),
        max_number_of_messages: *input.get_max_number_of_messages(),
        wait_time_seconds: *input.get_wait_time_seconds(),
        visibility_timeout: *input.get_visibility_timeout(),
        message_system_attribute_names: names.map(MessageSystemAttributeName::as_str).collect(),
        message_attribute_names: input.get_message_attribute_names().as_deref().unwrap_or_default(),
        receive_request_attempt_id: input.get_receive_request_attempt_id().as_deref(),
    })
}

/// Serializes the body of a batch request.
pub(super) fn batch(queue_url: &str, entries: &[Entry<'_>]) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Batch { queue_url, entries })
}

/// Answer to a batch request.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchAnswer {
    successful: Option<Vec<Done>>,
    failed: Option<Vec<Failed>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Done {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    id: String,
    #[serde(default)]
    sender_fault: bool,
    #[serde(default)]
    code: String,
    message: Option<String>,
}

/// Parses the answer to a batch request. Returns the ids of the successful entries and the errors of the failed ones.
pub(super) fn read_batch(body: &[u8]) -> Result<(Vec<String>, Vec<BatchResultErrorEntry>), BoxError> {
    let answer: BatchAnswer = serde_json::from_slice(body)?;
    let failed = answer.failed.into_iter().flatten().map(|entry| {
        let Failed { id, sender_fault, code, message } = entry;
        BatchResultErrorEntry::builder().id(id).sender_fault(sender_fault).code(code).set_message(message).build()
    });
    let failed = failed.collect::<Result<_, _>>()?;
    Ok((answer.successful.into_iter().flatten().map(|done| done.id).collect(), failed))
}

/// Parses each message of an answer by itself, because the answer as a whole is malformed. Skips unreadable messages,
/// which are delivered again when their leases end. `None`: the answer is not a list of messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// HTTP status.
    pub(super) status: u16,
    /// AWS error code, for example `ThrottlingException`. `None`: the answer has no code, for example because a proxy
    /// has sent it.
    pub(super) code: Option<String>,
    /// Human-readable error message.
    pub(super) message: Option<String>,
    /// AWS request id. Set by the caller, which reads the response headers.
    pub(super) request_id: Option<String>,
}

#[derive(Default, Deserialize)]
struct Wrong {
    #[serde(rename = "__type")]
    kind: Option<String>,
    #[serde(alias = "Message")]
    message: Option<String>,
}

/// Parses an answer with an error status. `query_error`: value of the header `x-amzn-query-error`, either `CODE;Sender`
/// or `CODE;Receiver`.
pub(super) fn refusal(status: u16, query_error: Option<&str>, body: &[u8]) -> Refusal {
    let Wrong { kind, message } = serde_json::from_slice(body).unwrap_or_default();
    let code = query_error.and_then(|text| text.split(';').next()).or_else(|| {
        // For example `com.amazonaws.sqs#QueueDoesNotExist`.
        kind.as_deref().map(|kind| kind.rsplit_once('#').map_or(kind, |(_, code)| code))
    });
    Refusal { status, code: code.filter(|code| !code.is_empty()).map(str::to_owned), message, request_id: None }
}

/// The part of a `ReceiveMessage` answer that hostler reads.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(rename = "Messages", borrow)]
    messages: Option<Vec<Received<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received<'a> {
    message_id: Option<String>,
    receipt_handle: Option<String>,
    body: Option<String>,
    #[serde(borrow)]
    attributes: Option<System<'a>>,
    message_attributes: Option<HashMap<String, Value>>,
}

/// System attributes of a message.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct System<'a> {
    #[serde(borrow)]
    approximate_receive_count: Option<Text<'a>>,
    sent_timestamp: Option<Text<'a>>,
    approximate_first_receive_timestamp: Option<Text<'a>>,
    message_group_id: Option<String>,
    #[serde(rename = "AWSTraceHeader")]
    aws_trace_header: Option<Text<'a>>,
}

/// Text that borrows from the answer unless it contains escapes. serde borrows a `Cow` only if the `Cow` is a field
/// itself, not if it is in an `Option`. Therefore, this type wraps the `Cow`.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Value {
    #[serde(default)]
    data_type: String,
    string_value: Option<String>,
    binary_value: Option<String>,
}

/// Parses the messages of an answer to `ReceiveMessage`.
pub(super) fn read_messages(body: &[u8]) -> Result<Vec<Incoming>, BoxError> {
    // SQS omits empty values, possibly the whole body.
    if body.is_empty() {
        return Ok(Vec::new());
    }
    match serde_json::from_slice::<Answer<'_>>(body) {
        Ok(answer) => Ok(answer.messages.into_iter().flatten().filter_map(Received::read).collect()),
        Err(error) => read_one_by_one(body).ok_or_else(|| error.into()),
    }
}

/// Parses a malformed answer message by message. Skips unreadable messages, which are delivered again when their leases
/// end. `None`: the answer is not a list of messages.
fn read_one_by_one(body: &[u8]) -> Option<Vec<Incoming>> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let read = |message: &serde_json::Value| match Received::deserialize(message) {
        Ok(received) => received.read(),
        Err(error) => {
            let id = message.get("MessageId").and_then(serde_json::Value::as_str);
            tracing::error!(message_id = id, %error, "cannot read a message; it is redelivered when its lease ends");
            None
        }
    };
    Some(answer.get("Messages")?.as_array()?.iter().filter_map(read).collect())
}

impl Received<'_> {
    /// Converts the parsed JSON of a message to the message. `None`: the JSON has no receipt.
    fn read(self) -> Option<Incoming> {
        let system = self.attributes.unwrap_or_default();
        let own = self.message_attributes.unwrap_or_default().into_iter();
        let arrived = Arrived {
            id: self.message_id,
            receipt: self.receipt_handle,
            body: self.body,
            count: system.approximate_receive_count.map(|text| text.0),
            sent: system.sent_timestamp.map(|text| text.0),
            first_received: system.approximate_first_receive_timestamp.map(|text| text.0),
            group: system.message_group_id,
            xray: system.aws_trace_header.map(|text| text.0),
            attributes: own.map(|(name, value)| (name, value.read())).collect(),
        };
        arrived.read()
    }
}

impl Value {
    /// Converts the parsed JSON of an attribute to the attribute's value. If a binary value is not valid Base64, its
    /// text is passed on unchanged as bytes, because the handler decides what to do with the message.
    fn read(self) -> AttributeValue {
        let bytes = self.binary_value.map(|text| STANDARD.decode(&text).unwrap_or_else(|_| text.into_bytes()));
        value_of(self.data_type, self.string_value, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use hostler_types::message::{Attributes, Typed};

    #[test]
    fn an_answer_is_read_with_all_that_a_message_has() {
        let answer = r#"{"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "MD5OfBody": "of no use", "Body": "{\"a\":\"\u00fc\\n\"}",
            "Attributes": {"ApproximateReceiveCount": "3", "Unheard": "of", "MessageGroupId": "g\n",
            "SentTimestamp": "1700000000123", "ApproximateFirstReceiveTimestamp": "1700000000456", "AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8"},
            "MessageAttributes": {
            "text": {"DataType": "String", "StringValue": "ż\ud83e\udd80", "BinaryValue": null},
            "bytes": {"DataType": "Binary.png", "BinaryValue": "AP8="}}}, {"Body": null}]}"#;
        let messages = read_messages(answer.as_bytes()).unwrap();
        let [Incoming { message, receipt, attempt, first_received }] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((&*message.id, &**receipt, *attempt), ("m", "r", 3));
        assert_eq!(&*message.body, "{\"a\":\"ü\\n\"}".as_bytes());
        assert_eq!(message.group.as_deref(), Some("g\n"));
        assert_eq!(message.enqueued_at, UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        assert_eq!(*first_received, Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_456)));
        assert_eq!(message.trace.as_ref().unwrap().trace_id().to_string(), "5759e988bd862e3fe1be46a994272793");
        let picture = Typed { data_type: "Binary.png".into(), value: AttributeValue::Binary(vec![0, 255]) };
        let own: Attributes = [
            ("bytes".to_owned(), AttributeValue::Typed(Box::new(picture))),
            ("text".to_owned(), AttributeValue::Text("ż\u{1F980}".into())),
        ]
        .into();
        assert_eq!(message.attributes, own);
    }

    #[test]
    fn a_refusal_tells_its_code_and_why() {
        let of = |query_error, body: &str| {
            let Refusal { status, code, message, .. } = refusal(400, query_error, body.as_bytes());
            (status, code.unwrap_or_default(), message.unwrap_or_default())
        };
        let of_sqs = r#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"no such queue"}"#;
        let older = "AWS.SimpleQueueService.NonExistentQueue";
        let told = |code: &str, message: &str| (400, code.to_owned(), message.to_owned());
        let query_error = format!("{older};Sender");
        assert_eq!(of(Some(&query_error), of_sqs), told(older, "no such queue"));
        assert_eq!(of(None, of_sqs), told("QueueDoesNotExist", "no such queue"));
        assert_eq!(of(None, r#"{"__type":"Throttled","Message":"later"}"#), told("Throttled", "later"));
        for strange in ["", "<html>", "[]", r#"{"__type": 1}"#] {
            assert_eq!(of(None, strange), told("", ""), "{strange}");
        }
    }

    #[test]
    fn a_batch_is_asked_for_and_answered_entry_by_entry() {
        let change = Entry { id: "0".into(), receipt_handle: "r\"", visibility_timeout: Some(30) };
        let delete = Entry { id: "1".into(), receipt_handle: "s", visibility_timeout: None };
        let body = batch("https://sqs/1/q", &[change, delete]).unwrap();
        let asked = concat!(
            r#"{"QueueUrl":"https://sqs/1/q","Entries":[{"Id":"0","ReceiptHandle":"r\"","VisibilityTimeout":30},"#,
            r#"{"Id":"1","ReceiptHandle":"s"}]}"#
        );
        assert_eq!(String::from_utf8(body).unwrap(), asked);

        let answer = r#"{"Successful": [{"Id": "1"}],
            "Failed": [{"Id": "0", "SenderFault": true, "Code": "X", "Message": "y"}]}"#;
        let (done, failed) = read_batch(answer.as_bytes()).unwrap();
        assert_eq!(done, ["1"]);
        let [failed] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!((failed.id(), failed.code(), failed.message(), failed.sender_fault()), ("0", "X", Some("y"), true));
        assert_eq!(read_batch(b"{}").unwrap(), (vec![], vec![]));
        assert!(read_batch(b"<html>").is_err());
    }

    #[test]
    fn no_messages_are_no_fault_and_half_an_answer_is() {
        for empty in ["", "{}", r#"{"Messages": null}"#] {
            assert!(read_messages(empty.as_bytes()).unwrap().is_empty(), "{empty}");
        }
        for broken in [r#"{"Messages": ["#, "<html>", "[]", r#"{"Messages": 1}"#] {
            assert!(read_messages(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn what_is_wrong_with_one_message_is_wrong_with_no_other() {
        let attribute = |value: &str| {
            format!(
                r#"{{"ReceiptHandle": "odd", "MessageAttributes": {{"a": {{"DataType": "Binary", "BinaryValue": {value}}}}}}}"#
            )
        };
        let read =
            |odd: &str| read_messages(format!(r#"{{"Messages": [{odd}, {{"ReceiptHandle": "r"}}]}}"#).as_bytes());
        let both = read(&attribute(r#""?""#)).unwrap();
        assert_eq!(both[0].message.attributes["a"], AttributeValue::Binary(b"?".to_vec()));
        assert_eq!(both[1].receipt, "r");
        for odd in [attribute("7"), r#"{"ReceiptHandle": 7}"#.to_owned(), "7".to_owned()] {
            let [one] = &read(&odd).unwrap()[..] else { panic!("{odd}") };
            assert_eq!(one.receipt, "r", "{odd}");
        }
    }
}
