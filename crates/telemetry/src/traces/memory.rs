//! For tests: records spans instead of sending them.

use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};

use super::Traces;

/// Ended spans, in order.
#[derive(Debug, Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl Kept {
    /// Returns traces that record their spans here, with the default sampler.
    pub fn traces(&self) -> Traces {
        let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
        Traces::of(SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(self.clone()), None)
    }

    /// Returns all spans that have ended so far.
    pub fn spans(&self) -> Vec<SpanData> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(batch);
        Ok(())
    }
}

/// Returns an attribute of a span as text.
pub fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|pair| pair.key.as_str() == name);
    found.map(|pair| pair.value.to_string())
}
