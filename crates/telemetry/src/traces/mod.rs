//! Traces: spans by OpenTelemetry, sent by OTLP to where `telemetry.otlp_endpoint` says. Without it there are no [`Traces`].
//!
//! | file | job |
//! |---|---|
//! | `environment` | the standard's variables, as far as the SDK does not read them |
//! | `exporter` | batches of spans to the collector, bounded in time |
//! | `outage` | a collector that cannot be reached is told of once |
//! | `messaging` | spans about messages, by the semantic conventions |
//! | `sampler` | which traces are sampled, where the environment does not say |
//! | `span` | one span |
//!
//! A finished span goes into the SDK's queue, which drops what it has no room for; a thread of the SDK's hands batches to the
//! exporter, and a runtime of our own, on one thread, drives its connections. So a collector that is down or slow takes the time of
//! these two threads and of nobody else.

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

/// What a span can take of the memory, in bytes: as large as ours can become.
const SPAN: u64 = 8 << 10;

/// What the spans that wait and those on their way may take of the memory, in bytes: as many as the queue holds.
pub fn footprint() -> u64 {
    footprint_of(environment::queue_of_process())
}

fn footprint_of(queue: usize) -> u64 {
    queue as u64 * SPAN
}

/// How a span begins.
#[derive(Debug, Default)]
pub struct Beginning<'a> {
    /// The span that it is a part of.
    pub parent: Option<&'a SpanContext>,
    /// The spans that it is about.
    pub links: Vec<SpanContext>,
    /// When; now if that is not said.
    pub since: Option<SystemTime>,
}

/// Where finished spans go.
#[derive(Debug, Clone)]
pub struct Traces {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// None: the environment says what is sampled.
    sampler: Option<Sampler>,
}

impl Traces {
    /// Sends spans of this process to the collector at `endpoint`; none if the standard's variables say so. What is wrong with
    /// them is logged.
    ///
    /// # Errors
    /// A text for the log: TLS cannot be set up, or the endpoint cannot be used.
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

    /// The SDK samples what its builder says, of what the sampler lets come that far.
    fn of(builder: TracerProviderBuilder, sampler: Option<Sampler>) -> Self {
        let provider = builder.build();
        let scope = InstrumentationScope::builder("hostler")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(opentelemetry_semantic_conventions::SCHEMA_URL);
        Self { tracer: provider.tracer_with_scope(scope.build()), provider, sampler }
    }

    /// Begins a span, in the trace of its parent. Without one it begins a trace, if the sampler likes.
    pub fn span(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>, beginning: Beginning<'_>) -> Span {
        self.unsampled(&beginning).unwrap_or_else(|| self.sampled(kind, name.into(), beginning))
    }

    /// The span that begins so, if it is not sampled: it needs no name.
    fn unsampled(&self, beginning: &Beginning<'_>) -> Option<Span> {
        let is_sampled = self.sampler.as_ref().is_none_or(|sampler| sampler.samples(beginning));
        (!is_sampled).then(|| Span::unsampled(beginning.parent))
    }

    /// A span of the SDK's.
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

    /// Sends what waits, for at most so long; spans that end later are lost.
    pub async fn finish(self, within: Duration) {
        // The SDK waits on the thread that asks.
        let (done, finished) = tokio::sync::oneshot::channel();
        let provider = self.provider.clone();
        let wait = move || {
            let _ = done.send(provider.shutdown_with_timeout(within).is_ok());
        };
        let started = thread::Builder::new().name("hostler-flush".to_owned()).spawn(wait).is_ok();
        let in_time = started && tokio::time::timeout(within, finished).await.is_ok_and(|sent| sent == Ok(true));
        if !in_time {
            tracing::warn!("the last spans did not reach the collector in time");
        }
    }
}

/// Threads that look up the collector's name.
const LOOKUPS: usize = 2;

/// A runtime on a thread of its own: what a collector does to its connections is nobody else's affair. It ends with the process, as the
/// SDK's thread may wait in it for a collector until then.
fn runtime() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUPS).build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name("hostler-otlp".to_owned()).spawn(move || runtime.block_on(pending::<()>()))?;
    Ok(handle)
}

pub mod memory;
