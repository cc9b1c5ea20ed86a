//! Finds queues whose messages other queues may receive too. The stored bodies of such messages are not deleted with
//! the messages.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;
use tokio::time::Instant;

use super::Service;
use super::fault::Fault;
use super::place::Place;

/// Maximum age of a cached result. It is short, because a queue may be subscribed to a topic at any time.
const BELIEVED: Duration = Duration::from_secs(60);

/// Maximum time for which a settlement waits until SQS returns the queue's policy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cached results by queue name: `true` if topics may send to the queue. Each result has the time of its query.
#[derive(Debug, Default)]
pub(super) struct Sharing(Mutex<HashMap<String, (Instant, bool)>>);

impl Sharing {
    fn known(&self, name: &str, now: Instant) -> Option<bool> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(name).filter(|(since, _)| now < *since + BELIEVED).map(|(_, is_shared)| *is_shared)
    }

    fn remember(&self, name: &str, now: Instant, is_shared: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), (now, is_shared));
    }
}

impl Service {
    /// Returns `true` if topics may send to a queue. Decides by the queue's policy, because AWS has no call that lists
    /// the subscriptions of a queue. If the policy cannot be read, returns `true`.
    pub(super) async fn may_share(&self, place: &Place) -> bool {
        let now = Instant::now();
        if let Some(is_shared) = self.resolver.sharing.known(&place.name, now) {
            return is_shared;
        }
        let asked = self.clients.sqs.get_queue_attributes().queue_url(&*place.address);
        let asked = asked.attribute_names(QueueAttributeName::Policy).send();
        let is_shared = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => {
                let attributes = answer.attributes.unwrap_or_default();
                attributes.get(&QueueAttributeName::Policy).is_some_and(|policy| lets_topics_send(policy))
            }
            failed => {
                let error = match failed {
                    Ok(Err(error)) => Fault::of("GetQueueAttributes", &error).into_text(),
                    _ => "SQS did not answer in time".to_owned(),
                };
                let queue = &*place.name;
                tracing::warn!(
                    queue,
                    error,
                    "stored bodies of finished messages are not deleted: cannot find out if topics send to the queue"
                );
                true
            }
        };
        self.resolver.sharing.remember(&place.name, now, is_shared);
        is_shared
    }
}

/// Returns `true` if a policy mentions SNS in any way, or if it allows anything to everyone, which includes topics.
/// Also returns `true` if the policy cannot be parsed.
fn lets_topics_send(policy: &str) -> bool {
    if policy.contains("sns.amazonaws.com") || policy.contains(":sns:") {
        return true;
    }
    let Ok(policy) = serde_json::from_str::<Value>(policy) else { return true };
    one_or_more(&policy["Statement"]).iter().any(|statement| {
        let principal = &statement["Principal"];
        let names = principal.as_object().map_or_else(|| vec![principal], |kinds| kinds.values().collect());
        let is_all = names.into_iter().flat_map(one_or_more).any(|name| name == "*");
        let is_exclusion = !statement["NotPrincipal"].is_null();
        statement["Effect"] == "Allow" && (is_all || is_exclusion)
    })
}

