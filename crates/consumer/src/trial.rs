//! A consumer of the fake queue, for the unit tests of this crate.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Consumer, Policy, Requests, Spec, StatusHandle};
use hostler_config::{OnProcessingTimeout, Retry};
use hostler_handler::{Call, Handler, Outcome, Pools};
use hostler_queue::fake::FakeBroker;
use hostler_queue::{Broker, ChannelSpec, Queue};
use hostler_types::channel::Channel;
use hostler_types::job::NewJobItem;
use hostler_types::message::Outgoing;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn work() -> Channel {
    "work".parse().unwrap()
}

/// Returns a fake service, and its queue with these messages.
pub(crate) async fn fake(bodies: &[&str]) -> (FakeBroker, Arc<dyn Queue>) {
    let broker = FakeBroker::default();
    let queue = broker.open(&ChannelSpec { max_receives: Some(5), ..ChannelSpec::new(work()) }).await.unwrap();
    let outgoing = bodies.iter().map(|body| Outgoing { body: (*body).into(), ..Outgoing::default() });
    for sent in broker.send(&work(), outgoing.collect()).await {
        sent.unwrap();
    }
    (broker, queue)
}

/// Returns a consumer of this queue. Its handler does what the body says: `fail`, `hang`, `add` (an item to the job, and then
/// fails at the first attempt), or anything else for an ack.
pub(crate) fn consumer(queue: Arc<dyn Queue>) -> Consumer {
    let retry = Retry { requeues: 9, requeue_delay: SECOND, delays: 0, delay: SECOND, max_delay: SECOND };
    let spec = Spec {
        name: "test".into(),
        channel: "work".into(),
        ordered: false,
        concurrency: 16,
        batch: None,
        lease: 30 * SECOND,
        processing_timeout: 60 * SECOND,
        delay_tolerance: 120 * SECOND,
        longest_poll: 20 * SECOND,
        rate_limit: None,
        policy: Policy { retry, on_processing_timeout: OnProcessingTimeout::Retry, dead_letter: true },
        breaker: None,
        output: 1024,
    };
    Consumer {
        spec,
        queue,
        handler: Arc::new(Script),
        replies: None,
        idempotency: None,
        guests: Pools::new(Handle::current(), None),
        status: StatusHandle::new(Arc::default(), Arc::default()),
        metrics: None,
        traces: None,
        pause: watch::channel(false).1,
        requests: Requests::default(),
        exit: CancellationToken::new(),
    }
}

fn add(call: &Call) -> Outcome {
    let Some(job) = &call.job else { return Outcome::DeadLetter("no job".into()) };
    let payload = call.attempt.to_string().into();
    if let Err(error) = job.add_items("child", vec![NewJobItem { payload, ..NewJobItem::default() }]) {
        return Outcome::DeadLetter(error.to_string());
    }
    if call.attempt == 1 { Outcome::Failed("after adding".into()) } else { Outcome::Ack }
}

struct Script;

#[async_trait]
impl Handler for Script {
    async fn handle(&self, call: &Call) -> Outcome {
        match &*call.message.body {
            b"fail" => Outcome::Failed("as told".into()),
            b"hang" => std::future::pending().await,
            b"add" => add(call),
            _ => Outcome::Ack,
        }
    }
}
