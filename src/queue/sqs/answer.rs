//! Reads the answers of ReceiveMessage in place of the SDK, whose reader goes byte by byte: of what a message of 100 KB costs,
//! that was more than half.

use std::collections::HashMap;

use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::operation::receive_message::ReceiveMessageOutput;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName};
use aws_smithy_runtime_api::client::interceptors::context::{Error, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, OrchestratorError};
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// For a client that makes this one call, and does not make it again by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadMessages;

impl Intercept for ReadMessages {
    fn name(&self) -> &'static str {
        "ReadMessages"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // What is wrong with a call stays with the SDK.
        if context.response().status().is_success() {
            config.interceptor_state().store_put(SharedResponseDeserializer::new(*self));
        }
        Ok(())
    }
}

impl DeserializeResponse for ReadMessages {
    fn deserialize_nonstreaming_with_config(
        &self,
        response: &HttpResponse,
        _: &ConfigBag,
    ) -> Result<Output, OrchestratorError<Error>> {
        let body = response.body().bytes().unwrap_or_default();
        read(body).map(Output::erase).map_err(OrchestratorError::other)
    }
}

/// `ReceiveMessageResponse` of SQS's JSON protocol, as far as it is of use.
#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Messages")]
    messages: Option<Vec<Received>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received {
    message_id: Option<String>,
    receipt_handle: Option<String>,
    body: Option<String>,
    attributes: Option<HashMap<String, String>>,
    message_attributes: Option<HashMap<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Value {
    #[serde(default)]
    data_type: String,
    string_value: Option<String>,
    binary_value: Option<String>,
}

fn read(body: &[u8]) -> Result<ReceiveMessageOutput, BoxError> {
    // SQS leaves out what is empty, and perhaps all.
    let answer = if body.is_empty() { Answer { messages: None } } else { serde_json::from_slice(body)? };
    let messages = answer.messages.map(|all| all.into_iter().map(Message::try_from).collect()).transpose()?;
    Ok(ReceiveMessageOutput::builder().set_messages(messages).build())
}

impl TryFrom<Received> for Message {
    type Error = BoxError;

    fn try_from(received: Received) -> Result<Self, BoxError> {
        let Received { message_id, receipt_handle, body, attributes, message_attributes } = received;
        let system = |all: HashMap<String, String>| {
            all.into_iter().map(|(name, value)| (MessageSystemAttributeName::from(name.as_str()), value)).collect()
        };
        let own = |all: HashMap<String, Value>| all.into_iter().map(|(name, value)| Ok((name, value.try_into()?)));
        Ok(Self::builder()
            .set_message_id(message_id)
            .set_receipt_handle(receipt_handle)
            .set_body(body)
            .set_attributes(attributes.map(system))
            .set_message_attributes(
                message_attributes.map(|all| own(all).collect::<Result<_, BoxError>>()).transpose()?,
            )
            .build())
    }
}

impl TryFrom<Value> for MessageAttributeValue {
    type Error = BoxError;

    fn try_from(value: Value) -> Result<Self, BoxError> {
        let binary = value.binary_value.map(|text| STANDARD.decode(text)).transpose()?;
        let built = Self::builder().data_type(value.data_type).set_string_value(value.string_value);
        Ok(built.set_binary_value(binary.map(Blob::new)).build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_with_all_that_a_message_has() {
        let answer = r#"{"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "MD5OfBody": "of no use", "Body": "{\"a\":\"\u00fc\\n\"}",
            "Attributes": {"ApproximateReceiveCount": "3", "Unheard": "of"}, "MessageAttributes": {
            "text": {"DataType": "String", "StringValue": "ż\ud83e\udd80", "BinaryValue": null},
            "bytes": {"DataType": "Binary.png", "BinaryValue": "AP8="}}}, {"Body": null}]}"#;
        let messages = read(answer.as_bytes()).unwrap().messages.unwrap();
        let [first, second] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((first.message_id(), first.receipt_handle()), (Some("m"), Some("r")));
        assert_eq!(first.body(), Some(r#"{"a":"ü\n"}"#));
        let system = first.attributes().unwrap();
        assert_eq!(system[&MessageSystemAttributeName::ApproximateReceiveCount], "3");
        let own = first.message_attributes().unwrap();
        assert_eq!((own["text"].string_value(), own["text"].binary_value()), (Some("ż\u{1F980}"), None));
        let bytes = own["bytes"].binary_value().map(Blob::as_ref);
        assert_eq!((own["bytes"].data_type(), bytes), ("Binary.png", Some(&[0, 255][..])));
        assert_eq!(second, &Message::builder().build());
    }

    #[test]
    fn no_messages_are_no_fault_and_half_an_answer_is() {
        for empty in ["", "{}", r#"{"Messages": null}"#] {
            assert_eq!(read(empty.as_bytes()).unwrap().messages, None, "{empty}");
        }
        for broken in [
            r#"{"Messages": ["#,
            "<html>",
            r#"{"Messages": [{"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "?"}}}]}"#,
        ] {
            assert!(read(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
