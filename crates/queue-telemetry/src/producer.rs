//! Sends messages. If tracing is enabled, each send call is recorded as a span.

use std::fmt;
use std::sync::Arc;

use super::destination;
use hostler_queue::{Broker, Origin, QueueError, Request, Requested, SendError, Sent};
use hostler_telemetry::traces::{Beginning, Operation, Span, Traces, attribute};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Outgoing, TraceContext, carries_trace};

/// A sender for the messages of handlers and users. Code that moves messages between queues uses the [`Broker`]
/// directly.
#[derive(Clone)]
pub struct Producer {
    broker: Arc<dyn Broker>,
    traces: Option<Traces>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("traces", &self.traces).finish_non_exhaustive()
    }
}

impl Producer {
    /// Creates a producer that sends through `broker`. `traces`: creates the spans of the send calls. `None`: tracing
    /// is disabled.
    pub fn new(broker: Arc<dyn Broker>, traces: Option<Traces>) -> Self {
        Self { broker, traces }
    }

    /// Returns the [`Traces`] that create the producer's spans. `None`: tracing is disabled.
    pub fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Checks a message that is to be sent later, like [`Broker::check`].
    ///
    /// # Errors
    /// The first rule that the message violates.
    pub fn check(&self, channel: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        self.broker.check(channel, message)
    }

    /// Sends messages like [`Broker::send`], within a span. The span's parent is the trace context of the first
    /// message. Each message gets the context of the span, unless its attributes already contain a trace context.
    pub async fn send(&self, channel: &Channel, mut batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let span = self.begin(channel, &mut batch);
        let results = self.broker.send(channel, batch).await;
        self.end(span, channel, &results);
        results
    }

    /// Sends a message to a subject like [`Broker::request`], within a span.
    ///
    /// # Errors
    /// The same as those of [`Broker::request`].
    pub async fn request(&self, mut request: Request) -> Result<Requested, SendError> {
        let subject: Arc<str> = request.subject.as_str().into();
        let batch = std::slice::from_mut(&mut request.message);
        let span = self.traces.as_ref().map(|traces| begin(traces, &subject, batch));
        let result = self.broker.request(request).await;
        if let Some(mut span) = span.filter(Span::is_recording) {
            span.set_all(destination(Origin { system: "nats", address: None }, subject, None).attributes());
            match &result {
                Ok(requested) => span.set(attribute::MESSAGING_MESSAGE_ID, requested.clone().into_id()),
                Err(error) => span.fail(kind(error), &error.to_string()),
            }
        }
        result
    }

    fn begin(&self, channel: &Channel, batch: &mut [Outgoing]) -> Option<Span> {
        self.traces.as_ref().map(|traces| begin(traces, &channel.to_string(), batch))
    }

    fn end(&self, span: Option<Span>, channel: &Channel, results: &[Result<Sent, SendError>]) {
        if let Some(span) = span.filter(Span::is_recording) {
            describe(span, channel, self.broker.origin(channel), results);
        }
    }

    /// Sends one message and returns its id.
    ///
    /// # Errors
    /// The same as those of [`Broker::send`].
    pub async fn send_one(&self, channel: &Channel, message: Outgoing) -> Result<String, SendError> {
        only(self.send(channel, vec![message]).await)
    }

    /// Sends one message and returns its id. If the channel does not support dedupe keys, sends the message without its
    /// key.
    ///
    /// # Errors
    /// The same as those of [`Broker::send`].
    pub async fn send_deduped_where_possible(&self, channel: &Channel, message: Outgoing) -> Result<String, SendError> {
        only(self.send_all_deduped_where_possible(channel, vec![message]).await)
    }

    /// Sends messages like [`Self::send`]. If the channel does not support dedupe keys, sends the messages without their keys.
    pub async fn send_all_deduped_where_possible(
        &self,
        channel: &Channel,
        mut batch: Vec<Outgoing>,
    ) -> Vec<Result<Sent, SendError>> {
        let span = self.begin(channel, &mut batch);
        let undeduped: Vec<_> = batch.iter().map(|message| Outgoing { dedupe: None, ..message.clone() }).collect();
        let mut results = self.broker.send(channel, batch).await;
        let lacks_dedupe =
            |result: &Result<_, _>| matches!(result, Err(SendError::Invalid(Invalid::DedupeUnsupported(_))));
        if !results.is_empty() && results.iter().all(lacks_dedupe) {
            results = self.broker.send(channel, undeduped).await;
        }
        self.end(span, channel, &results);
        results
    }
}

/// Returns the result for the only message of a batch. If the queue returned no result, returns an error.
fn only(mut results: Vec<Result<Sent, SendError>>) -> Result<String, SendError> {
    let unanswered = || QueueError::Unavailable("the queue did not answer".to_owned());
    results.pop().ok_or_else(unanswered)?.map(|sent| sent.id)
}

/// Begins a span for sending `batch` to `destination`, and puts the span's context into each message. If the attributes of
/// a message already contain a trace context, leaves the message unchanged and links the span to that context.
fn begin(traces: &Traces, destination: &str, batch: &mut [Outgoing]) -> Span {
    let parent = batch.first().and_then(|first| first.trace.clone());
    let beginning = Beginning { parent: parent.as_ref().map(|trace| trace.span()), ..Beginning::default() };
    let mut span = traces.operation(Operation::Send, destination, beginning);
    let own = TraceContext::new(span.context()).map(Arc::new);
    for message in &mut *batch {
        if !carries_trace(&message.attributes) {
            message.trace.clone_from(&own);
        } else if let Some(other) = TraceContext::of(&message.attributes) {
            span.link(other.span());
        }
    }
    match batch {
        [one] => span.set(attribute::MESSAGING_MESSAGE_BODY_SIZE, count(one.body.len())),
        many => span.set(attribute::MESSAGING_BATCH_MESSAGE_COUNT, count(many.len())),
    }
    span
}

