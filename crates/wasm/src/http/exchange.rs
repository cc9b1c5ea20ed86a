//! One HTTP request from a guest, and the response to it. The request is checked against the grants, and its duration
//! is limited. The bodies are streamed in both directions.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use reqwest::{Request, Url};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep, timeout};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

use super::span::RequestSpan;
use super::{CONNECT, Web, cause, head};
use crate::address::Prohibited;
use crate::host_limit;
use crate::scope::Scope;
use hostler_types::error_chain::with_causes;
use hostler_types::message::{TRACEPARENT, TraceContext};

/// The result of a request in `wasi:http`: the response, and a future that must be polled while the body is read.
pub(super) type Answer = (http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

/// The context in which a guest's HTTP request runs.
pub(super) struct Exchange {
    pub(super) web: Arc<Web>,
    pub(super) scope: Arc<Scope>,
}

impl Exchange {
    /// Sends the request and waits for the head of the response. `permit` counts the request as open. The body of the
    /// response keeps `permit` until the body is dropped.
    pub(super) async fn run(
        self,
        request: http::Request<WasiBody>,
        options: RequestOptions,
        permit: OwnedSemaphorePermit,
    ) -> Result<Answer, Error> {
        let url = Url::parse(&request.uri().to_string()).map_err(|_| Error::HttpRequestUriInvalid)?;
        let client = self.web.admit(&url).map_err(|origin| {
            let cure = format!("add \"{origin}\" to the consumer's allow.http");
            self.scope.denials.tell(&format!("HTTP to {origin}"), &cure);
            Error::HttpRequestDenied
        })?;
        let mut span =
            RequestSpan::begin(self.web.traces.as_ref(), self.scope.trace.as_deref(), request.method(), &url);
        let trace = span.context().or_else(|| self.scope.trace.clone());
        let request = outgoing(request, trace.as_deref())?;
        let sent = client.execute(request);
        // The client does not report when a connection is established. Therefore, the guest's timeouts for the
        // connection and for the first byte are added up. After that time, the guest gets the error for a late
        // response, even if it was the connection that was late. If the guest sets only a connection timeout, that
        // timeout is ignored, and [`CONNECT`] applies instead. If the guest sets no timeout for the first byte, only
        // the processing timeout limits the response.
        let answered = match options.first_byte_timeout {
            Some(first_byte) => {
                let connect = options.connect_timeout.unwrap_or(CONNECT);
                timeout(connect + first_byte, sent).await.map_err(|_| Error::HttpResponseTimeout)
            }
            None => Ok(sent.await),
        };
        // Removes the URL from the error. The URL may contain a secret, and the guest may log the error.
        let answered = answered.and_then(|answer| answer.map_err(|error| self.fault(&error.without_url())));
        let response = answered.inspect_err(|error| span.failed(error))?;
        span.answered(response.status());
        let mut response: http::Response<reqwest::Body> = response.into();
        *response.headers_mut() = head::copied(response.headers()).ok_or_else(too_large)?;
        let pause = Pause::new(options.between_bytes_timeout);
        let body = |body| Incoming { body, pause, _permit: permit, _span: span };
        Ok((response.map(|stream| body(stream).boxed_unsync()), Box::new(std::future::ready(Ok(())))))
    }

    /// Converts an error from the HTTP client to a `wasi:http` error. If the connection was denied because of the IP
    /// address, logs the denial. If a host limit caused the error, records the limit.
    fn fault(&self, error: &reqwest::Error) -> Error {
        if let Some(prohibited) = cause::<Prohibited>(error) {
            self.scope.denials.tell(&format!("HTTP: {prohibited}"), &prohibited.cure());
            return Error::DestinationIpProhibited;
        }
        if let Some(limit) = host_limit::of(error) {
            self.scope.reach(limit);
        }
        if let Some(error) = cause::<Error>(error) {
            // The guest's request body ended with an error.
            return Error::InternalError(Some(error.to_string()));
        }
        match (error.is_connect(), cause::<io::Error>(error).map(io::Error::kind)) {
            (true, Some(io::ErrorKind::ConnectionRefused)) => Error::ConnectionRefused,
            (true, _) if error.is_timeout() => Error::ConnectionTimeout,
            (_, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)) => Error::ConnectionTerminated,
            (_, _) if error.is_timeout() => Error::HttpResponseTimeout,
            _ => Error::InternalError(Some(with_causes(error))),
        }
    }
}

/// Converts a guest's request to a request for the HTTP client. Adds the headers for `trace` unless the guest has set a
/// `traceparent` header.
fn outgoing(request: http::Request<WasiBody>, trace: Option<&TraceContext>) -> Result<Request, Error> {
    if request.method() == http::Method::CONNECT {
        return Err(Error::HttpRequestMethodInvalid);
    }
    let (mut parts, body) = request.into_parts();
    let trace = trace.filter(|_| !parts.headers.contains_key(TRACEPARENT));
    for (name, value) in trace.into_iter().flat_map(TraceContext::fields) {
        if let Ok(value) = HeaderValue::from_str(&value) {
            parts.headers.insert(HeaderName::from_static(name), value);
        }
    }
    let body = if body.is_end_stream() || body.size_hint().exact() == Some(0) {
        reqwest::Body::default()
    } else {
        reqwest::Body::wrap(Outgoing(Mutex::new(body)))
    };
    let request = http::Request::from_parts(parts, body);
    Request::try_from(request).map_err(|_| Error::HttpRequestUriInvalid)
}

/// The body of a guest's request. The lock is needed only because the HTTP client requires a type that is `Sync`.
struct Outgoing(Mutex<WasiBody>);

impl Outgoing {
    fn body(&mut self) -> &mut WasiBody {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(self.get_mut().body()).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

/// The body of a response. Fails if no data arrives within the guest's timeout between bytes.
struct Incoming {
    body: reqwest::Body,
    pause: Option<Pause>,
    _permit: OwnedSemaphorePermit,
    /// The span of the request. The span ends when the body is dropped.
    _span: RequestSpan,
}

/// Returns the error for a response whose head or trailers exceed [`head::MAX_HEAD`].
fn too_large() -> Error {
    Error::HttpResponseHeaderSectionSize(u32::try_from(head::MAX_HEAD).ok())
}

/// Checks the size of trailers against [`head::MAX_HEAD`], and copies them. Returns data frames unchanged.
fn bounded(frame: Frame<Bytes>) -> Result<Frame<Bytes>, Error> {
    match frame.into_trailers() {
        Ok(trailers) => head::copied(&trailers).map(Frame::trailers).ok_or_else(too_large),
        Err(data) => Ok(data),
    }
}

/// A timer that limits the wait for the next bytes of a response.
struct Pause {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Pause {
    fn new(limit: Option<Duration>) -> Option<Self> {
        limit.map(|limit| Self { limit, timer: Box::pin(sleep(limit)) })
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            if let Some(pause) = &mut self.pause {
                let next = Instant::now() + pause.limit;
                pause.timer.as_mut().reset(next);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|_| Error::HttpResponseIncomplete).and_then(bounded)));
        }
        match self.pause.as_mut().map(|pause| pause.timer.as_mut().poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Some(Err(Error::ConnectionReadTimeout))),
            _ => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
