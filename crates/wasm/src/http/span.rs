//! The span of a guest's HTTP request, following OpenTelemetry's conventions for HTTP clients
//! (opentelemetry.io/docs/specs/semconv/http/http-spans).

use std::sync::Arc;

use reqwest::Url;

use super::redact::redacted;
use hostler_telemetry::traces::{Beginning, Span, SpanKind, Traces, attribute};
use hostler_types::message::TraceContext;

/// HTTP methods that a span may contain. Any other method is recorded as `_OTHER`, because a guest can invent any
/// number of methods.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "QUERY"];

/// The span of an HTTP request. Dropping this value ends the span. Without traces, this value does nothing.
pub(super) struct RequestSpan {
    span: Option<Span>,
    answered: bool,
}

impl RequestSpan {
    /// Begins the span. `parent`: trace context in which the guest runs.
    pub(super) fn begin(
        traces: Option<&Traces>,
        parent: Option<&TraceContext>,
        method: &http::Method,
        url: &Url,
    ) -> Self {
        let Some(traces) = traces else { return Self { span: None, answered: false } };
        let known = METHODS.into_iter().find(|known| *known == method.as_str());
        let beginning = Beginning { parent: parent.map(TraceContext::span), ..Beginning::default() };
        let mut span = traces.span(SpanKind::Client, known.unwrap_or("HTTP"), beginning);
        if span.is_recording() {
            span.set(attribute::HTTP_REQUEST_METHOD, known.unwrap_or("_OTHER"));
            span.set(attribute::URL_FULL, redacted(url));
            span.set(attribute::SERVER_ADDRESS, url.host_str().unwrap_or_default().to_owned());
            span.set(attribute::SERVER_PORT, i64::from(url.port_or_known_default().unwrap_or_default()));
        }
        Self { span: Some(span), answered: false }
    }

    /// Returns the trace context for the request's headers.
    pub(super) fn context(&self) -> Option<Arc<TraceContext>> {
        self.span.as_ref().and_then(|span| TraceContext::new(span.context())).map(Arc::new)
    }

    /// Records the status of the response, whose head has arrived.
    pub(super) fn answered(&mut self, status: http::StatusCode) {
        self.answered = true;
        let Some(span) = &mut self.span else { return };
        span.set(attribute::HTTP_RESPONSE_STATUS_CODE, i64::from(status.as_u16()));
        if status.is_client_error() || status.is_server_error() {
            span.fail(status.as_str().to_owned(), "");
        }
    }

    /// Records that the request failed without a response.
    pub(super) fn failed(&mut self, error: &wasmtime_wasi_http::Error) {
        self.answered = true;
        if let Some(span) = &mut self.span {
            span.fail(kind(error), "");
        }
    }
}

impl Drop for RequestSpan {
    /// Marks the request as cancelled if it is dropped before its response arrives, for example because the guest was
    /// stopped.
    fn drop(&mut self) {
        if let (false, Some(span)) = (self.answered, &mut self.span) {
            span.fail("cancelled", "");
        }
    }
}

/// Returns the name of a `wasi:http` error, without the error's fields.
fn kind(error: &wasmtime_wasi_http::Error) -> String {
    let text = format!("{error:?}");
    text.split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap_or("_OTHER").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_telemetry::traces::memory::{Kept, attribute as value};
    use http::{Method, StatusCode};
    use opentelemetry::trace::Status;
    use wasmtime_wasi_http::Error;

    fn begin(kept: &Kept, method: &str, url: &str) -> RequestSpan {
        let parent = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        RequestSpan::begin(Some(&kept.traces()), parent.as_ref(), &method, &Url::parse(url).unwrap())
    }

    #[test]
    fn it_says_what_was_asked_and_answered() {
        let kept = Kept::default();
        let mut span = begin(&kept, "GET", "https://u:p@api.example.com/a?b=1&token=t");
        let context = span.context().unwrap();
        span.answered(StatusCode::OK);
        drop(span);
        let [span] = &kept.spans()[..] else { panic!("{:?}", kept.spans()) };
        assert_eq!((&*span.name, &span.span_kind, &span.status), ("GET", &SpanKind::Client, &Status::Unset));
        assert_eq!(context.span().span_id(), span.span_context.span_id());
        assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
        let attributes = [
            ("http.request.method", "GET"),
            ("url.full", "https://REDACTED:REDACTED@api.example.com/a?b=1&token=REDACTED"),
            ("server.address", "api.example.com"),
            ("server.port", "443"),
            ("http.response.status_code", "200"),
        ];
        let expected: Vec<_> = attributes.map(|(name, text)| format!("{name}={text}")).into();
        let found: Vec<_> = span.attributes.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_failure_is_a_word() {
        let kept = Kept::default();
        let failed = |error: Error| begin(&kept, "POST", "http://a/").failed(&error);
        failed(Error::ConnectionRefused);
        failed(Error::InternalError(Some("the address of a secret".into())));
        begin(&kept, "PUT", "http://a/").answered(StatusCode::NOT_FOUND);
        drop(begin(&kept, "BREW", "http://a:81/"));
        let spans = kept.spans();
        let types: Vec<_> = spans.iter().map(|span| value(span, "error.type").unwrap()).collect();
        assert_eq!(types, ["ConnectionRefused", "InternalError", "404", "cancelled"]);
        assert!(
            spans.iter().all(|span| matches!(&span.status, Status::Error { description } if description.is_empty()))
        );
        let odd = &spans[3];
        assert_eq!((&*odd.name, value(odd, "http.request.method").as_deref()), ("HTTP", Some("_OTHER")));
        assert_eq!(value(odd, "server.port").as_deref(), Some("81"));
    }
}
