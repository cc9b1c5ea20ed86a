//! The way to the collector: OTLP over HTTP or gRPC, each batch bounded in time, its faults told by [`Outage`].

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use reqwest::{Url, redirect};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::environment::{Environment, Protocol};
use super::outage::{News, Outage};
use super::told;

/// The longest answer of a collector, in bytes; what it says is of no use but for its status.
const MAX_ANSWER: usize = 64 * 1024;

/// An exporter to this collector, whose connections live in that runtime.
///
/// # Errors
/// A text for the log.
pub(super) fn connect(environment: &Environment, runtime: &Handle) -> Result<Exporter, String> {
    let _entered = runtime.enter();
    let Environment { endpoint, timeout, .. } = environment;
    let fault = Fault::default();
    let url = Url::parse(endpoint).map_err(|error| format!("`{endpoint}` is no URL: {error}"))?;
    let otlp = match environment.protocol {
        Protocol::Http => {
            let client = Client::new(fault.clone()).map_err(told)?;
            Otlp::builder().with_http().with_http_client(client).with_endpoint(endpoint).with_timeout(*timeout).build()
        }
        Protocol::Grpc => {
            let builder = Otlp::builder().with_tonic().with_endpoint(endpoint).with_timeout(*timeout);
            match url.scheme() {
                "https" => builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots()).build(),
                _ => builder.build(),
            }
        }
    };
    // The address may hold a secret.
    let collector = url.origin().ascii_serialization();
    let otlp = otlp.map_err(|error: ExporterBuildError| format!("traces cannot be sent to {collector}: {error}"))?;
    let (runtime, limit) = (runtime.clone(), *timeout);
    Ok(Exporter { otlp, runtime, limit, collector, fault, outage: Outage::default() })
}

/// Why the last request failed, which the SDK keeps to itself.
#[derive(Debug, Clone, Default)]
struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Sends batches, on the thread that the SDK has for it.
#[derive(Debug)]
pub(super) struct Exporter {
    otlp: Otlp,
    runtime: Handle,
    /// How long a batch may take.
    limit: Duration,
    /// For the log.
    collector: String,
    fault: Fault,
    outage: Outage,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = within(&self.runtime, self.limit, self.otlp.export(batch)).await;
        let sent = sent.unwrap_or(Err(OTelSdkError::Timeout(self.limit)));
        let fault = self.fault.take();
        let collector = &*self.collector;
        match (self.outage.note(count, sent.is_ok()), &sent) {
            (Some(News::Began), Err(error)) => {
                let error = fault.unwrap_or_else(|| error.to_string());
                tracing::warn!(
                    collector,
                    error,
                    "traces do not reach the collector; their spans are lost until they do"
                );
            }
            (Some(News::Over(lost)), _) => tracing::info!(collector, lost, "traces reach the collector again"),
            _ => {}
        }
        sent
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.otlp.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

/// Runs a future in this runtime from whatever thread polls it, for so long at most.
async fn within<T>(runtime: &Handle, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let bounded = {
        let _entered = runtime.enter();
        timeout(limit, future)
    };
    let mut bounded = pin!(bounded);
    let bounded = poll_fn(|context| {
        let _entered = runtime.enter();
        bounded.as_mut().poll(context)
    });
    bounded.await.ok()
}

/// The HTTP client, which the SDK wants from us.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    fault: Fault,
}

impl Client {
    fn new(fault: Fault) -> reqwest::Result<Self> {
        let http =
            reqwest::Client::builder().redirect(redirect::Policy::none()).retry(reqwest::retry::never()).build()?;
        Ok(Self { http, fault })
    }

    async fn send(&self, request: http::Request<Bytes>) -> reqwest::Result<http::Response<reqwest::Body>> {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::from))?;
        Ok(self.http.execute(request).await?.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        let remember = |error: reqwest::Error| {
            let text = told(error);
            self.fault.set(text.clone());
            HttpError::from(text)
        };
        let (parts, mut body) = self.send(request).await.map_err(remember)?.into_parts();
        let mut answer = BytesMut::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            let frame = frame.map_err(remember)?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if answer.len() + data.len() > MAX_ANSWER {
                return Err(Box::new(ResponseBodyTooLarge::new()));
            }
            answer.extend_from_slice(data);
        }
        Ok(http::Response::from_parts(parts, answer.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_in_the_runtime_may_use_its_timers_and_is_bounded() {
        let runtime = super::super::runtime().unwrap();
        let (second, soon) = (Duration::from_secs(1), Duration::from_millis(1));
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sleep = |long| async move { tokio::time::sleep(long).await };
        assert_eq!(other.block_on(within(&runtime, 60 * second, sleep(soon))), Some(()));
        assert_eq!(other.block_on(within(&runtime, soon, sleep(60 * second))), None);
    }
}
