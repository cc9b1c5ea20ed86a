//! A span. It ends when dropped or at a given time.

use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::trace::Span as SdkSpan;
use opentelemetry_semantic_conventions::attribute::ERROR_TYPE;

/// Maximum length of a failure's description in bytes.
const MAX_DESCRIPTION: usize = 256;

/// A span that has begun. An unsampled span has only a context.
#[derive(Debug)]
pub struct Span(Kind);

#[derive(Debug)]
enum Kind {
    /// A span of the SDK, which may be unsampled too.
    Sdk(Box<SdkSpan>),
    Unsampled(SpanContext),
}

impl Span {
    pub(super) fn new(span: SdkSpan) -> Self {
        Self(Kind::Sdk(Box::new(span)))
    }

    /// Creates an unsampled span in the trace of its parent, or in a new trace.
    pub(super) fn unsampled(parent: Option<&SpanContext>) -> Self {
        let own = || TraceId::from(fastrand::u128(1..));
        let (trace, state) = parent
            .map_or_else(|| (own(), TraceState::NONE), |parent| (parent.trace_id(), parent.trace_state().clone()));
        let span = SpanId::from(fastrand::u64(1..));
        Self(Kind::Unsampled(SpanContext::new(trace, span, TraceFlags::NOT_SAMPLED, false, state)))
    }

    /// Returns the context, which identifies the span to other spans.
    pub fn context(&self) -> SpanContext {
        match &self.0 {
            Kind::Sdk(span) => span.span_context().clone(),
            Kind::Unsampled(context) => context.clone(),
        }
    }

    /// Returns `true` if attributes are recorded. Otherwise, callers can omit expensive attributes.
    pub fn is_recording(&self) -> bool {
        matches!(&self.0, Kind::Sdk(span) if span.is_recording())
    }

    fn recording(&mut self) -> Option<&mut SdkSpan> {
        match &mut self.0 {
            Kind::Sdk(span) => Some(&mut **span).filter(|span| span.is_recording()),
            Kind::Unsampled(_) => None,
        }
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<Key>, value: impl Into<Value>) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new(name, value));
        }
    }

    /// Sets several attributes.
    pub fn set_all(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        if let Some(span) = self.recording() {
            span.set_attributes(attributes);
        }
    }

    /// Links the span to another span.
    pub fn link(&mut self, other: &SpanContext) {
        if let Some(span) = self.recording() {
            span.add_link(other.clone(), Vec::new());
        }
    }

    /// Marks the span as failed. `kind`: one of a few fixed words (`error.type`). `description`: human-readable text,
    /// cut to 256 bytes.
    pub fn fail(&mut self, kind: impl Into<Value>, description: &str) {
        if let Some(span) = self.recording() {
            let description = &description[..description.floor_char_boundary(MAX_DESCRIPTION)];
            span.set_attribute(KeyValue::new(ERROR_TYPE, kind));
            span.set_status(Status::error(description.to_owned()));
        }
    }

    /// Ends the span at the given time.
    pub fn end_at(mut self, at: SystemTime) {
        if let Some(span) = self.recording() {
            span.end_with_timestamp(at);
        }
    }
}
