//! For tests: a service behind the SDK's HTTP client that keeps what it is sent, and answers all of it alike.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::config::http::{HttpRequest, HttpResponse};
use aws_sdk_sqs::config::{BehaviorVersion, Builder, Region, RuntimeComponents, SharedHttpClient};
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::result::ConnectorError;

/// The service. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    calls: Arc<Mutex<Vec<HttpRequest>>>,
    status: Arc<Mutex<u16>>,
    /// How much its clock is ahead of ours.
    pub(super) ahead: Duration,
}

impl Service {
    pub(super) fn answering(status: u16) -> Self {
        let service = Self::default();
        service.answer(status);
        service
    }

    /// From now on it answers with this status; 0: the connection breaks.
    pub(super) fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    /// All that it was sent.
    pub(super) fn calls(&self) -> Vec<HttpRequest> {
        self.calls.lock().unwrap().iter().map(|call| call.try_clone().unwrap()).collect()
    }
}

impl HttpClient for Service {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
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
        let mut answer = HttpResponse::new(status.try_into().unwrap(), "{}".into());
        let now = DateTime::from(SystemTime::now() + self.ahead).fmt(DateTimeFormat::HttpDate).unwrap();
        answer.headers_mut().insert("date", now);
        HttpConnectorFuture::ready(Ok(answer))
    }
}

/// The config of a client of the service, but for credentials.
pub(super) fn config(service: &Service) -> Builder {
    aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .http_client(SharedHttpClient::new(service.clone()))
}
