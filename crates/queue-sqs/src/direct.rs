//! Direct client: makes the calls that each batch of messages needs (receive, delete, change visibility) over plain
//! HTTP. It has one endpoint and one connection pool, takes request bodies from `json`, and signs each request itself.
//!
//! For each call, the generated client determines endpoint, credentials, retries and user agent anew, which takes
//! longer than the call itself. The generated client still makes all other calls. If a direct call fails, the generated
//! client takes over all calls for [`PAUSE`], because it retries failed calls.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_sdk_sqs::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};
use aws_sdk_sqs::config::http::HttpRequest;
use aws_sdk_sqs::error::BoxError;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_types::service_config::ServiceConfigKey;
use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::clock::ServiceClock;
use super::credentials::KeptCredentials;
use super::json::{self, Refusal};
use hostler_types::error_chain::with_causes;

/// Period after a failed direct call in which the generated client makes all calls.
const PAUSE: Duration = Duration::from_secs(10);

const CONTENT_TYPE: &str = "application/x-amz-json-1.0";
const USER_AGENT: &str = concat!("hostler/", env!("CARGO_PKG_VERSION"));
/// Response header with the error code of the older query protocol. The generated client reports the same code.
const QUERY_ERROR: &str = "x-amzn-query-error";
/// Response header with the request id.
const REQUEST_ID: &str = "x-amzn-requestid";

/// Reason why a call has no successful answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The direct client made no call, so the generated client must make it.
    NotMade,
    /// SQS refused the call.
    Refused(Refusal),
    /// The connection failed. SQS may have carried out the call.
    Broken(String),
    /// No answer arrived in time. SQS may have carried out the call.
    Late,
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) body: Bytes,
    /// AWS request id.
    pub(super) request_id: Option<String>,
}

/// A client for one endpoint.
#[derive(Debug)]
pub(super) struct Direct {
    connector: SharedHttpConnector,
    /// URL of every call.
    url: String,
    region: String,
    settings: SigningSettings,
    credentials: KeptCredentials,
    clock: ServiceClock,
    paused_until: Mutex<Option<Instant>>,
}

impl Direct {
    /// Creates the client, and resolves its endpoint as the generated client does. `None`: there is no region, or the
    /// endpoint cannot be resolved. The generated client then reports the error.
    pub(super) async fn new(
        shared: &SdkConfig,
        connector: SharedHttpConnector,
        credentials: KeptCredentials,
        clock: ServiceClock,
    ) -> Option<Self> {
        let region = shared.region()?.to_string();
        let place = Params::builder()
            .region(region.as_str())
            .set_use_fips(shared.use_fips())
            .set_use_dual_stack(shared.use_dual_stack())
            .set_endpoint(endpoint_url(shared))
            .build()
            .ok()?;
        let endpoint = ResolveEndpoint::resolve_endpoint(&DefaultResolver::new(), &place).await.ok()?;
        let url = format!("{}/", endpoint.url().trim_end_matches('/'));
        let mut settings = SigningSettings::default();
        // Every header passed to the signer must be signed, so no header is excluded.
        settings.excluded_headers = None;
        Some(Self { connector, url, region, settings, credentials, clock, paused_until: Mutex::default() })
    }

    /// Makes a call. `target` names the action, for example `AmazonSQS.ReceiveMessage`. `patience` is the timeout.
    pub(super) async fn call(
        &self,
        target: &'static str,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<Answered, Failure> {
        if self.paused_until().is_some_and(|until| Instant::now() < until) {
            return Err(Failure::NotMade);
        }
        let request = self.signed(target, body, SystemTime::now()).ok().flatten().ok_or(Failure::NotMade)?;
        let answer = timeout(patience, self.exchange(request)).await.unwrap_or(Err(Failure::Late));
        answer.inspect_err(|_| *self.paused_until() = Some(Instant::now() + PAUSE))
    }

    fn paused_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the signed request. `now`: time by our clock. `None`: there are no valid credentials.
    fn signed(&self, target: &'static str, body: Vec<u8>, now: SystemTime) -> Result<Option<HttpRequest>, BoxError> {
        let now = self.clock.show(now);
        let Some(credentials) = self.credentials.current(now) else { return Ok(None) };
        let headers = [("content-type", CONTENT_TYPE), ("x-amz-target", target), ("x-amzn-query-mode", "true")];
        let signable =
            SignableRequest::new("POST", self.url.as_str(), headers.into_iter(), SignableBody::Bytes(&body))?;
        let params = SigningParams::builder()
            .identity(credentials.identity())
            .region(&self.region)
            .name("sqs")
            .time(now)
            .settings(self.settings.clone())
            .build()?
            .into();
        let (instructions, _) = sign(signable, &params)?.into_parts();
        let mut request = HttpRequest::new(SdkBody::from(body));
        request.set_method("POST")?;
        request.set_uri(self.url.as_str())?;
        let all = request.headers_mut();
        for (name, value) in headers.into_iter().chain([("user-agent", USER_AGENT)]) {
            all.try_insert(name, value)?;
        }
        for header in instructions.into_parts().0 {
            all.try_insert(header.name(), header.value().to_owned())?;
        }
        Ok(Some(request))
    }

    /// Sends a request and reads its answer.
    async fn exchange(&self, request: HttpRequest) -> Result<Answered, Failure> {
        let broken = |error: &(dyn Error + 'static)| Failure::Broken(with_causes(error));
        let answer = self.connector.call(request).await.map_err(|error| broken(&error))?;
        let (status, headers) = (answer.status(), answer.headers());
        let request_id = headers.get(REQUEST_ID).map(str::to_owned);
        if status.is_success() {
            let body = ByteStream::new(answer.into_body()).collect().await.map_err(|error| broken(&error))?;
            return Ok(Answered { body: body.into_bytes(), request_id });
        }
        if let Some(date) = headers.get("date") {
            self.clock.learn(date, SystemTime::now());
        }
        let code = headers.get(QUERY_ERROR).map(str::to_owned);
        let body = ByteStream::new(answer.into_body()).collect().await.map_err(|error| broken(&error))?.into_bytes();
        Err(Failure::Refused(Refusal { request_id, ..json::refusal(status.as_u16(), code.as_deref(), &body) }))
    }
}

/// Returns the endpoint URL that replaces the region's default. Sources in order of precedence: hostler's config, the
/// SQS endpoint in the AWS environment and profile, the AWS endpoint for all services.
fn endpoint_url(shared: &SdkConfig) -> Option<String> {
    let common = shared.endpoint_url().map(str::to_owned);
    if shared.get_origin("endpoint_url").is_client_config() {
        return common;
    }
    let key = ServiceConfigKey::builder().service_id("SQS").env("AWS_ENDPOINT_URL").profile("endpoint_url").build();
    let own = key.ok().and_then(|key| shared.service_config()?.load_config(key));
    own.or(common)
}

#[cfg(test)]
mod tests;
