//! Spans of one consumer: one span for each receive call that returned messages or failed, for each message, and for
//! each settle call.
//!
//! The span of a message has the producer's span as its parent, and also links to it. The span of a receive or settle
//! call can concern several messages, so it has a link for each message. The settle call of a single message belongs to
//! the trace of that message. If no message of a call is sampled, the span of the call is not sampled.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::policy::Disposition;
use hostler_handler::{Call, Outcome};
use hostler_queue::{Delivery, Queue, QueueError, Unsettled};
use hostler_telemetry::metrics::names::{DISPOSITION, OUTCOME};
use hostler_telemetry::traces::{Beginning, KeyValue, Operation, Span, SpanContext, Traces, attribute};
use hostler_types::message::{Message, TraceContext};

/// Attribute with the number of the delivery attempt; 1 is the first.
const ATTEMPT: &str = "hostler.attempt";

/// Creates the spans of one consumer.
#[derive(Clone)]
pub(super) struct Spans {
    traces: Traces,
    channel: Arc<str>,
    /// Attributes of every span.
    attributes: Arc<[KeyValue]>,
}

impl Spans {
    pub(super) fn new(traces: Traces, consumer: &Arc<str>, channel: &Arc<str>, queue: &dyn Queue) -> Self {
        let destination =
            hostler_queue_telemetry::destination(queue.origin(), Arc::clone(channel), Some(Arc::clone(consumer)));
        Self { traces, channel: Arc::clone(channel), attributes: destination.attributes().into() }
    }

    fn begin(&self, operation: Operation, beginning: Beginning<'_>) -> Span {
        let mut span = self.traces.operation(operation, &self.channel, beginning);
        if span.is_recording() {
            span.set_all(self.attributes.iter().cloned());
        }
        span
    }

    /// Records the span of a receive call that started at `since` and has ended. A call that returned no messages has
    /// no span.
    pub(super) fn received(&self, since: SystemTime, result: &Result<Vec<Delivery>, QueueError>) {
        let messages: &[Delivery] = match result {
            Ok(messages) if messages.is_empty() => return,
            Ok(messages) => messages,
            Err(_) => &[],
        };
        let produced = messages.iter().map(|delivery| produced(&delivery.message));
        if !messages.is_empty() && !is_wanted(produced.clone()) {
            return;
        }
        let links = produced.flatten().cloned().collect();
        let beginning = Beginning { links, since: Some(since), ..Beginning::default() };
        let mut span = self.begin(Operation::Receive, beginning);
        match result {
            Ok(messages) => span.set(attribute::MESSAGING_BATCH_MESSAGE_COUNT, count(messages.len())),
            Err(error) => span.fail(error.kind(), &error.to_string()),
        }
    }

    /// Starts the span of a message. Returns the span and the trace context in which the handler runs.
    pub(super) fn process(&self, message: &Message, attempt: u32) -> (Span, Option<Arc<TraceContext>>) {
        let parent = produced(message);
        let beginning = Beginning { parent, links: parent.into_iter().cloned().collect(), since: None };
        let mut span = self.begin(Operation::Process, beginning);
        if span.is_recording() {
            let size = match &message.claim {
                Some(claim) => claim.size.map(|size| i64::try_from(size).unwrap_or(i64::MAX)),
                None => Some(count(message.body.len())),
            };
            span.set(attribute::MESSAGING_MESSAGE_ID, message.id.clone());
            span.set_all(size.map(|size| KeyValue::new(attribute::MESSAGING_MESSAGE_BODY_SIZE, size)));
            span.set(ATTEMPT, i64::from(attempt));
        }
        let trace = TraceContext::new(span.context()).map(Arc::new);
        (span, trace)
    }

    /// Starts the span of a settle call. `batch`: handler calls of the messages to settle. Returns `None` if none of
    /// these messages is sampled.
    pub(super) fn settle(&self, batch: &[&Call]) -> Option<Span> {
        if !is_wanted(batch.iter().map(|call| ran_in(call))) {
            return None;
        }
        let links = batch.iter().filter_map(|call| produced(&call.message).or(ran_in(call)).cloned()).collect();
        let parent = if let [one] = batch { ran_in(one) } else { None };
        let mut span = self.begin(Operation::Settle, Beginning { parent, links, since: None });
        match batch {
            [one] => span.set(attribute::MESSAGING_MESSAGE_ID, one.message.id.clone()),
            many => span.set(attribute::MESSAGING_BATCH_MESSAGE_COUNT, count(many.len())),
        }
        Some(span)
    }
}

