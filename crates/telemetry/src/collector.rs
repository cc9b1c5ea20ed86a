//! OTLP connection to a collector, used by metrics and traces: protocol, endpoint, TLS root certificates and HTTP
//! client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use reqwest::{Url, redirect};

use super::variables::Reader;
use hostler_types::error_chain::with_causes;

/// Maximum size of a collector's answer in bytes. Only the status of the answer is used.
const MAX_ANSWER: usize = 64 * 1024;

/// Transport protocol for OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Protobuf over HTTP, the default.
    Http,
    /// gRPC.
    Grpc,
}

/// Reads the protocol from two variables. The first variable applies either to metrics or to traces, and takes
/// precedence. The second one applies to both.
pub(super) fn protocol<F: Fn(&str) -> Option<String>>(reader: &mut Reader<F>, names: [&str; 2]) -> Protocol {
    match reader.first(names, |reader, name| reader.word(name, &["http/protobuf", "grpc"])).as_deref() {
        Some("grpc") => Protocol::Grpc,
        _ => Protocol::Http,
    }
}

/// Returns the endpoint for metrics or for traces. If these have their own endpoint `own`, returns it unchanged.
/// Otherwise, returns the common endpoint `all`, with `path` appended if the protocol is HTTP (OTLP specification,
/// "Endpoint URLs for OTLP/HTTP").
pub(super) fn endpoint(own: Option<String>, all: &str, protocol: Protocol, path: &str) -> String {
    match (own, protocol) {
        (Some(own), _) => own,
        (None, Protocol::Grpc) => all.to_owned(),
        (None, Protocol::Http) => below(all, path),
    }
}

fn below(endpoint: &str, path: &str) -> String {
    let Ok(mut url) = Url::parse(endpoint) else { return endpoint.to_owned() };
    let path = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.into()
}

/// Returns the TLS configuration for `endpoint` over gRPC, which trusts the system's root certificates. Needed because
/// the exporter trusts no certificate by default. `None`: the endpoint does not use TLS.
pub(super) fn tls(endpoint: &str) -> Option<ClientTlsConfig> {
    let is_plain = Url::parse(endpoint).is_ok_and(|url| url.scheme() == "http");
    (!is_plain).then(|| ClientTlsConfig::new().with_enabled_roots())
}

/// Completes a builder of opentelemetry-otlp, and builds the exporter for metrics or for traces.
macro_rules! exporter {
    ($builder:expr, $protocol:expr, $endpoint:expr, $timeout:expr, $fault:expr) => {
        match $protocol {
            Protocol::Http => {
                let builder = $builder.with_http().with_http_client(Client::new($timeout, $fault.clone())?);
                let builder = builder.with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
                builder.with_endpoint($endpoint).with_timeout($timeout).build()
            }
            Protocol::Grpc => {
                let builder = $builder.with_tonic().with_endpoint($endpoint).with_timeout($timeout);
                match collector::tls($endpoint) {
                    Some(tls) => builder.with_tls_config(tls).build(),
                    None => builder.build(),
                }
            }
        }
    };
}

pub(super) use exporter;

/// Returns a name for the collector at `endpoint`, for the log. Omits the user, the path and the query of the URL,
/// because they may be secret.
pub(super) fn named(endpoint: &str) -> String {
    Url::parse(endpoint).map_or_else(|_| "the collector".to_owned(), |url| url.origin().ascii_serialization())
}

/// Returns the reason why the exporter cannot be built. Replaces the endpoint in the error message, because the
/// endpoint may be secret.
pub(super) fn refusal(error: &opentelemetry_otlp::ExporterBuildError, endpoint: &str) -> String {
    error.to_string().replace(endpoint, &named(endpoint))
}

/// The error of the last request, if it failed. Stored here because the SDK does not report it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    fn set(&self, fault: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// HTTP client for the SDK, based on the HTTP library that hostler uses elsewhere. Limits the size of answers.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    fault: Fault,
}

impl Client {
    /// Creates a client whose requests take at most `timeout`.
    ///
    /// # Errors
    /// An error message for the log if TLS cannot be set up.
    pub(super) fn new(timeout: Duration, fault: Fault) -> Result<Self, String> {
        let http = reqwest::Client::builder().timeout(timeout).redirect(redirect::Policy::none());
        let http = http.retry(reqwest::retry::never()).build().map_err(told)?;
        Ok(Self { http, fault })
    }

    async fn send(&self, request: Request<Bytes>) -> reqwest::Result<Response<reqwest::Body>> {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::from))?;
        Ok(self.http.execute(request).await?.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let remember = |error: reqwest::Error| {
            let text = told(error);
            self.fault.set(Some(text.clone()));
            HttpError::from(text)
        };
        self.fault.set(None);
        let (parts, mut body) = self.send(request).await.map_err(remember)?.into_parts();
        let mut answer = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(remember)?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if answer.len() + data.len() > MAX_ANSWER {
                return Err(Box::new(ResponseBodyTooLarge::new()));
            }
            answer.extend_from_slice(data);
        }
        Ok(Response::from_parts(parts, answer.freeze()))
    }
}

/// Formats an error for the log. Omits the URL, because it may contain a secret.
fn told(error: reqwest::Error) -> String {
    with_causes(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_below_the_endpoint_over_http_alone() {
        let signal = |all: &str| endpoint(None, all, Protocol::Http, "/v1/metrics");
        for all in ["http://c:4318", "http://c:4318/"] {
            assert_eq!(signal(all), "http://c:4318/v1/metrics");
        }
        assert_eq!(signal("https://c/otlp/"), "https://c/otlp/v1/metrics");
        assert_eq!(signal("https://c/?tenant=a/b"), "https://c/v1/metrics?tenant=a/b");
        assert_eq!(endpoint(None, "http://c:4317/", Protocol::Grpc, "/v1/metrics"), "http://c:4317/");
        assert_eq!(endpoint(Some("http://own/".into()), "http://c", Protocol::Http, "/v1/metrics"), "http://own/");
    }

    #[test]
    fn two_protocols_are_spoken_and_another_is_passed_over_by_name() {
        let read = |own: &'static str, all: &'static str| {
            let mut reader = Reader::new(move |name: &str| Some(if name == "OWN" { own } else { all }.to_owned()));
            (protocol(&mut reader, ["OWN", "ALL"]), reader.into_warnings())
        };
        assert_eq!(read("", ""), (Protocol::Http, Vec::new()));
        assert_eq!(read("http/protobuf", "grpc"), (Protocol::Http, Vec::new()));
        assert_eq!(read("", "GRPC"), (Protocol::Grpc, Vec::new()));
        let (protocol, warnings) = read("http/json", "grpc");
        assert_eq!(protocol, Protocol::Grpc);
        assert_eq!(warnings, ["OWN: `http/json` is ignored: it must be one of http/protobuf, grpc"]);
    }

    #[test]
    fn whoever_is_not_asked_without_tls_is_asked_with_roots() {
        assert!(tls("http://c:4317").is_none());
        assert!(["https://c", "https://c:4317/x", "c:4317"].iter().all(|endpoint| tls(endpoint).is_some()));
    }

    #[test]
    fn the_log_has_no_more_of_an_endpoint_than_its_origin() {
        assert_eq!(named("https://user:secret@c:1/secret?key=secret"), "https://c:1");
        assert_eq!(named("secret"), "the collector");
        let error = opentelemetry_otlp::ExporterBuildError::InternalFailure("`http://c/secret` is odd".to_owned());
        assert_eq!(refusal(&error, "http://c/secret").matches("secret").count(), 0);
    }
}