/// Returns the elements of a list, or a single value as a list with one element. In IAM policies, a list of one value
/// may be written without brackets.
fn one_or_more(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use hostler_queue::{Broker, ChannelSpec, Receive, Settlement};
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::super::{Options, SqsBroker};
    use super::*;

    #[test]
    fn a_policy_lets_topics_send_if_it_names_them_or_everybody() {
        let to = |principal: Value| json!({ "Statement": { "Effect": "Allow", "Principal": principal } }).to_string();
        let account = json!({ "AWS": ["arn:aws:iam::123456789012:root"] });
        for (policy, lets) in [
            (to(json!({ "Service": "sns.amazonaws.com" })), true),
            (to(json!("*")), true),
            (to(json!({ "AWS": "*" })), true),
            (to(json!({ "AWS": ["arn:aws:iam::123456789012:root", "*"] })), true),
            (to(account.clone()), false),
            (json!({ "Statement": [{ "Effect": "Allow", "NotPrincipal": account }] }).to_string(), true),
            (json!({ "Statement": [{ "Effect": "Deny", "Principal": "*" }] }).to_string(), false),
            (json!({ "Statement": [] }).to_string(), false),
            ("no policy".to_owned(), true),
        ] {
            assert_eq!(lets_topics_send(&policy), lets, "{policy}");
        }
    }

    /// A stand-in for AWS with one queue. All messages in the queue point to `s3://bodies/elsewhere/body`.
    #[derive(Debug, Clone, Default)]
    struct Aws {
        /// The queue's policy. `None`: calls that read the policy are denied.
        policy: Arc<Mutex<Option<String>>>,
        deleted: Arc<Mutex<Vec<String>>>,
    }

    impl HttpConnector for Aws {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let target = request.headers().get("x-amz-target").and_then(|target| target.rsplit('.').next());
            let input = request.body().bytes().unwrap_or_default();
            let asks_for_policy = String::from_utf8_lossy(input).contains("Policy");
            let pointer = r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"bodies","s3Key":"elsewhere/body"}]"#;
            let size = json!({ "ExtendedPayloadSize": { "DataType": "Number", "StringValue": "7" } });
            let (status, answer) = match target.unwrap_or("S3") {
                "GetQueueUrl" => (200, json!({ "QueueUrl": "http://aws/work" })),
                "GetQueueAttributes" if asks_for_policy => match &*self.policy.lock().unwrap() {
                    Some(policy) => (200, json!({ "Attributes": { "Policy": policy } })),
                    None => (400, json!({ "__type": "com.amazonaws.sqs#AccessDenied", "message": "no" })),
                },
                "GetQueueAttributes" => (200, json!({ "Attributes": { "MaximumMessageSize": "1048576" } })),
                "ReceiveMessage" => {
                    let attributes = json!({ "ApproximateReceiveCount": "1", "SentTimestamp": "1" });
                    let id = fastrand::u64(..).to_string();
                    let message = json!({ "MessageId": id, "ReceiptHandle": id, "Body": pointer, "Attributes": attributes,
                                          "MessageAttributes": size });
                    (200, json!({ "Messages": [message] }))
                }
                "DeleteMessageBatch" => (200, json!({ "Successful": [{ "Id": "0" }], "Failed": [] })),
                _ => {
                    self.deleted.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
                    (204, Value::Null)
                }
            };
            let text = if status == 204 { String::new() } else { answer.to_string() };
            HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), text.into())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_under_a_foreign_key_goes_only_while_no_topic_may_send_to_its_queue() {
        let aws = Aws { policy: Arc::new(Mutex::new(Some("{}".to_owned()))), ..Aws::default() };
        let options = Options {
            region: Some("eu-west-1".into()),
            endpoint_url: Some("http://aws".into()),
            credentials: Some(("key".into(), "secret".into())),
            bucket: Some("bodies".into()),
            http: Some(SharedHttpConnector::new(aws.clone())),
            ..Options::default()
        };
        let broker = SqsBroker::connect(options).await.unwrap();
        let queue = broker.open(&ChannelSpec::new("work".parse().unwrap())).await.unwrap();
        let ack = async || {
            let request = Receive { max: 1, wait: Duration::ZERO, lease: Duration::from_secs(30) };
            let delivery = queue.receive(request, &CancellationToken::new()).await.unwrap().remove(0);
            assert!(queue.settle(vec![Settlement::Ack(delivery.receipt)]).await.iter().all(Result::is_ok));
            std::mem::take(&mut *aws.deleted.lock().unwrap()).len()
        };
        assert_eq!(ack().await, 1, "nobody else has its messages");
        // The queue is subscribed to a topic while it is consumed.
        *aws.policy.lock().unwrap() = Some(r#"{"Statement":{"Effect":"Allow","Principal":"*"}}"#.to_owned());
        tokio::time::advance(BELIEVED).await;
        assert_eq!(ack().await, 0, "others may have it");
        *aws.policy.lock().unwrap() = None;
        tokio::time::advance(BELIEVED).await;
        assert_eq!(ack().await, 0, "others may have it, for all that is known");
        *aws.policy.lock().unwrap() = Some("{}".to_owned());
        tokio::time::advance(BELIEVED).await;
        assert_eq!(ack().await, 1);
    }
}
