//! Sends batches of spans to the collector, with a time limit for each batch. [`Outage`] decides which faults are
//! logged.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use reqwest::Url;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::super::collector::{self, Client, Fault, Protocol};
use super::environment::Environment;
use super::outage::{News, Outage};

/// Builds an exporter that sends to the collector in `environment`. The exporter's connections run in `runtime`.
///
/// # Errors
/// An error message for the log.
pub(super) fn connect(environment: &Environment, runtime: &Handle) -> Result<Exporter, String> {
    let _entered = runtime.enter();
    let Environment { endpoint, timeout, .. } = environment;
    let fault = Fault::default();
    // The endpoint may contain a secret, so no error here or below contains it.
    Url::parse(endpoint).map_err(|error| format!("the endpoint for traces is not a valid URL: {error}"))?;
    let otlp = collector::exporter!(Otlp::builder(), environment.protocol, endpoint, *timeout, fault);
    let collector = collector::named(endpoint);
    let refused = |error| format!("traces cannot be sent to {collector}: {}", collector::refusal(&error, endpoint));
    let otlp = otlp.map_err(refused)?;
    let (runtime, limit) = (runtime.clone(), *timeout);
    Ok(Exporter { otlp, runtime, limit, collector, fault, outage: Outage::default() })
}

/// Sends batches on the SDK's thread.
#[derive(Debug)]
pub(super) struct Exporter {
    otlp: Otlp,
    runtime: Handle,
    /// Time limit of a batch.
    limit: Duration,
    /// Name of the collector for the log.
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
                tracing::warn!(collector, error, "cannot export spans; they are lost until the collector accepts them");
            }
            (Some(News::Over(lost)), _) => tracing::info!(collector, lost, "spans are exported again"),
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

/// Runs a future in this runtime for at most `limit`. Any thread may poll the returned future. `None`: the limit was
/// reached before the future completed.
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

    #[test]
    fn an_endpoint_that_cannot_be_used_is_not_told_as_it_may_hold_a_secret() {
        let runtime = super::super::runtime().unwrap();
        for endpoint in ["/secret", "http://c/secret x"] {
            let environment = Environment::read("http://c", |name| {
                (name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").then(|| endpoint.to_owned())
            });
            let told = connect(&environment, &runtime).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
