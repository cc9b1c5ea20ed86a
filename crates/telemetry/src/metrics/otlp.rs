//! Sends metrics to a collector by OTLP, over HTTP with protobuf or over gRPC. Follows the standard `OTEL_` variables.
//! Uses the endpoint from the config, unless `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` sets one for metrics.
//!
//! One export runs at a time, with a time limit. Sums are cumulative, so the next export includes the values of a
//! failed one.

use std::time::Duration;

use opentelemetry_otlp::{
    MetricExporter, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    OTEL_EXPORTER_OTLP_METRICS_TIMEOUT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TIMEOUT, WithExportConfig as _,
    WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::collector::{self, Client, Fault, Protocol};
use super::super::variables::Reader as Variables;
use super::StartError;
use super::reader::Reader;

/// Path for metrics, appended to an endpoint that applies to both metrics and traces.
const PATH: &str = "/v1/metrics";

/// Interval between exports, unless `OTEL_METRIC_EXPORT_INTERVAL` sets another.
const INTERVAL: Duration = Duration::from_secs(60);

/// Timeout of one request, unless `OTEL_EXPORTER_OTLP_TIMEOUT` sets another.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of one export including retries. Applies even if the collector requests a longer delay before a retry.
const EXPORT: Duration = Duration::from_secs(30);

/// Maximum time, after a stop, to wait for the current export. Also the maximum time for the last export after it.
pub(super) const LAST: Duration = Duration::from_secs(1);

/// Returns `true` if `OTEL_SDK_DISABLED` or `OTEL_METRICS_EXPORTER` disables the export of metrics by OTLP.
pub(super) fn is_disabled() -> bool {
    let is = |name: &str, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    is("OTEL_SDK_DISABLED", "true") || is("OTEL_METRICS_EXPORTER", "none")
}

/// Returns the interval between exports.
pub(super) fn interval() -> Duration {
    milliseconds("OTEL_METRIC_EXPORT_INTERVAL").unwrap_or(INTERVAL)
}

/// Exports metrics at an interval.
pub(super) struct Push {
    exporter: MetricExporter,
    reader: Reader,
    interval: Duration,
    fault: Fault,
    /// Set if the last export failed, so that each outage is logged once.
    failing: bool,
}

impl Push {
    /// Creates the exporter for an endpoint. Also returns the reader, which the caller must register. Must be called
    /// within the runtime that later polls [`Self::run`].
    pub(super) fn new(endpoint: &str) -> Result<(Reader, Self), StartError> {
        let fault = Fault::default();
        let exporter = exporter(endpoint, &fault);
        let exporter = exporter.map_err(|error| StartError::Config(format!("telemetry.otlp_endpoint: {error}")))?;
        let reader = Reader::new(exporter.temporality());
        Ok((reader.clone(), Self { exporter, reader, interval: interval(), fault, failing: false }))
    }

    /// Exports metrics until `stop` is cancelled, and then once more.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(self.interval) => {}
            }
            let stopped = async {
                stop.cancelled().await;
                sleep(LAST).await;
            };
            let result = tokio::select! {
                result = self.export() => result,
                // The collector does not answer, so the last export would hang too.
                () = stopped => return tracing::warn!("the last metrics were not exported: the collector does not answer"),
            };
            self.note(result);
        }
        if let Err(error) = timeout(LAST, self.export()).await.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            tracing::warn!(error, "the last metrics were not exported");
        }
    }

    async fn export(&self) -> Result<(), String> {
        let Some(metrics) = self.reader.read() else { return Ok(()) };
        match timeout(EXPORT, self.exporter.export(&metrics)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.fault.take().unwrap_or_else(|| error.to_string())),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    fn note(&mut self, result: Result<(), String>) {
        match (result, self.failing) {
            (Ok(()), true) => tracing::info!("metrics are exported again"),
            (Err(error), false) => tracing::warn!(error, "metrics are not exported"),
            (Ok(()), false) => return,
            (Err(_), true) => return,
        }
        self.failing = !self.failing;
    }
}

/// Builds the exporter from the config and the environment. Logs warnings about invalid variables.
///
/// # Errors
/// A human-readable message. It omits the endpoint, which may contain a secret.
fn exporter(endpoint: &str, fault: &Fault) -> Result<MetricExporter, String> {
    let mut variables = Variables::of_process();
    let protocols = [OTEL_EXPORTER_OTLP_METRICS_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL];
    let protocol = collector::protocol(&mut variables, protocols);
    let own = variables.set(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT);
    for warning in variables.into_warnings() {
        tracing::warn!("{warning}");
    }
    let endpoint = &collector::endpoint(own, endpoint, protocol, PATH);
    let timeout = request_timeout();
    let exporter = collector::exporter!(MetricExporter::builder(), protocol, endpoint, timeout, fault);
    exporter.map_err(|error| collector::refusal(&error, endpoint))
}

fn request_timeout() -> Duration {
    let set = [OTEL_EXPORTER_OTLP_METRICS_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT].into_iter().find_map(milliseconds);
    set.unwrap_or(TIMEOUT)
}

fn variable(name: &str) -> Option<String> {
    Variables::of_process().set(name)
}

/// Reads a duration in milliseconds from a variable. Zero and invalid values are logged and treated as unset.
fn milliseconds(name: &str) -> Option<Duration> {
    let value = variable(name)?;
    match value.parse() {
        Ok(0) | Err(_) => {
            tracing::warn!(value, "{name} is not a number of milliseconds, and is ignored");
            None
        }
        Ok(milliseconds) => Some(Duration::from_millis(milliseconds)),
    }
}
