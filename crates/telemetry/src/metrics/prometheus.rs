//! The endpoint for Prometheus. Serves only `GET` and `HEAD` of `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use opentelemetry_prometheus::PrometheusExporter;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::StartError;

/// The only path that is served.
const PATH: &str = "/metrics";

/// Maximum number of open connections. Further connections are closed.
const CONNECTIONS: usize = 16;

/// Maximum duration of a connection, even if the client reads slowly. A connection serves one request.
const LONGEST: Duration = Duration::from_secs(10);

/// Time limit for receiving the head of a request.
const HEAD: Duration = Duration::from_secs(5);

/// Maximum size of a request's head in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// Pause after a connection could not be accepted, because file descriptors may have run out.
const REST: Duration = Duration::from_millis(100);

/// A listener and the registry that it serves.
pub(super) struct Endpoint {
    listener: std::net::TcpListener,
    registry: Registry,
}

impl Endpoint {
    /// Creates an endpoint that serves requests to `listener`. Also returns the reader, which the caller must register.
    pub(super) fn new(listener: std::net::TcpListener) -> Result<(PrometheusExporter, Self), StartError> {
        let registry = Registry::new();
        let reader =
            opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false).build();
        let reader = reader.map_err(|error| StartError::Config(format!("telemetry.prometheus: {error}")))?;
        Ok((reader, Self { listener, registry }))
    }

    /// Serves requests for as long as the future is polled.
    pub(super) async fn serve(self) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot serve metrics to Prometheus"),
        };
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(REST).await;
                continue;
            };
            if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                let registry = self.registry.clone();
                tokio::spawn(async move {
                    // A disconnect by the client is not an error of hostler.
                    let _ = timeout(LONGEST, converse(stream, registry)).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Serves one request on a connection, then closes the connection.
async fn converse(stream: TcpStream, registry: Registry) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&request, &registry);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_buf_size(HEAD_BYTES).timer(TokioTimer::new()).header_read_timeout(HEAD);
    server.serve_connection(TokioIo::new(stream), service).await
}

fn answer<B>(request: &Request<B>, registry: &Registry) -> Response<Full<Bytes>> {
    let mut response = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, PATH) => match TextEncoder::new().encode_to_string(&registry.gather()) {
            Ok(text) => {
                let mut response = Response::new(Full::from(text));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
                return response;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot write the metrics for Prometheus");
                status(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n")
            }
        },
        (_, PATH) => {
            let mut response = status(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        _ => status(StatusCode::NOT_FOUND, "there is only /metrics\n"),
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn status(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_path_and_one_method() {
        let ask = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            answer(&request, &Registry::new()).status().as_u16()
        };
        assert_eq!(ask("GET", "/metrics"), 200);
        assert_eq!(ask("GET", "/metrics?name[]=x"), 200);
        assert_eq!(ask("POST", "/metrics"), 405);
        assert_eq!(ask("GET", "/"), 404);
        assert_eq!(ask("DELETE", "/metrics/job/x"), 404);
    }
}