/// Returns the span in which the handler ran during this call.
fn ran_in(call: &Call) -> Option<&SpanContext> {
    call.trace.as_ref().map(|trace| trace.span())
}

/// Ends the span of a settle call. Marks it as failed if any message was not settled.
pub(super) fn settled(mut span: Span, results: &[Result<(), Unsettled>]) {
    let failed = results.iter().filter_map(|result| result.as_ref().err()).collect::<Vec<_>>();
    if let Some(first) = failed.first() {
        span.fail(first.error.kind(), &format!("{} of {} not settled: {}", failed.len(), results.len(), first.error));
    }
}

/// Ends the span of a message. `since`: start time of the handler. `took`: run time of the handler.
pub(super) fn processed(
    mut span: Span,
    (since, took): (SystemTime, Duration),
    outcome: &Outcome,
    disposition: &Disposition,
) {
    span.set(OUTCOME, outcome.name());
    span.set(DISPOSITION, disposition.name());
    if outcome.kind().is_error() {
        span.fail(outcome.name(), &outcome.reason().unwrap_or_default());
    }
    span.end_at(since + took);
}

/// Returns the span in which the producer sent the message.
fn produced(message: &Message) -> Option<&SpanContext> {
    message.trace.as_ref().map(|trace| trace.span())
}

