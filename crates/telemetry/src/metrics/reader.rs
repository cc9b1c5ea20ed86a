//! Reads the registry for an exporter.

use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};

/// Reads the registry on demand. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Reader(Arc<ManualReader>);

impl Reader {
    pub(super) fn new(temporality: Temporality) -> Self {
        Self(Arc::new(ManualReader::builder().with_temporality(temporality).build()))
    }

    /// Creates a reader that returns the changes since its previous read.
    pub(super) fn delta() -> Self {
        Self::new(Temporality::Delta)
    }

    /// Reads the current metrics. `None`: the registry has shut down.
    pub(super) fn read(&self) -> Option<ResourceMetrics> {
        let mut metrics = ResourceMetrics::default();
        self.0.collect(&mut metrics).ok().map(|()| metrics)
    }
}

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
