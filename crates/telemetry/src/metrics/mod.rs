//! Metrics: one registry, and three exporters.
//!
//! | file | job |
//! |---|---|
//! | `names` | names of metrics and attributes, and the values of attributes |
//! | `consumer` | the metrics of one consumer |
//! | `observe` | values that are read at each collection |
//! | `drain_rate` | the rate at which a consumer empties its queue |
//! | `exporters` | the thread that exports metrics, so that exports do not delay messages |
//! | `reader` | reads the registry for an exporter |
//! | `prometheus` | the endpoint for Prometheus |
//! | `otlp` | sends metrics to a collector, by OTLP |
//! | `emf` | writes lines to standard output in CloudWatch's embedded metric format |
//!
//! If no exporter is configured, there is no registry, and consumers have no [`ConsumerMetrics`]. The number of series
//! is limited, because all attributes are names from the config or words from fixed lists. Beyond the limit, the SDK
//! combines all series into one.

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
use exporters::ExportThread;
use observe::Consumers;
use reader::Reader;

/// Maximum number of series per metric and consumer. Higher than the number of possible combinations of attributes.
const SERIES_PER_CONSUMER: usize = 128;

/// Maximum time for [`Metrics::end`] to wait for a collector or for a reader of standard output. Covers the current
/// export, the last export after it, and a reserve.
const FLUSH: Duration = otlp::LAST.saturating_mul(2).saturating_add(Duration::from_millis(500));

/// Reason why metrics cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configured value cannot be used. The message names the value.
    #[error("{0}")]
    Config(String),
    /// The operating system refused a resource.
    #[error("cannot start the thread that exports metrics: {0}")]
    Machine(#[from] io::Error),
}

/// The exporters to start.
#[derive(Debug, Default)]
pub struct Exporters {
    /// Listener for Prometheus requests, from [`listen`].
    pub prometheus: Option<TcpListener>,
    /// OTLP endpoint, in the format of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub otlp: Option<String>,
    /// Writes metrics to standard output in CloudWatch's embedded metric format.
    pub emf: bool,
}

/// Binds the address for Prometheus requests. Called early, so that the host does not start if the address is in use.
///
/// # Errors
/// [`StartError::Config`]: the address cannot be bound. The message names the config key and the address.
pub fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let refused = |error| {
        StartError::Config(format!(
            "telemetry.prometheus: cannot listen on {address}: {error}; set another port, or stop what listens there"
        ))
    };
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

/// The registry and its exporters.
#[derive(Debug)]
pub struct Metrics {
    consumers: Consumers,
    tick_delay: Histogram<f64>,
    exporters: ExportThread,
    /// Provider from which the exporters collect metrics. Stored to keep it alive.
    _provider: SdkMeterProvider,
}

/// Metrics of the host itself, in addition to those of its consumers.
#[derive(Debug, Clone)]
pub struct HostMetrics {
    tick_delay: Histogram<f64>,
}

impl Metrics {
    /// Starts the exporters, and creates metrics for these consumers. `None`: no exporter is configured.
    ///
    /// # Errors
    /// [`StartError`]: an exporter cannot be set up.
    pub fn start(
        exporters: Exporters,
        resource: &Resource,
        consumers: impl IntoIterator<Item = Named>,
    ) -> Result<Option<Self>, StartError> {
        let Exporters { prometheus, otlp, emf } = exporters;
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
        let (unit, meaning) = names::described(names::TICK_DELAY);
        let tick_delay = meter.f64_histogram(names::TICK_DELAY).with_unit(unit).with_description(meaning);
        let tick_delay = tick_delay.with_boundaries(names::LATENESS.to_vec()).build();
        Ok(Some(Self { consumers, tick_delay, exporters: exporters.start()?, _provider: provider }))
    }

    /// Returns the metrics of the consumer with this index in the order passed to [`Metrics::start`].
    pub fn consumer(&self, place: usize) -> Option<ConsumerMetrics> {
        self.consumers.get(place).cloned()
    }

    /// Returns the metrics of the host.
    pub fn host(&self) -> HostMetrics {
        HostMetrics { tick_delay: self.tick_delay.clone() }
    }

    /// Exports the last metrics. Waits until `deadline`, and for 2.5 s at most.
    pub async fn end(self, deadline: Instant) {
        self.exporters.end(deadline.min(Instant::now() + FLUSH)).await;
    }
}

impl HostMetrics {
    /// Records how late a periodic tick of the host was.
    pub fn ticked(&self, late: Duration) {
        self.tick_delay.record(late.as_secs_f64(), &[]);
    }
}
