//! Spans of operations on messages. Their names, kinds and attributes follow OpenTelemetry's semantic conventions for
//! messaging (opentelemetry.io/docs/specs/semconv/messaging), in the version of the spans' schema.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use opentelemetry_semantic_conventions::attribute::{
    AWS_SNS_TOPIC_ARN, AWS_SQS_QUEUE_URL, MESSAGING_DESTINATION_NAME, MESSAGING_OPERATION_NAME,
    MESSAGING_OPERATION_TYPE, MESSAGING_SYSTEM, SERVER_ADDRESS, SERVER_PORT,
};

use super::{Beginning, Span, Traces};

/// Attribute with the name of the consumer in the config.
pub const CONSUMER: &str = "hostler.consumer";

/// An operation on messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sends messages to a queue or a topic. The messages carry the context of the span.
    Send,
    /// Receives messages from a queue.
    Receive,
    /// Processes a message.
    Process,
    /// Acks, releases or dead-letters messages.
    Settle,
}

impl Operation {
    /// Returns the name of the operation, which is also its type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Process => "process",
            Self::Settle => "settle",
        }
    }

    fn kind(self) -> SpanKind {
        match self {
            Self::Send => SpanKind::Producer,
            Self::Process => SpanKind::Consumer,
            Self::Receive | Self::Settle => SpanKind::Client,
        }
    }
}

/// Source or destination of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Value of `messaging.system`.
    pub system: &'static str,
    /// Name of the channel.
    pub name: Arc<str>,
    /// URL of the queue or ARN of the topic. `None`: the service has neither.
    pub address: Option<Arc<str>>,
    /// Name of the consumer. `None`: no consumer makes the call.
    pub consumer: Option<Arc<str>>,
}

impl Destination {
    /// Returns the attributes for a span.
    pub fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new(MESSAGING_SYSTEM, self.system),
            KeyValue::new(MESSAGING_DESTINATION_NAME, Arc::clone(&self.name)),
        ];
        if let Some(consumer) = &self.consumer {
            attributes.push(KeyValue::new(CONSUMER, Arc::clone(consumer)));
        }
        let Some(address) = &self.address else { return attributes };
        if address.starts_with("arn:") {
            attributes.push(KeyValue::new(AWS_SNS_TOPIC_ARN, Arc::clone(address)));
        } else if let Ok(url) = reqwest::Url::parse(address) {
            attributes.push(KeyValue::new(AWS_SQS_QUEUE_URL, Arc::clone(address)));
            attributes.extend(url.host_str().map(|host| KeyValue::new(SERVER_ADDRESS, host.to_owned())));
            attributes.extend(url.port_or_known_default().map(|port| KeyValue::new(SERVER_PORT, i64::from(port))));
        }
        attributes
    }
}

impl Traces {
    /// Begins the span of an operation on a channel.
    pub fn operation(&self, operation: Operation, channel: &str, beginning: Beginning<'_>) -> Span {
        if let Some(span) = self.unsampled(&beginning) {
            return span;
        }
        let name = operation.name();
        let mut span = self.sampled(operation.kind(), format!("{name} {channel}").into(), beginning);
        if span.is_recording() {
            span.set(MESSAGING_OPERATION_NAME, name);
            span.set(MESSAGING_OPERATION_TYPE, name);
        }
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(address: Option<&str>) -> Vec<String> {
        let destination =
            Destination { system: "aws_sqs", name: "jobs".into(), address: address.map(Arc::from), consumer: None };
        let attributes = destination.attributes().into_iter();
        attributes.skip(2).map(|pair| format!("{}={}", pair.key, pair.value)).collect()
    }

    #[test]
    fn an_address_tells_the_server() {
        assert_eq!(destination(None), [""; 0]);
        let url = "https://sqs.eu-west-1.amazonaws.com/1/jobs";
        let expected = [
            format!("aws.sqs.queue.url={url}"),
            "server.address=sqs.eu-west-1.amazonaws.com".to_owned(),
            "server.port=443".to_owned(),
        ];
        assert_eq!(destination(Some(url)), expected);
        assert_eq!(destination(Some("arn:aws:sns:eu-west-1:1:t")), ["aws.sns.topic.arn=arn:aws:sns:eu-west-1:1:t"]);
    }
}