/// Returns `true` if at least one of these messages is sampled or has no trace context.
fn is_wanted<'a>(contexts: impl Iterator<Item = Option<&'a SpanContext>>) -> bool {
    let mut contexts = contexts;
    contexts.any(|context| context.is_none_or(SpanContext::is_sampled))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_handler::{Bounds, Output};
    use hostler_queue::fake::FakeBroker;
    use hostler_queue::{Broker as _, ChannelSpec, LeaseError, Receive, Settlement};
    use hostler_telemetry::traces::memory::{Kept, attribute as value};
    use hostler_types::message::Outgoing;
    use opentelemetry::trace::{SpanKind, Status};
    use tokio_util::sync::CancellationToken;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// Returns an exporter that keeps spans in memory, the spans of a consumer that uses it, and deliveries of messages
    /// with these trace contexts.
    async fn consumer(traces: &[Option<&str>]) -> (Kept, Spans, Vec<Delivery>) {
        let (broker, kept, channel) = (FakeBroker::default(), Kept::default(), "jobs".parse().unwrap());
        let trace = |text: &&str| TraceContext::parse(text, None).map(Arc::new);
        let message = |text: &Option<&str>| Outgoing { trace: text.as_ref().and_then(trace), ..Outgoing::default() };
        broker.send(&channel, traces.iter().map(message).collect()).await;
        let queue = broker.open(&ChannelSpec::new(channel)).await.unwrap();
        let request = Receive { max: 10, wait: Duration::ZERO, lease: Duration::from_secs(9) };
        let deliveries = queue.receive(request, &CancellationToken::new()).await.unwrap();
        let spans = Spans::new(kept.traces(), &"one".into(), &"jobs".into(), &*queue);
        (kept, spans, deliveries)
    }

    /// Returns a handler call for this message. `trace`: trace context in which the handler ran.
    fn call(message: &Arc<Message>, trace: Option<&Arc<TraceContext>>) -> Call {
        let bounds = Bounds::new(Duration::ZERO);
        let call = Call::new(Arc::clone(message), "jobs".into(), 1, bounds, Output::new(0));
        Call { trace: trace.cloned(), ..call }
    }

    #[tokio::test]
    async fn a_message_is_processed_in_its_producer_s_trace_and_settled_there() {
        let (kept, spans, deliveries) = consumer(&[Some(PARENT)]).await;
        let message = Arc::clone(&deliveries[0].message);
        spans.received(SystemTime::now(), &Ok(deliveries));
        let (span, trace) = spans.process(&message, 2);
        let trace = trace.unwrap();
        let began = SystemTime::now();
        let settling = spans.settle(&[&call(&message, Some(&trace))]).unwrap();
        processed(span, (began, Duration::from_secs(1)), &Outcome::Ack, &Disposition::Ack);
        settled(settling, &[Ok(())]);

        let all = kept.spans();
        let [receive, process, settle] = &all[..] else { panic!("{all:?}") };
        let names = all.iter().map(|span| (&*span.name, span.span_kind.clone())).collect::<Vec<_>>();
        let client = SpanKind::Client;
        let expected =
            [("receive jobs", client.clone()), ("process jobs", SpanKind::Consumer), ("settle jobs", client)];
        assert_eq!(names, expected);
        for (span, count) in [(receive, Some("1")), (process, None), (settle, None)] {
            let linked: Vec<_> = span.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
            assert_eq!(linked, ["b7ad6b7169203331"], "{}", span.name);
            assert_eq!(value(span, "hostler.consumer").as_deref(), Some("one"));
            assert_eq!(value(span, "messaging.destination.name").as_deref(), Some("jobs"));
            assert_eq!(value(span, "messaging.operation.type").as_deref(), span.name.split(' ').next());
            assert_eq!(value(span, "messaging.batch.message_count").as_deref(), count);
            assert_eq!(span.status, Status::Unset);
        }
        assert_eq!(process.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(settle.parent_span_id, process.span_context.span_id());
        assert_eq!(process.end_time, began + Duration::from_secs(1));
        assert_eq!(trace.span().span_id(), process.span_context.span_id());
        let of = |name| value(process, name);
        assert_eq!((of("messaging.message.id"), of("hostler.attempt")), (Some(message.id.clone()), Some("2".into())));
        assert_eq!(
            (of("hostler.outcome").as_deref(), of("hostler.disposition").as_deref()),
            (Some("ack"), Some("ack"))
        );
    }

    #[tokio::test]
    async fn what_fails_says_how() {
        let (kept, spans, deliveries) = consumer(&[None]).await;
        spans.received(SystemTime::now(), &Err(QueueError::Unavailable("throttled".into())));
        let end = |outcome| {
            let (span, _) = spans.process(&deliveries[0].message, 1);
            processed(span, (SystemTime::now(), Duration::ZERO), &outcome, &Disposition::None);
        };
        end(Outcome::Trapped("unreachable".into()));
        end(Outcome::Delay(Duration::ZERO));
        end(Outcome::LeaseLost);
        let settling = spans.settle(&[&call(&deliveries[0].message, None)]).unwrap();
        let settlement = Settlement::Ack(hostler_queue::Receipt::new("r"));
        settled(settling, &[Err(Unsettled { settlement, error: LeaseError::Lost("over".into()) }), Ok(())]);
        let types: Vec<_> = kept.spans().iter().map(|span| value(span, "error.type")).collect();
        let types: Vec<_> = types.iter().map(Option::as_deref).collect();
        assert_eq!(types, [Some("unavailable"), Some("trapped"), None, Some("lease-lost"), Some("lease-lost")]);
        let Status::Error { description } = &kept.spans()[4].status else { panic!("{:?}", kept.spans()[4]) };
        assert_eq!(&**description, "1 of 2 not settled: the lease is lost: over");
    }

    #[tokio::test]
    async fn what_nobody_samples_is_not_seen_and_goes_on_as_it_is() {
        let unsampled = PARENT.replace("-01", "-00");
        let (kept, spans, deliveries) = consumer(&[Some(&unsampled), Some(&unsampled)]).await;
        let messages: Vec<_> = deliveries.iter().map(|delivery| Arc::clone(&delivery.message)).collect();
        spans.received(SystemTime::now(), &Ok(deliveries));
        spans.received(SystemTime::now(), &Ok(Vec::new()));
        let traces: Vec<_> = messages.iter().map(|message| spans.process(message, 1).1.unwrap()).collect();
        assert!(traces.iter().all(|trace| !trace.span().is_sampled()));
        assert_eq!(traces[0].trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        let both: Vec<_> = messages.iter().zip(&traces).map(|(one, trace)| call(one, Some(trace))).collect();
        assert!(spans.settle(&both.iter().collect::<Vec<_>>()).is_none());
        assert_eq!(kept.spans().len(), 0);
    }

    #[tokio::test]
    async fn a_batch_links_to_each_of_its_messages() {
        let (kept, spans, deliveries) = consumer(&[Some(PARENT), None, Some(&PARENT.replace("-01", "-00"))]).await;
        let calls: Vec<_> = deliveries.iter().map(|one| call(&one.message, None)).collect();
        spans.received(SystemTime::now(), &Ok(deliveries));
        drop(spans.settle(&calls.iter().collect::<Vec<_>>()).unwrap());
        for span in kept.spans() {
            assert_eq!((span.links.len(), span.parent_span_id.to_string().as_str()), (2, "0000000000000000"));
            assert_eq!(value(&span, "messaging.batch.message_count").as_deref(), Some("3"));
        }
        assert_eq!(kept.spans().len(), 2);
    }
}
