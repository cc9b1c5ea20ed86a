//! A stand-in for AWS in tests. Records all requests, and gives the answers that a test sets. Also checks request
//! signatures.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};
use aws_sdk_sqs::config::http::{HttpRequest, HttpResponse};
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
use aws_smithy_runtime_api::client::result::ConnectorError;
use hostler_types::digest::{hex, sha256};

use super::{Options, SqsBroker};

/// The stand-in. Clones share the recorded requests and the status.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    calls: Arc<Mutex<Vec<HttpRequest>>>,
    status: Arc<Mutex<u16>>,
    /// Lead of the service's clock over ours.
    pub(super) ahead: Duration,
}

impl Service {
    pub(super) fn answering(status: u16) -> Self {
        let service = Self::default();
        service.answer(status);
        service
    }

    /// Sets the HTTP status of all further answers. 0: the service breaks the connection. 1: the service does not
    /// answer.
    pub(super) fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    /// Returns all requests received so far.
    pub(super) fn calls(&self) -> Vec<HttpRequest> {
        self.calls.lock().unwrap().iter().map(|call| call.try_clone().unwrap()).collect()
    }

    /// Returns a driver whose calls all go to this service.
    pub(super) async fn behind(&self) -> Arc<super::Service> {
        let options = Options {
            region: Some("eu-west-1".into()),
            endpoint_url: Some("http://sqs".into()),
            credentials: Some(("key".into(), "secret".into())),
            http: Some(self.connector()),
            ..Options::default()
        };
        SqsBroker::connect(options).await.unwrap().0
    }

    pub(super) fn connector(&self) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Service {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        self.calls.lock().unwrap().push(request);
        let status = *self.status.lock().unwrap();
        if status == 0 {
            return HttpConnectorFuture::ready(Err(ConnectorError::io("the connection broke".into())));
        }
        if status == 1 {
            return HttpConnectorFuture::new(std::future::pending());
        }
        let mut answer = HttpResponse::new(status.try_into().unwrap(), "{}".into());
        let now = DateTime::from(SystemTime::now() + self.ahead).fmt(DateTimeFormat::HttpDate).unwrap();
        answer.headers_mut().insert("date", now);
        answer.headers_mut().insert("x-amzn-requestid", "the-id");
        HttpConnectorFuture::ready(Ok(answer))
    }
}

/// Returns the access key that signed a request. `None`: the signature is not valid for this secret. Computes the
/// Signature Version 4 of the request as sent. Supports plain paths only.
pub(super) fn signer_of(request: &HttpRequest, secret: &str) -> Option<String> {
    let (place, path) = request.uri().split_once("://")?.1.split_once('/')?;
    let default_port = if request.uri().starts_with("https") { ":443" } else { ":80" };
    let header = |name: &str| match name {
        "host" => Some(place.strip_suffix(default_port).unwrap_or(place)),
        name => request.headers().get(name),
    };
    let part = |text: &str, name: &str| Some(text.split_once(name)?.1.split(',').next()?.to_owned());
    let authorization = header("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let (credential, names) = (part(authorization, "Credential=")?, part(authorization, "SignedHeaders=")?);
    let (key, scope) = credential.split_once('/')?;
    let mut text = format!("{}\n/{path}\n\n", request.method());
    for name in names.split(';') {
        text.push_str(&format!("{name}:{}\n", header(name)?));
    }
    text.push_str(&format!("\n{names}\n{}", hex(&sha256(request.body().bytes()?))));
    let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", header("x-amz-date")?, hex(&sha256(text.as_bytes())));
    let first = Key::new(HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    let derived = |key: Key, part: &str| Key::new(HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref());
    let derived = scope.split('/').fold(first, derived);
    let is_right = part(authorization, "Signature=")? == hex(hmac::sign(&derived, text.as_bytes()).as_ref());
    let is_whole = ["host", "x-amz-date", "x-amz-target"].iter().all(|name| names.split(';').any(|each| each == *name));
    let is_for_sqs = scope == format!("{}/eu-west-1/sqs/aws4_request", header("x-amz-date")?.split('T').next()?);
    (is_right && is_whole && is_for_sqs).then(|| key.to_owned())
}
