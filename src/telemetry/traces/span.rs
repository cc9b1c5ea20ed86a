//! One span: it ends when it is dropped, or when it is told.

use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanContext, Status};
use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::trace::Span as SdkSpan;
use opentelemetry_semantic_conventions::attribute::ERROR_TYPE;

/// The longest description of a failure, in bytes.
const MAX_DESCRIPTION: usize = 256;

/// A span that has begun. One that is not sampled has a context, and nothing else.
#[derive(Debug)]
pub struct Span(SdkSpan);

impl Span {
    pub(super) fn new(span: SdkSpan) -> Self {
        Self(span)
    }

    /// What names it to others.
    pub fn context(&self) -> SpanContext {
        self.0.span_context().clone()
    }

    /// Whether what is set will be seen; attributes that cost something to make need not be made otherwise.
    pub fn is_recording(&self) -> bool {
        self.0.is_recording()
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<Key>, value: impl Into<Value>) {
        if self.0.is_recording() {
            self.0.set_attribute(KeyValue::new(name, value));
        }
    }

    /// Sets several.
    pub fn set_all(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        if self.0.is_recording() {
            self.0.set_attributes(attributes);
        }
    }

    /// Links it to another span.
    pub fn link(&mut self, span: &SpanContext) {
        if self.0.is_recording() {
            self.0.add_link(span.clone(), Vec::new());
        }
    }

    /// It failed in this way: one of a few words (`error.type`), and a text for people.
    pub fn fail(&mut self, kind: impl Into<Value>, description: &str) {
        if self.0.is_recording() {
            let description = &description[..description.floor_char_boundary(MAX_DESCRIPTION)];
            self.0.set_attribute(KeyValue::new(ERROR_TYPE, kind));
            self.0.set_status(Status::error(description.to_owned()));
        }
    }

    /// Ends it as of then.
    pub fn end_at(mut self, at: SystemTime) {
        self.0.end_with_timestamp(at);
    }
}
