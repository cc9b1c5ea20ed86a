//! Signs calls (AWS Signature Version 4) in place of the SDK's signer, whose signatures it gives at a fifth of their price:
//! the key of a day is derived once instead of for each call, and the digests come from rustls' library.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};
use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Credentials, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::auth::{AuthScheme, AuthSchemeEndpointConfig, AuthSchemeId, Sign};
use aws_smithy_runtime_api::client::identity::{Identity, SharedIdentityResolver};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::GetIdentityResolver;

use super::canonical;
use hostler_types::digest::{hex, sha256};

/// The scheme that it takes the place of.
const SCHEME: AuthSchemeId = AuthSchemeId::new("sigv4");
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The clock differs by so much before it is corrected: AWS refuses calls that are 5 minutes off.
const SKEWED: Duration = Duration::from_secs(4 * 60);

/// Signs the calls to one service in one region. Cheap to clone; clones share the key and what is known of the clock.
#[derive(Clone)]
pub(super) struct Signer {
    region: String,
    service: &'static str,
    key: Arc<Mutex<Option<Derived>>>,
    /// Milliseconds that the service's clock is ahead of ours.
    ahead: Arc<AtomicI64>,
}

/// The key of one day, and what it was derived from.
#[derive(Clone)]
struct Derived {
    secret: String,
    /// `20261122/eu-west-1/sqs/aws4_request`
    scope: String,
    key: Key,
}

/// A call cannot be signed.
#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error("there are no AWS credentials to sign the call with")]
    NoCredentials,
    #[error("the body of the call is not in memory, so that it cannot be signed")]
    Streamed,
    #[error("the call's address {0:?} has no host")]
    NoHost(String),
}

impl Signer {
    pub(super) fn new(region: &str, service: &'static str) -> Self {
        Self { region: region.to_owned(), service, key: Arc::default(), ahead: Arc::default() }
    }

    /// The key for the scope, derived unless it is the last one.
    fn key(&self, secret: &str, scope: &str, region: &str) -> Key {
        let mut kept = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(derived) = &*kept
            && derived.secret == secret
            && derived.scope == scope
        {
            return derived.key.clone();
        }
        let day = scope.get(..8).unwrap_or_default();
        let first = Key::new(HMAC_SHA256, format!("AWS4{secret}").as_bytes());
        let key = [day, region, self.service, "aws4_request"]
            .iter()
            .fold(first, |key, part| Key::new(HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref()));
        *kept = Some(Derived { secret: secret.to_owned(), scope: scope.to_owned(), key: key.clone() });
        key
    }

    /// The region that a call to this endpoint is signed for.
    pub(super) fn region<'a>(&'a self, endpoint: &'a AuthSchemeEndpointConfig<'_>) -> &'a str {
        endpoint.get("signingRegion").and_then(|region| region.as_string()).unwrap_or(&self.region)
    }

    /// Signs a call when our clock shows `now`.
    pub(super) fn sign_now(
        &self,
        request: &mut HttpRequest,
        identity: &Identity,
        region: &str,
        now: SystemTime,
    ) -> Result<(), BoxError> {
        let credentials = identity.data::<Credentials>().ok_or(SignError::NoCredentials)?;
        Ok(self.sign(request, credentials, region, shifted(now, self.ahead.load(Ordering::Relaxed)))?)
    }

    /// Signs a call as of a time.
    fn sign(
        &self,
        request: &mut HttpRequest,
        credentials: &Credentials,
        region: &str,
        now: SystemTime,
    ) -> Result<(), SignError> {
        let time = compact(now);
        if let Some(token) = credentials.session_token() {
            request.headers_mut().insert("x-amz-security-token", token.to_owned());
        }
        request.headers_mut().insert("x-amz-date", time.clone());
        let body = sha256(request.body().bytes().ok_or(SignError::Streamed)?);
        let call = canonical::of(request, &hex(&body)).ok_or_else(|| SignError::NoHost(request.uri().to_owned()))?;
        let scope = format!("{}/{region}/{}/aws4_request", time.get(..8).unwrap_or_default(), self.service);
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&sha256(call.text.as_bytes())));
        let key = self.key(credentials.secret_access_key(), &scope, region);
        let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
        let (id, headers) = (credentials.access_key_id(), call.headers);
        let authorization =
            format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={headers}, Signature={signature}");
        request.headers_mut().insert("authorization", authorization);
        Ok(())
    }
}

/// `20261122T031500Z`
fn compact(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}

impl AuthScheme for Signer {
    fn scheme_id(&self) -> AuthSchemeId {
        SCHEME
    }

    fn identity_resolver(&self, resolvers: &dyn GetIdentityResolver) -> Option<SharedIdentityResolver> {
        resolvers.identity_resolver(SCHEME)
    }

    fn signer(&self) -> &dyn Sign {
        self
    }
}

impl Sign for Signer {
    fn sign_http_request(
        &self,
        request: &mut HttpRequest,
        identity: &Identity,
        endpoint: AuthSchemeEndpointConfig<'_>,
        components: &RuntimeComponents,
        _: &ConfigBag,
    ) -> Result<(), BoxError> {
        let now = components.time_source().unwrap_or_default().now();
        self.sign_now(request, identity, self.region(&endpoint), now)
    }
}

