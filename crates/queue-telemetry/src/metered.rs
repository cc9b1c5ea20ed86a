//! A queue service whose calls are measured for one consumer; there is none where nothing is measured.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use hostler_queue::{
    Broker, Change, ChannelSpec, Delivery, Depth, Finding, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError,
    Receive, Redriven, SendError, Sent, Settlement, Unsettled,
};
use hostler_telemetry::metrics::{ConsumerMetrics, Operation};
use hostler_types::channel::Channel;
use hostler_types::message::{Message, Outgoing};

/// A queue that measures its calls.
pub struct MeteredQueue {
    inner: Arc<dyn Queue>,
    metrics: ConsumerMetrics,
}

impl MeteredQueue {
    /// Measures the calls of `inner`.
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

    fn origin(&self) -> Origin {
        self.inner.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let begun = Instant::now();
        let result = self.inner.receive(request, stop).await;
        let error = result.as_ref().err().map(of_queue);
        self.metrics.called(Operation::Receive, begun.elapsed(), error);
        self.metrics.consumed(result.as_ref().map_or(0, Vec::len));
        result
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let begun = Instant::now();
        let results = self.inner.extend(leases, by).await;
        let error = results.iter().find_map(|result| result.as_ref().err()).map(of_lease);
        self.metrics.called(Operation::Extend, begun.elapsed(), error);
        self.metrics.leases_extended(results.iter().filter(|result| result.is_ok()).count());
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let begun = Instant::now();
        let results = self.inner.settle(batch).await;
        let error = results.iter().find_map(|result| result.as_ref().err()).map(|unsettled| of_lease(&unsettled.error));
        self.metrics.called(Operation::Settle, begun.elapsed(), error);
        results
    }

    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        self.inner.load(message).await
    }
}

/// A queue service that measures what is sent.
pub struct MeteredBroker {
    inner: Arc<dyn Broker>,
    metrics: ConsumerMetrics,
}

impl MeteredBroker {
    /// Measures what is sent through `inner`.
    pub fn new(inner: Arc<dyn Broker>, metrics: ConsumerMetrics) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl Broker for MeteredBroker {
    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        self.inner.on_its_clock(time)
    }

    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        self.inner.open(spec).await
    }

    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.inner.declare(spec).await
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.inner.origin(channel)
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let begun = Instant::now();
        let results = self.inner.send(channel, batch).await;
        let errors = results.iter().map(|result| result.as_ref().err().map(of_send));
        self.metrics.sent(&channel.to_string(), begun.elapsed(), errors);
        results
    }

    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        self.inner.destinations().await
    }

    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        self.inner.missing_destinations(channels).await
    }

    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        self.inner.make_destination(channel).await
    }

    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError> {
        self.inner.depths(channels).await
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        self.inner.each_depth(channels).await
    }

    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        self.inner.channels().await
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        self.inner.open_stored(channel).await
    }

    async fn look(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        self.inner.look(channel, each).await
    }

    async fn redrive(
        &self,
        from: &Channel,
        to: &Channel,
        per_second: Option<u32>,
        stop: &CancellationToken,
        progress: &mut (dyn FnMut(Redriven) + Send),
    ) -> Result<Redriven, QueueError> {
        self.inner.redrive(from, to, per_second, stop, progress).await
    }

    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        self.inner.plan(wanted).await
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        self.inner.provision(wanted, done).await
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        self.inner.inspect(spec).await
    }
}

fn of_queue(error: &QueueError) -> &'static str {
    match error {
        QueueError::Unavailable(_) => "unavailable",
        QueueError::Refused(_) => "refused",
    }
}

fn of_lease(error: &LeaseError) -> &'static str {
    match error {
        LeaseError::Lost(_) => "lease-lost",
        LeaseError::Retry(_) => "unavailable",
        LeaseError::Refused(_) => "refused",
    }
}

fn of_send(error: &SendError) -> &'static str {
    match error {
        SendError::Invalid(_) => "invalid",
        SendError::Queue(error) => of_queue(error),
    }
}
