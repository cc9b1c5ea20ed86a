//! The SQS driver with the AWS SDK, including signatures, on a service that answers from memory. Receives ten messages and acks
//! them. Other paths do the same with a whole consumer.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::StatusCode;
use hostler_consumer::{Consumer, Phase, Requests, Spec, StatusHandle};
use hostler_handler::{Call, Handler, Outcome, Pools};
use hostler_queue::{Broker, ChannelSpec, Queue};
use hostler_queue_sqs::{Options, SqsBroker};
use hostler_queue_telemetry::MeteredQueue;
use hostler_telemetry::Form;
use hostler_telemetry::Resource;
use hostler_telemetry::metrics::{Exporters, Metrics, Named, listen};
use hostler_telemetry::traces::Traces;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::acked::{self, BODY};
use crate::consumer::retrying;
use crate::{Result, Step};

/// Placeholder for the number of the receive in a message id.
const NUMBER: &str = "########";

/// Service with prepared answers to a receive and to a batch of ten deletes.
#[derive(Debug, Clone)]
struct Canned {
    received: Arc<str>,
    receives: Arc<AtomicU32>,
    deleted: bytes::Bytes,
    /// Number of further receives that are answered, for a consumer, which receives continuously. `None`: all.
    permits: Option<Arc<Semaphore>>,
    /// Contains one permit per deleted batch.
    batches: Arc<Semaphore>,
}

/// Values of the X-Ray header in a message whose producer has decided whether its trace is sampled.
const SAMPLED: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
const UNSAMPLED: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0";

impl Canned {
    /// Creates a service. `trace`: the X-Ray header of its messages.
    fn new(trace: Option<&str>) -> Self {
        let message = |n: usize| {
            let mut message = json!({
                "MessageId": format!("5fea7756-0ea4-451a-a703-{NUMBER}933{n}"),
                "ReceiptHandle": format!("{n}{}", "MbZj6wDWli+JvwwJaBV+3dcjk2YW2vA3+STFFljTM8tJJg6HRG6PYSasuWXPJB+Cw".repeat(3)),
                "Body": BODY,
                "Attributes": { "ApproximateReceiveCount": "1", "SentTimestamp": "1764000000000" },
            });
            if let Some(trace) = trace {
                message["Attributes"]["AWSTraceHeader"] = trace.into();
            }
            message
        };
        let received = json!({ "Messages": (0..10).map(message).collect::<Vec<Value>>() });
        let done: Vec<_> = (0..10).map(|n: usize| json!({ "Id": n.to_string() })).collect();
        let deleted = json!({ "Successful": done, "Failed": [] });
        let (received, deleted) = (received.to_string().into(), deleted.to_string().into());
        Self { received, receives: Arc::default(), deleted, permits: None, batches: Arc::new(Semaphore::new(0)) }
    }

    fn answer(&self, action: &str) -> bytes::Bytes {
        match action {
            "ReceiveMessage" => {
                let number = format!("{:08x}", self.receives.fetch_add(1, Ordering::Relaxed));
                self.received.replace(NUMBER, &number).into()
            }
            "DeleteMessageBatch" => self.deleted.clone(),
            "GetQueueUrl" => json!({ "QueueUrl": "http://sqs/bench" }).to_string().into(),
            _ => json!({ "Attributes": { "MaximumMessageSize": "1048576" } }).to_string().into(),
        }
    }
}

impl HttpConnector for Canned {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let action = request.headers().get("x-amz-target").and_then(|target| target.rsplit('.').next());
        let action = action.unwrap_or_default().to_owned();
        let service = self.clone();
        HttpConnectorFuture::new(async move {
            if let ("ReceiveMessage", Some(permits)) = (&*action, &service.permits) {
                permits.acquire().await.map_err(|error| ConnectorError::other(error.into(), None))?.forget();
            }
            let status = StatusCode::try_from(200).map_err(|error| ConnectorError::other(error.into(), None))?;
            if action == "DeleteMessageBatch" {
                service.batches.add_permits(1);
            }
            Ok(HttpResponse::new(status, service.answer(&action).into()))
        })
    }
}