/// A refusal tells the service's time: from then on calls are signed by that clock, where ours is too far off.
impl Intercept for Signer {
    fn name(&self) -> &'static str {
        "Signer"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response();
        if answer.status().is_client_error()
            && let Some(told) = answer.headers().get("date")
            && let Ok(told) = DateTime::from_str(told, DateTimeFormat::HttpDate)
            && let Ok(told) = told.to_millis()
        {
            let now = components.time_source().unwrap_or_default().now();
            let ours = DateTime::from(now).to_millis().unwrap_or(told);
            self.ahead.store(correction(told - ours), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What to add to the clock that is so many milliseconds behind.
fn correction(behind: i64) -> i64 {
    match u128::from(behind.unsigned_abs()) > SKEWED.as_millis() {
        true => behind,
        false => 0,
    }
}

fn shifted(time: SystemTime, millis: i64) -> SystemTime {
    let by = Duration::from_millis(millis.unsigned_abs());
    let shifted = if millis < 0 { time.checked_sub(by) } else { time.checked_add(by) };
    shifted.unwrap_or(time)
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("region", &self.region).field("service", &self.service).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::Client;
    use aws_sdk_sqs::config::SharedInterceptor;

    use super::super::scripted::{Service, config};
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn credentials(token: Option<&str>) -> Credentials {
        Credentials::new("AKIDEXAMPLE", "a secret/+", token.map(str::to_owned), None, "test")
    }

    /// A client of the service; signed for by the SDK, or by ours.
    fn client(service: &Service, endpoint: Option<&str>, token: Option<&str>, signer: Option<&Signer>) -> Client {
        let mut config = config(service).credentials_provider(credentials(token));
        config.set_endpoint_url(endpoint.map(str::to_owned));
        if let Some(signer) = signer {
            config = config.push_auth_scheme(signer.clone()).interceptor(SharedInterceptor::new(signer.clone()));
        }
        Client::from_conf(config.build())
    }

    fn time(request: &HttpRequest) -> SystemTime {
        let told = request.headers().get("x-amz-date").unwrap();
        let (day, hour) = (&told[..8], &told[9..15]);
        let parts = [&day[..4], &day[4..6], &day[6..]].join("-");
        let text = format!("{parts}T{}:{}:{}Z", &hour[..2], &hour[2..4], &hour[4..]);
        humantime::parse_rfc3339(&text).unwrap()
    }

    #[tokio::test]
    async fn signs_as_the_sdk_does() {
        let endpoints = [
            None,
            Some("http://localhost:9324"),
            Some("http://localhost:80"),
            Some("https://sqs.example:443/a/path/"),
            Some("http://localhost/a//b/../c%20d/./é+"),
        ];
        for endpoint in endpoints {
            for (token, body) in [(None, "{}"), (Some("a/session+token=="), "so  many words ☃")] {
                let service = Service::answering(200);
                let by_sdk = client(&service, endpoint, token, None);
                let _ = by_sdk.send_message().queue_url("https://sqs/1/q").message_body(body).send().await;
                let mut call = service.calls().remove(0);
                let theirs = call.headers_mut().remove("authorization").unwrap();
                // The SDK adds these when it has signed.
                for header in ["amz-sdk-invocation-id", "amz-sdk-request"] {
                    call.headers_mut().remove(header);
                }
                let at = time(&call);
                let signer = Signer::new("eu-west-1", "sqs");
                signer.sign(&mut call, &credentials(token), "eu-west-1", at).unwrap();
                assert_eq!(call.headers().get("authorization"), Some(&*theirs), "{endpoint:?} {token:?}");
            }
        }
    }

    #[test]
    fn a_key_is_for_one_secret_one_day_and_one_region() {
        let day = SystemTime::UNIX_EPOCH + 24 * HOUR;
        let other = Credentials::new("AKIDEXAMPLE", "another", None, None, "test");
        let cases = [
            (credentials(None), "eu-west-1", day),
            (credentials(None), "eu-west-1", day + 24 * HOUR),
            (other, "eu-west-1", day),
            (credentials(None), "us-east-1", day),
            (credentials(None), "eu-west-1", day),
        ];
        let kept = Signer::new("eu-west-1", "sqs");
        for (credentials, region, at) in cases {
            let signature = |signer: &Signer| {
                let mut call = HttpRequest::get("https://sqs.example/").unwrap();
                signer.sign(&mut call, &credentials, region, at).unwrap();
                call.headers().get("authorization").unwrap().to_owned()
            };
            assert_eq!(signature(&kept), signature(&Signer::new("eu-west-1", "sqs")));
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_off_is_corrected_by_the_answer_to_a_refusal() {
        let mut service = Service::answering(403);
        service.ahead = HOUR;
        let signer = Signer::new("eu-west-1", "sqs");
        let client = client(&service, None, None, Some(&signer));
        let ask = async || {
            let before = SystemTime::now();
            let _ = client.list_queues().send().await;
            let call = service.calls().pop().unwrap();
            time(&call).duration_since(before).unwrap_or_default()
        };
        assert!(ask().await < HOUR / 2, "nothing is known of the clock yet");
        assert!(ask().await > HOUR / 2);
        assert!(signer.key.lock().unwrap().is_some(), "it was this signer that signed");
        service.answer(200);
        assert!(ask().await > HOUR / 2);
        assert!(ask().await > HOUR / 2, "that it worked is no reason to change it");
    }

    #[test]
    fn a_clock_that_is_hardly_off_is_left_alone() {
        let minutes = |count: i64| count * 60_000;
        assert_eq!([3, -3, 5, -5].map(minutes).map(correction), [0, 0, 300_000, -300_000]);
        let time = SystemTime::UNIX_EPOCH + HOUR;
        assert_eq!([shifted(time, -1_000), shifted(time, 1_000)], [time - HOUR / 3600, time + HOUR / 3600]);
    }

    #[test]
    fn no_secret_is_shown() {
        let signer = Signer::new("eu-west-1", "sqs");
        signer.key("a secret", "20261122/eu-west-1/sqs/aws4_request", "eu-west-1");
        assert!(!format!("{signer:?}").contains("secret"));
    }
}
