//! Traces: OpenTelemetry spans, sent by OTLP to `telemetry.otlp_endpoint`. If this endpoint is not set, there are no
//! [`Traces`].
//!
//! | file | job |
//! |---|---|
//! | `environment` | standard variables that the SDK does not read itself |
//! | `exporter` | sends batches of spans to the collector, with a time limit |
//! | `outage` | logs an unreachable collector once |
//! | `messaging` | spans of operations on messages, by the semantic conventions |
//! | `sampler` | the sampler that applies if the environment names none |
//! | `span` | one span |
//!
//! A finished span is added to the SDK's queue. If the queue is full, the SDK drops the span. A thread of the SDK
//! passes batches to the exporter. A runtime on another thread drives the connections. A slow or unreachable collector
//! delays only these two threads.

mod environment;
mod exporter;
mod messaging;
mod outage;
mod sampler;
mod span;

pub use messaging::{Destination, Operation};
pub use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceId};
pub use opentelemetry::{KeyValue, Value};
pub use opentelemetry_semantic_conventions::attribute;
pub use span::Span;

use std::borrow::Cow;
use std::future::pending;
use std::io;
use std::thread;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Link, SpanBuilder, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, TracerProviderBuilder,
};
use tokio::runtime::{Builder, Handle};

use super::resource::Resource;
use environment::Environment;
use sampler::Sampler;

/// Maximum memory of one span in bytes.
const SPAN: u64 = 8 << 10;

/// Returns the maximum memory of unsent spans in bytes: that of a full queue.
pub fn footprint() -> u64 {
    footprint_of(environment::queue_of_process())
}

fn footprint_of(queue: usize) -> u64 {
    queue as u64 * SPAN
}

/// Parameters for the start of a span.
#[derive(Debug, Default)]
pub struct Beginning<'a> {
    /// Parent span.
    pub parent: Option<&'a SpanContext>,
    /// Spans to which the new span links.
    pub links: Vec<SpanContext>,
    /// Start time. `None`: now.
    pub since: Option<SystemTime>,
}

/// Creates spans, which are sent when they end.
#[derive(Debug, Clone)]
pub struct Traces {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// hostler's own sampler. `None`: the environment sets the sampler.
    sampler: Option<Sampler>,
}

impl Traces {
    /// Starts sending spans of this process to the collector at `endpoint`. Returns `None` if the standard variables
    /// disable traces. Logs invalid variables.
    ///
    /// # Errors
    /// An error message for the log: TLS cannot be set up, or the endpoint cannot be used.
    pub fn start(endpoint: &str, resource: &Resource) -> Result<Option<Self>, String> {
        let environment = Environment::read(endpoint, |name| std::env::var(name).ok());
        for warning in &environment.warnings {
            tracing::warn!("{warning}");
        }
        if environment.off {
            return Ok(None);
        }
        let runtime = runtime().map_err(|error| format!("no thread for traces: {error}"))?;
        let config = BatchConfigBuilder::default().with_max_queue_size(environment.queue);
        let config = config.with_max_export_batch_size(environment.batch).build();
        let exporter = exporter::connect(&environment, &runtime)?;
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let builder = SdkTracerProvider::builder().with_span_processor(processor);
        let sampler = environment.own_sampler.then(Sampler::new);
        Ok(Some(Self::of(builder.with_resource(resource.for_sdk()), sampler)))
    }

    /// Creates traces from a builder. `sampler` decides first. The builder's sampler then decides about the spans that
    /// `sampler` accepts.
    fn of(builder: TracerProviderBuilder, sampler: Option<Sampler>) -> Self {
        let provider = builder.build();
        let scope = InstrumentationScope::builder("hostler")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(opentelemetry_semantic_conventions::SCHEMA_URL);
        Self { tracer: provider.tracer_with_scope(scope.build()), provider, sampler }
    }

    /// Begins a span in the trace of its parent. A span without a parent begins a new trace if the sampler accepts it.
    pub fn span(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>, beginning: Beginning<'_>) -> Span {
        self.unsampled(&beginning).unwrap_or_else(|| self.sampled(kind, name.into(), beginning))
    }

    /// Returns an unsampled span if hostler's own sampler rejects the span. An unsampled span needs no name. `None`:
    /// the span is not rejected.
    fn unsampled(&self, beginning: &Beginning<'_>) -> Option<Span> {
        let is_sampled = self.sampler.as_ref().is_none_or(|sampler| sampler.samples(beginning));
        (!is_sampled).then(|| Span::unsampled(beginning.parent))
    }

    /// Begins a span through the SDK.
    fn sampled(&self, kind: SpanKind, name: Cow<'static, str>, beginning: Beginning<'_>) -> Span {
        let mut builder = SpanBuilder::from_name(name).with_kind(kind);
        builder.start_time = beginning.since;
        if !beginning.links.is_empty() {
            builder.links = Some(beginning.links.into_iter().map(Link::with_context).collect());
        }
        let context = match beginning.parent {
            Some(parent) => Context::new().with_remote_span_context(parent.clone()),
            None => Context::new(),
        };
        Span::new(self.tracer.build_with_context(builder, &context))
    }

    /// Sends the spans that are still waiting, for at most `within`. Spans that end later are lost.
    pub async fn finish(self, within: Duration) {
        // The SDK's shutdown blocks the calling thread.
        let (done, finished) = tokio::sync::oneshot::channel();
        let provider = self.provider.clone();
        let wait = move || {
            let _ = done.send(provider.shutdown_with_timeout(within).is_ok());
        };
        let started = thread::Builder::new().name("hostler-flush".to_owned()).spawn(wait).is_ok();
        let in_time = started && tokio::time::timeout(within, finished).await.is_ok_and(|sent| sent == Ok(true));
        if !in_time {
            tracing::warn!("the last spans were not exported in time");
        }
    }
}

/// Maximum number of threads for lookups of the collector's name.
const LOOKUPS: usize = 2;

/// Starts a runtime for the connections to the collector, on a separate thread. The thread ends with the process,
/// because the SDK's thread may wait for a collector in this runtime until then.
fn runtime() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUPS).build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name("hostler-otlp".to_owned()).spawn(move || runtime.block_on(pending::<()>()))?;
    Ok(handle)
}

pub mod memory;
