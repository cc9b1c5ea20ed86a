//! Metrics: one registry, and three exporters.
//!
//! | file | job |
//! |---|---|
//! | `names` | what metrics and attributes are called, and the words that attributes are made of |
//! | `consumer` | what one consumer measures |
//! | `observe` | what is looked at when metrics are collected |
//! | `drain_rate` | how fast a consumer empties its queue |
//! | `exporters` | the thread on which metrics leave, so that nothing out there can hold up a message |
//! | `reader` | what reads the registry for an exporter |
//! | `prometheus` | the endpoint that Prometheus scrapes |
//! | `otlp` | the push to a collector, by OTLP |
//! | `emf` | lines on standard output in CloudWatch's embedded metric format |
//!
//! Where no exporter is configured there is no registry, and a consumer has no [`ConsumerMetrics`]. Series are
//! bounded: attributes are names from the config and words from fixed lists, and the SDK folds whatever is beyond into one.

mod consumer;
mod drain_rate;
mod emf;
mod exporters;
pub mod names;
mod observe;
mod otlp;
mod prometheus;
mod reader;

pub use consumer::{ConsumerMetrics, Depths, Ending, Named, Operation, Shown};

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{Histogram, MeterProvider as _};
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use tokio::time::Instant;

use super::resource::Resource;
use consumer::Instruments;
use exporters::Exporters;
use observe::Consumers;
use reader::Reader;

/// The most series that one metric has for each consumer: more than its attributes' words allow.
const SERIES_PER_CONSUMER: usize = 128;

/// How long the end waits for a collector, or for a reader of standard output: for the export under way, the last one after it,
/// and some time to spare.
const FLUSH: Duration = otlp::LAST.saturating_mul(2).saturating_add(Duration::from_millis(500));

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something that is configured cannot be; the text names it.
    #[error("{0}")]
    Config(String),
    /// The machine refuses what is needed.
    #[error("cannot start the thread that exports metrics: {0}")]
    Machine(#[from] io::Error),
}

/// Where metrics go.
#[derive(Debug, Default)]
pub struct Ways {
    /// Where Prometheus may fetch them ([`listen`]).
    pub prometheus: Option<TcpListener>,
    /// The OTLP endpoint that they are sent to, as `OTEL_EXPORTER_OTLP_ENDPOINT` would name it.
    pub otlp: Option<String>,
    /// Whether they go to standard output in CloudWatch's embedded metric format.
    pub emf: bool,
}

/// Takes the address that Prometheus will scrape, early, so that one that is taken keeps the host from starting.
///
/// # Errors
/// [`StartError::Config`] names the key and the address.
pub fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let refused = |error| StartError::Config(format!("telemetry.prometheus: cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

/// The registry, with its exporters.
#[derive(Debug)]
pub struct Metrics {
    consumers: Consumers,
    tick_delay: Histogram<f64>,
    exporters: Exporters,
    /// Without it, there is nothing to collect.
    _provider: SdkMeterProvider,
}

/// What the host measures of itself, beside its consumers.
#[derive(Debug, Clone)]
pub struct HostMetrics {
    tick_delay: Histogram<f64>,
}

impl Metrics {
    /// Starts measuring these consumers, in their order; nothing at all without an exporter.
    ///
    /// # Errors
    /// [`StartError`]: an exporter cannot be set up.
    pub fn start(
        ways: Ways,
        resource: &Resource,
        consumers: impl IntoIterator<Item = Named>,
    ) -> Result<Option<Self>, StartError> {
        let Ways { prometheus, otlp, emf } = ways;
        let otlp = otlp.filter(|_| !otlp::is_disabled());
        if prometheus.is_none() && otlp.is_none() && !emf {
            return Ok(None);
        }
        let consumers: Vec<Named> = consumers.into_iter().collect();
        let limit = SERIES_PER_CONSUMER * (consumers.len() + 1);
        let bounded = move |_: &Instrument| Stream::builder().with_cardinality_limit(limit).build().ok();
        let mut builder = SdkMeterProvider::builder().with_resource(resource.for_sdk()).with_view(bounded);
        let mut exporters = exporters::Builder::new()?;
        if let Some(listener) = prometheus {
            let (reader, endpoint) = prometheus::Endpoint::new(listener)?;
            builder = builder.with_reader(reader);
            exporters.prometheus = Some(endpoint);
        }
        if let Some(endpoint) = otlp {
            let (reader, push) = exporters.within(|| otlp::Push::new(&endpoint))?;
            builder = builder.with_reader(reader);
            exporters.otlp = Some(push);
        }
        if emf {
            let reader = Reader::delta();
            builder = builder.with_reader(reader.clone());
            exporters.emf = Some(emf::Lines::new(reader, otlp::interval())?);
        }
        let provider = builder.build();
        let scope = InstrumentationScope::builder("hostler").with_version(env!("CARGO_PKG_VERSION"));
        let meter = provider.meter_with_scope(scope.build());
        let instruments = Instruments::new(&meter);
        let consumers: Consumers =
            consumers.into_iter().map(|named| ConsumerMetrics::new(named, instruments.clone())).collect();
        observe::register(&meter, &consumers);
        let tick_delay = meter.f64_histogram(names::TICK_DELAY).with_unit("s");
        let tick_delay = tick_delay.with_description("How late the host's own tick comes");
        let tick_delay = tick_delay.with_boundaries(names::LATENESS.to_vec()).build();
        Ok(Some(Self { consumers, tick_delay, exporters: exporters.start()?, _provider: provider }))
    }

    /// What a consumer measures, by its place among all.
    pub fn consumer(&self, place: usize) -> Option<ConsumerMetrics> {
        self.consumers.get(place).cloned()
    }

    /// What the host measures.
    pub fn host(&self) -> HostMetrics {
        HostMetrics { tick_delay: self.tick_delay.clone() }
    }

    /// Lets all go out that is not out yet: until `deadline`, and for two and a half seconds at most.
    pub async fn end(self, deadline: Instant) {
        self.exporters.end(deadline.min(Instant::now() + FLUSH)).await;
    }
}

impl HostMetrics {
    /// The host's tick came so late.
    pub fn ticked(&self, late: Duration) {
        self.tick_delay.record(late.as_secs_f64(), &[]);
    }
}
