//! The push to a collector, by OTLP: over HTTP with protobuf, or over gRPC. What the standard `OTEL_` variables say counts;
//! the endpoint is the config's, unless `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` names one for metrics alone.
//!
//! One export is under way at a time, and bounded in time; what a collector misses is in the next one, as sums go on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    OTEL_EXPORTER_OTLP_METRICS_TIMEOUT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TIMEOUT, WithExportConfig as _,
    WithHttpConfig as _,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter as _;
use reqwest::Url;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::StartError;
use super::exits::Reader;
use crate::cause::with_causes;

/// Where metrics go below an endpoint for all signals (OTLP specification, "Endpoint URLs for OTLP/HTTP").
const PATH: &str = "/v1/metrics";

/// How often metrics are sent unless `OTEL_METRIC_EXPORT_INTERVAL` says otherwise.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long one request may take unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long one export may take, its retries included, whatever the collector asks for.
const EXPORT: Duration = Duration::from_secs(30);

/// How long the last exports may take.
const LAST: Duration = Duration::from_secs(1);

/// The most bytes of an answer that are read; those of the protocol have a few dozen.
const ANSWER: usize = 64 * 1024;

/// Whether the environment wants no metrics by OTLP: `OTEL_SDK_DISABLED`, `OTEL_METRICS_EXPORTER`.
pub(super) fn is_disabled() -> bool {
    let is = |name: &str, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    is("OTEL_SDK_DISABLED", "true") || is("OTEL_METRICS_EXPORTER", "none")
}

/// How often metrics are pushed.
pub(super) fn interval() -> Duration {
    milliseconds("OTEL_METRIC_EXPORT_INTERVAL").unwrap_or(INTERVAL)
}

/// Sends metrics every so often.
pub(super) struct Push {
    exporter: MetricExporter,
    reader: Reader,
    interval: Duration,
    faults: Faults,
    /// Whether the last export failed, so that the log says it once.
    failing: bool,
}

impl Push {
    /// A push to this endpoint, and what has to read the metrics for it. Must be called within the runtime that it will
    /// run on.
    pub(super) fn new(endpoint: &str) -> Result<(Reader, Self), StartError> {
        let faults = Faults::default();
        let exporter = match protocol()? {
            Protocol::Http => over_http(endpoint, &faults),
            Protocol::Grpc => over_grpc(endpoint),
        };
        let exporter = exporter.map_err(|error| StartError::Config(format!("telemetry.otlp_endpoint: {error}")))?;
        let reader = Reader::new(exporter.temporality());
        Ok((reader.clone(), Self { exporter, reader, interval: interval(), faults, failing: false }))
    }

    /// Sends until it is stopped, and then once more.
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
                // It is with a collector that does not answer; another would be too.
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
            Ok(Err(error)) => Err(self.faults.take().unwrap_or_else(|| error.to_string())),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Grpc,
}

fn protocol() -> Result<Protocol, StartError> {
    let set = [OTEL_EXPORTER_OTLP_METRICS_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL]
        .into_iter()
        .find_map(|name| variable(name).map(|value| (name, value)));
    match set {
        None => Ok(Protocol::Http),
        Some((name, value)) => spoken(&value).ok_or_else(|| {
            StartError::Config(format!("{name}: `{value}` is not spoken here; write `http/protobuf` or `grpc`"))
        }),
    }
}

fn spoken(protocol: &str) -> Option<Protocol> {
    match protocol {
        "http/protobuf" => Some(Protocol::Http),
        "grpc" => Some(Protocol::Grpc),
        _ => None,
    }
}

fn over_http(endpoint: &str, faults: &Faults) -> Result<MetricExporter, ExporterBuildError> {
    let client = reqwest::Client::builder().timeout(request_timeout()).redirect(reqwest::redirect::Policy::none());
    let client = client.build().map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))?;
    let builder =
        MetricExporter::builder().with_http().with_http_client(Client { inner: client, faults: faults.clone() });
    let builder = builder.with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
    match variable(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT) {
        // It is looked up there.
        Some(_) => builder.build(),
        None => builder.with_endpoint(below(endpoint)).build(),
    }
}

fn over_grpc(endpoint: &str) -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporter::builder().with_tonic();
    match variable(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT) {
        Some(_) => builder.build(),
        None => builder.with_endpoint(endpoint).build(),
    }
}

/// The URL of metrics below an endpoint for all signals.
fn below(endpoint: &str) -> String {
    let Ok(mut url) = Url::parse(endpoint) else { return endpoint.to_owned() };
    let path = format!("{}{PATH}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.into()
}

fn request_timeout() -> Duration {
    let set = [OTEL_EXPORTER_OTLP_METRICS_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT].into_iter().find_map(milliseconds);
    set.unwrap_or(TIMEOUT)
}

/// A variable, unless it is empty, which counts as unset (OpenTelemetry specification, "Environment variables").
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A time in milliseconds; one that cannot be read, or is nothing, is warned of and counts as unset.
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

/// Why the last request failed. The exporter itself says no more than that the network is at fault.
#[derive(Debug, Clone, Default)]
struct Faults(Arc<Mutex<Option<String>>>);

impl Faults {
    fn set(&self, fault: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Requests by the client that all else here uses; answers are bounded.
#[derive(Debug)]
struct Client {
    inner: reqwest::Client,
    faults: Faults,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.inner.execute(request.try_into()?).await;
        // An address may hold a password.
        let answer = answer.map_err(|error| with_causes(&error.without_url()));
        self.faults.set(answer.as_ref().err().cloned());
        let mut answer = answer?;
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            std::mem::swap(headers, answer.headers_mut());
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await? {
            if body.len() + chunk.len() > ANSWER {
                return Err(ResponseBodyTooLarge::new().into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(response.body(body.freeze())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_below_the_endpoint() {
        for endpoint in ["http://c:4318", "http://c:4318/"] {
            assert_eq!(below(endpoint), "http://c:4318/v1/metrics");
        }
        assert_eq!(below("https://c/otlp/"), "https://c/otlp/v1/metrics");
        assert_eq!(below("https://c/?tenant=a/b"), "https://c/v1/metrics?tenant=a/b");
    }

    #[test]
    fn two_protocols_are_spoken() {
        assert_eq!(spoken("http/protobuf"), Some(Protocol::Http));
        assert_eq!(spoken("grpc"), Some(Protocol::Grpc));
        assert_eq!((spoken("http/json"), spoken("GRPC")), (None, None));
    }
}