/// Adds the attributes that are known only after the send call (destination, message id and error), and ends the span.
fn describe(mut span: Span, channel: &Channel, origin: Origin, results: &[Result<Sent, SendError>]) {
    span.set_all(destination(origin, channel.to_string().into(), None).attributes());
    if let [Ok(sent)] = results {
        span.set(attribute::MESSAGING_MESSAGE_ID, sent.id.clone());
    }
    if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
        span.fail(kind(error), &error.to_string());
    }
}

/// Returns the value of the attribute `error.type` for a failed send call.
fn kind(error: &SendError) -> &'static str {
    match error {
        SendError::Invalid(_) => "invalid",
        SendError::Queue(error) => error.kind(),
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Receive;
    use hostler_queue::fake::FakeBroker;
    use hostler_queue::{ChannelSpec, Delivery};
    use hostler_telemetry::traces::memory::{Kept, attribute as value};
    use hostler_types::message::{AttributeValue, MAX_DELAY};
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    async fn received(broker: &FakeBroker, channel: &Channel) -> Vec<Delivery> {
        let queue = broker.open(&ChannelSpec::new(channel.clone())).await.unwrap();
        let request = Receive { max: 10, wait: Duration::ZERO, lease: Duration::from_secs(9) };
        queue.receive(request, &CancellationToken::new()).await.unwrap()
    }

    fn parent(flags: &str) -> Option<Arc<TraceContext>> {
        TraceContext::parse(&PARENT.replace("-01", flags), None).map(Arc::new)
    }

    #[tokio::test]
    async fn a_message_goes_in_the_trace_of_the_span_that_sends_it() {
        let (broker, kept, channel) = (FakeBroker::default(), Kept::default(), "jobs".parse().unwrap());
        let producer = Producer::new(Arc::new(broker.clone()), Some(kept.traces()));
        let message = Outgoing { body: b"abc".to_vec(), trace: parent("-01"), ..Outgoing::default() };
        let id = producer.send_one(&channel, message).await.unwrap();
        let [span] = &kept.spans()[..] else { panic!("{:?}", kept.spans()) };
        assert_eq!((&*span.name, &span.span_kind), ("send jobs", &opentelemetry::trace::SpanKind::Producer));
        assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
        let carried = received(&broker, &channel).await[0].message.trace.clone().unwrap();
        assert_eq!(carried.span().span_id(), span.span_context.span_id());
        assert_eq!(carried.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        let of = |name| value(span, name);
        assert_eq!(of("messaging.message.id"), Some(id));
        assert_eq!(
            (of("messaging.message.body.size").as_deref(), of("messaging.batch.message_count")),
            (Some("3"), None)
        );
        assert_eq!((of("messaging.system").as_deref(), of("error.type")), (Some("hostler"), None));
    }

    #[tokio::test]
    async fn a_context_that_its_sender_set_is_kept_and_linked_to() {
        let (broker, kept, channel) = (FakeBroker::default(), Kept::default(), "jobs".parse().unwrap());
        let producer = Producer::new(Arc::new(broker.clone()), Some(kept.traces()));
        let own = [("traceparent".to_owned(), AttributeValue::Text(PARENT.to_owned()))];
        let batch = vec![Outgoing { attributes: own.into(), ..Outgoing::default() }, Outgoing::default()];
        producer.send(&channel, batch).await;
        let [span] = &kept.spans()[..] else { panic!("{:?}", kept.spans()) };
        assert_eq!(span.links.links[0].span_context.span_id().to_string(), "b7ad6b7169203331");
        assert_eq!(value(span, "messaging.batch.message_count").as_deref(), Some("2"));
        let carried = received(&broker, &channel).await;
        let carried = carried.iter().map(|delivery| delivery.message.trace.as_ref().unwrap().to_string());
        let new = TraceContext::new(span.span_context.clone()).unwrap().to_string();
        assert_eq!(carried.collect::<Vec<_>>(), [PARENT.to_owned(), new]);
    }

    #[tokio::test]
    async fn a_trace_that_is_not_sampled_goes_on_unsampled_and_unseen() {
        let (broker, kept, channel) = (FakeBroker::default(), Kept::default(), "jobs".parse().unwrap());
        let producer = Producer::new(Arc::new(broker.clone()), Some(kept.traces()));
        producer.send_one(&channel, Outgoing { trace: parent("-00"), ..Outgoing::default() }).await.unwrap();
        assert_eq!(kept.spans().len(), 0);
        let carried = received(&broker, &channel).await[0].message.trace.clone().unwrap();
        assert_eq!(carried.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(!carried.span().is_sampled());
    }

    #[tokio::test]
    async fn a_send_that_fails_says_how() {
        let (kept, channel) = (Kept::default(), "jobs".parse().unwrap());
        let producer = Producer::new(Arc::new(FakeBroker::default()), Some(kept.traces()));
        let late = Outgoing { delay: MAX_DELAY * 2, ..Outgoing::default() };
        assert!(producer.send_one(&channel, late).await.is_err());
        let [span] = &kept.spans()[..] else { panic!("{:?}", kept.spans()) };
        assert_eq!(value(span, "error.type").as_deref(), Some("invalid"));
        assert!(matches!(&span.status, opentelemetry::trace::Status::Error { .. }));
    }
}
