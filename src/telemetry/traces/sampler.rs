//! The sampler where the environment names none: what a span's parent says; and of traces that begin here, so many a second.
//!
//! To make spans of each of tens of thousands of messages a second, and to send them, takes a good part of the throughput; and the
//! SDK's queue drops what it has no room for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::{Link, SpanKind, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};
use tokio::time::Instant;

use crate::config::Rate;
use crate::rate::Bucket;

/// Traces that begin here, per second.
const TRACES: Rate = Rate { permits: 1_000, per: Duration::from_secs(1) };

/// The sampler.
pub(super) fn sampler() -> Sampler {
    Sampler::ParentBased(Box::new(Bounded(Arc::new(Mutex::new(Bucket::new(TRACES, Instant::now()))))))
}

/// Samples so many a second, and whatever is linked to a span that is sampled.
#[derive(Debug, Clone)]
struct Bounded(Arc<Mutex<Bucket>>);

impl Bounded {
    fn may_begin(&self) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = bucket.available(Instant::now()) > 0;
        bucket.take(usize::from(may));
        may
    }
}

impl ShouldSample for Bounded {
    fn should_sample(
        &self,
        _parent: Option<&Context>,
        _trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let sampled = links.iter().any(|link| link.span_context.is_sampled()) || self.may_begin();
        let decision = if sampled { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop };
        SamplingResult { decision, attributes: Vec::new(), trace_state: TraceState::default() }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::super::{Beginning, Traces};
    use super::*;

    fn traces() -> Traces {
        Traces::of(SdkTracerProvider::builder().with_sampler(sampler()))
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
}
