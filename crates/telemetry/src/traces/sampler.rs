//! Default sampler, used if the environment names none. It follows the sampling decision of a span's parent. Of the
//! traces that begin in this process, it samples a limited number per second.
//!
//! Creating and sending spans for tens of thousands of messages per second would reduce the throughput considerably,
//! and the SDK's queue would drop many of the spans. This sampler decides before the SDK does, because the SDK's
//! unsampled spans also cost time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use tokio::time::Instant;

use super::Beginning;
use hostler_types::Bucket;
use hostler_types::Rate;

/// Maximum rate of sampled traces that begin in this process.
const TRACES: Rate = Rate { permits: 1_000, per: Duration::from_secs(1) };

/// Samples a span with a parent if the parent is sampled. Samples a span without a parent if it links to a sampled
/// span. Samples other spans within a limit per second.
#[derive(Debug, Clone)]
pub(super) struct Sampler(Arc<Mutex<Bucket>>);

impl Sampler {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Bucket::new(TRACES, Instant::now()))))
    }

    /// Returns `true` if a span with these parameters must be sampled. May use one permit of the limit per second.
    pub(super) fn samples(&self, beginning: &Beginning<'_>) -> bool {
        match beginning.parent {
            Some(parent) => parent.is_sampled(),
            None => beginning.links.iter().any(SpanContext::is_sampled) || self.may_begin(),
        }
    }

    fn may_begin(&self) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = bucket.available(Instant::now()) > 0;
        bucket.take(usize::from(may));
        may
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, SpanKind, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{Sampler as Sdk, SdkTracerProvider};

    use super::super::Traces;
    use super::*;

    fn traces() -> Traces {
        let all = SdkTracerProvider::builder().with_sampler(Sdk::ParentBased(Box::new(Sdk::AlwaysOn)));
        Traces::of(all, Some(Sampler::new()))
    }

    fn begin(traces: &Traces, beginning: Beginning<'_>) -> bool {
        traces.span(SpanKind::Client, "x", beginning).context().is_sampled()
    }

    fn other(flags: TraceFlags) -> SpanContext {
        SpanContext::new(TraceId::from(7), SpanId::from(7), flags, true, TraceState::default())
    }

    #[tokio::test(start_paused = true)]
    async fn traces_that_begin_here_are_so_many_a_second() {
        let traces = traces();
        let begun = || (0..2 * TRACES.permits).filter(|_| begin(&traces, Beginning::default())).count();
        assert_eq!(begun(), TRACES.permits as usize);
        assert_eq!(begun(), 0);
        tokio::time::advance(TRACES.per / 2).await;
        assert_eq!(begun(), TRACES.permits as usize / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_sample_is_sampled_however_much_it_is() {
        let traces = traces();
        while begin(&traces, Beginning::default()) {}
        let (sampled, unsampled) = (other(TraceFlags::SAMPLED), other(TraceFlags::NOT_SAMPLED));
        assert!(begin(&traces, Beginning { parent: Some(&sampled), ..Beginning::default() }));
        assert!(begin(&traces, Beginning { links: vec![unsampled.clone(), sampled], ..Beginning::default() }));
        assert!(!begin(&traces, Beginning { links: vec![unsampled.clone()], ..Beginning::default() }));
        tokio::time::advance(TRACES.per).await;
        assert!(!begin(&traces, Beginning { parent: Some(&unsampled), ..Beginning::default() }));
    }
    #[test]
    fn what_is_not_sampled_has_a_context_of_its_own_and_stays_in_its_trace() {
        let traces = traces();
        let unsampled = other(TraceFlags::NOT_SAMPLED);
        let beginning = || Beginning { parent: Some(&unsampled), ..Beginning::default() };
        let [one, another] = [(); 2].map(|()| traces.span(SpanKind::Client, "x", beginning()));
        assert!(!one.is_recording());
        for context in [one.context(), another.context()] {
            assert!(context.is_valid() && !context.is_remote());
            assert_eq!(context.trace_id(), unsampled.trace_id());
        }
        assert_ne!(one.context().span_id(), another.context().span_id());
        assert_ne!(one.context().span_id(), unsampled.span_id());
        while begin(&traces, Beginning::default()) {}
        let root = || traces.span(SpanKind::Client, "x", Beginning::default()).context();
        assert!(root().is_valid());
        assert_ne!(root().trace_id(), root().trace_id());
    }
}
