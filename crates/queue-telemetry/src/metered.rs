//! Wraps a queue and a broker to record metrics for the calls of one consumer. Used only if metrics are enabled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use hostler_queue::{
    Broker, ChannelSpec, Delivery, LeaseError, LeaseHandle, Limits, Link, Origin, Queue, QueueError, Receive, Records,
    Request, Requested, Schedules, SendError, Sent, Settlement, Unsettled,
};
use hostler_telemetry::metrics::{ConsumerMetrics, Operation};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Message, Outgoing};

/// Queue wrapper that records metrics for each call.
pub struct MeteredQueue {
    inner: Arc<dyn Queue>,
    metrics: ConsumerMetrics,
}

impl MeteredQueue {
    /// Wraps `inner` and records its calls in `metrics`.
    pub fn new(inner: Arc<dyn Queue>, metrics: ConsumerMetrics) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl Queue for MeteredQueue {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn is_ordered(&self) -> bool {
        self.inner.is_ordered()
    }

    fn ids_repeat(&self) -> bool {
        self.inner.ids_repeat()
    }

    fn decides_retries(&self) -> bool {
        self.inner.decides_retries()
    }

    fn duration_of(&self, lease: &LeaseHandle, asked: Duration) -> Duration {
        self.inner.duration_of(lease, asked)
    }

    fn origin(&self) -> Origin {
        self.inner.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let begun = Instant::now();
        let result = self.inner.receive(request, stop).await;
        let error = result.as_ref().err().map(QueueError::kind);
        self.metrics.called(Operation::Receive, begun.elapsed(), error);
        self.metrics.consumed(result.as_ref().map_or(0, Vec::len));
        result
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let begun = Instant::now();
        let results = self.inner.extend(leases, by).await;
        let error = results.iter().find_map(|result| result.as_ref().err()).map(LeaseError::kind);
        self.metrics.called(Operation::Extend, begun.elapsed(), error);
        self.metrics.leases_extended(results.iter().filter(|result| result.is_ok()).count());
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let begun = Instant::now();
        let results = self.inner.settle(batch).await;
        let error = results.iter().find_map(|result| result.as_ref().err()).map(|unsettled| unsettled.error.kind());
        self.metrics.called(Operation::Settle, begun.elapsed(), error);
        results
    }

    async fn rest(&self) {
        self.inner.rest().await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.inner.taken_back().await
    }

    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        self.inner.load(message).await
    }
}

/// Broker wrapper that records metrics for each send call.
pub struct MeteredBroker {
    inner: Arc<dyn Broker>,
    metrics: ConsumerMetrics,
}

impl MeteredBroker {
    /// Wraps `inner` and records its send calls in `metrics`.
    pub fn new(inner: Arc<dyn Broker>, metrics: ConsumerMetrics) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl Broker for MeteredBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        self.inner.open(spec).await
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let begun = Instant::now();
        let results = self.inner.send(channel, batch).await;
        let errors = results.iter().map(|result| result.as_ref().err().map(of_send));
        self.metrics.sent(&channel.to_string(), begun.elapsed(), errors);
        results
    }

    async fn request(&self, request: Request) -> Result<Requested, SendError> {
        let (begun, destination) = (Instant::now(), root(&request.subject));
        let result = self.inner.request(request).await;
        self.metrics.sent(&destination, begun.elapsed(), [result.as_ref().err().map(of_send)]);
        result
    }

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        self.inner.schedules()
    }

    fn records(&self) -> Result<Arc<dyn Records>, QueueError> {
        self.inner.records()
    }

    fn check(&self, channel: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        self.inner.check(channel, message)
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.inner.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.inner.link()
    }
}

/// Returns the destination under which the metrics count a subject. Those with the same first token share one, because guests may
/// name any number of subjects.
fn root(subject: &str) -> String {
    subject.split_once('.').map_or_else(|| subject.to_owned(), |(first, _)| format!("{first}.>"))
}

fn of_send(error: &SendError) -> &'static str {
    match error {
        SendError::Invalid(_) => "invalid",
        SendError::Queue(error) => error.kind(),
    }
}