pub fn ten() -> Result<Step> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let queue = runtime.block_on(open(Canned::new(None)))?;
    Ok(Box::new(move || assert_eq!(runtime.block_on(acked::ten(&*queue, Duration::from_secs(1))), 10)))
}

async fn open(service: Canned) -> Result<Arc<dyn Queue>> {
    let options = Options {
        region: Some("eu-central-1".into()),
        endpoint_url: Some("http://sqs".into()),
        credentials: Some(("key".into(), "secret".into())),
        http: Some(SharedHttpConnector::new(service)),
        ..Options::default()
    };
    Ok(SqsBroker::connect(options).await?.open(&ChannelSpec::new("bench".parse()?)).await?)
}

/// A handler that acks immediately.
struct Acks;

#[async_trait::async_trait]
impl Handler for Acks {
    async fn handle(&self, _: &Call) -> Outcome {
        Outcome::Ack
    }
}

/// A consumer receives ten messages, runs a handler that does nothing on each, and acks them. Its log is on.
pub fn consumed() -> Result<Step> {
    consumer(None, false, false)
}

/// Like [`consumed`], with messages that belong to traces. The host has no telemetry.
pub fn consumed_traced() -> Result<Step> {
    consumer(Some(UNSAMPLED), false, false)
}

/// Like [`consumed_traced`], with metrics.
pub fn consumed_with_metrics() -> Result<Step> {
    consumer(Some(UNSAMPLED), true, false)
}

/// Like [`consumed_with_metrics`], with traces. No trace is sampled.
pub fn consumed_with_telemetry() -> Result<Step> {
    consumer(Some(UNSAMPLED), true, true)
}

/// Like [`consumed_with_telemetry`], with all traces sampled. Spans are created and dropped, because no collector runs.
pub fn consumed_sampled() -> Result<Step> {
    consumer(Some(SAMPLED), true, true)
}

fn consumer(trace: Option<&str>, metrics: bool, traces: bool) -> Result<Step> {
    std::mem::forget(hostler_telemetry::start(Form::Json));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let permits = Arc::new(Semaphore::new(0));
    let service = Canned { permits: Some(Arc::clone(&permits)), ..Canned::new(trace) };
    let batches = Arc::clone(&service.batches);
    let queue = runtime.block_on(open(service))?;
    let named = Named { consumer: "bench".into(), channel: "bench".into(), system: "aws_sqs" };
    let exporters = Exporters { prometheus: Some(listen((Ipv4Addr::LOCALHOST, 0).into())?), ..Exporters::default() };
    let registry = if metrics { Metrics::start(exporters, &Resource::new(), [named])? } else { None };
    let metrics = registry.as_ref().and_then(|registry| registry.consumer(0));
    let queue: Arc<dyn Queue> = match metrics.clone() {
        Some(metrics) => Arc::new(MeteredQueue::new(queue, metrics)),
        None => queue,
    };
    let traces = if traces { Traces::start("http://127.0.0.1:9", &Resource::new())? } else { None };
    let (phase, phases) = watch::channel(Phase::Running);
    let consumer = Consumer {
        spec: spec(),
        queue,
        handler: Arc::new(Acks),
        replies: None,
        idempotency: None,
        guests: Pools::new(runtime.handle().clone(), None),
        status: StatusHandle::new(Arc::default(), Arc::default()),
        metrics,
        traces,
        pause: watch::channel(false).1,
        requests: Requests::default(),
        exit: CancellationToken::new(),
    };
    runtime.spawn(consumer.run(phases));
    Ok(Box::new(move || {
        let _ = (&phase, &registry);
        permits.add_permits(1);
        let acked = runtime.block_on(batches.acquire());
        acked.expect("a semaphore that is never closed").forget();
    }))
}

fn spec() -> Spec {
    const SECOND: Duration = Duration::from_secs(1);
    Spec {
        name: "bench".into(),
        channel: "bench".into(),
        ordered: false,
        batch: None,
        concurrency: 10,
        lease: 30 * SECOND,
        processing_timeout: 20 * SECOND,
        delay_tolerance: 60 * SECOND,
        longest_poll: 20 * SECOND,
        rate_limit: None,
        policy: retrying(),
        breaker: None,
        output: 64 * 1024,
    }
}
