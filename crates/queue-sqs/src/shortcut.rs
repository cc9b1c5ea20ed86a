//! Calls of SQS as the SDK made its last one: to the same address, with the same headers and credentials, another body and a signature
//! of their own.
//!
//! For each call the SDK decides anew on endpoint, authentication, timeouts, retries and user agent, which takes more time than the call
//! itself. The calls that every batch of messages needs are made this way meanwhile; the SDK makes one a minute, and all of them
//! for a while after one failed here.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_sdk_sqs::config::http::HttpRequest;
use aws_sdk_sqs::config::{ConfigBag, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_smithy_runtime_api::client::auth::{AuthScheme, AuthSchemeEndpointConfig, AuthSchemeId, Sign};
use aws_smithy_runtime_api::client::http::{HttpClient, HttpConnector, HttpConnectorSettings, SharedHttpConnector};
use aws_smithy_runtime_api::client::identity::{Identity, SharedIdentityResolver};
use aws_smithy_runtime_api::client::runtime_components::GetIdentityResolver;
use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::clients::CONNECT;
use super::json::{self, Refusal};
use super::signer::Signer;
use hostler_types::error_chain::with_causes;

/// How long what the SDK decided holds.
const FRESH: Duration = Duration::from_secs(60);
/// Credentials that expire sooner are the SDK's to renew.
const EXPIRING: Duration = Duration::from_secs(5 * 60);
/// How long the SDK makes all calls after one failed here.
const DISTRUST: Duration = Duration::from_secs(10);

/// What a call names to say which it is.
const TARGET: &str = "x-amz-target";
/// Where a refusal has its code as the older protocol has it, which is the one that the SDK tells.
const QUERY_ERROR: &str = "x-amzn-query-error";
/// Where an answer has the id of its request.
const REQUEST_ID: &str = "x-amzn-requestid";

/// Why a call was not answered.
#[derive(Debug)]
pub(super) enum Detour {
    /// It was not made: the SDK is to make it.
    NotTaken,
    /// It was refused.
    Refused(Refusal),
    /// It may have been carried out.
    Broken(String),
    /// There was no answer in time; it may have been carried out.
    Late,
}

/// A good answer.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) body: Bytes,
    /// The id of the request.
    pub(super) request_id: Option<String>,
}

/// Signs the SDK's calls, and makes calls like them. Clones know of each other's.
#[derive(Clone)]
pub(super) struct Shortcut {
    signer: Signer,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    way: Option<Arc<Way>>,
    distrusted_until: Option<Instant>,
}

/// What the SDK decided for a call.
struct Way {
    method: String,
    uri: String,
    headers: Vec<(String, String)>,
    identity: Identity,
    region: String,
    connector: SharedHttpConnector,
    since: Instant,
}

impl Shortcut {
    pub(super) fn new(signer: Signer) -> Self {
        Self { signer, known: Arc::default() }
    }

    /// Makes a call, such as `ReceiveMessage`, with this body.
    pub(super) async fn call(&self, action: &str, body: Vec<u8>, patience: Duration) -> Result<Answered, Detour> {
        let way = self.way(Instant::now(), SystemTime::now()).ok_or(Detour::NotTaken)?;
        let request = way.request(action, body).and_then(|mut request| {
            self.signer.sign_now(&mut request, &way.identity, &way.region, SystemTime::now())?;
            Ok(request)
        });
        let request = request.map_err(|_| Detour::NotTaken)?;
        let answer = timeout(patience, exchange(&way.connector, request)).await.unwrap_or(Err(Detour::Late));
        answer.inspect_err(|_| self.distrust())
    }

    /// The way that the SDK took last, if it can be taken now.
    fn way(&self, now: Instant, time: SystemTime) -> Option<Arc<Way>> {
        let known = self.known();
        let way = known.way.as_ref().filter(|way| now < way.since + FRESH)?;
        let holds = way.identity.expiration().is_none_or(|until| time + EXPIRING < until);
        holds.then(|| Arc::clone(way))
    }

    fn learn(&self, way: Way) {
        let mut known = self.known();
        if known.distrusted_until.is_none_or(|until| until <= way.since) {
            *known = Known { way: Some(Arc::new(way)), distrusted_until: None };
        }
    }

    fn distrust(&self) {
        *self.known() = Known { way: None, distrusted_until: Some(Instant::now() + DISTRUST) };
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Way {
    /// `None`: the call is none of which others can be made, or there is no HTTP client.
    fn of(
        call: &HttpRequest,
        identity: &Identity,
        endpoint: &AuthSchemeEndpointConfig<'_>,
        components: &RuntimeComponents,
        signer: &Signer,
    ) -> Option<Self> {
        let settings = HttpConnectorSettings::builder().connect_timeout(CONNECT).build();
        call.headers().get(TARGET)?;
        Some(Self {
            method: call.method().to_owned(),
            uri: call.uri().to_owned(),
            headers: call.headers().iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            identity: identity.clone(),
            region: signer.region(endpoint).to_owned(),
            connector: components.http_client()?.http_connector(&settings, components),
            since: Instant::now(),
        })
    }

    fn request(&self, action: &str, body: Vec<u8>) -> Result<HttpRequest, BoxError> {
        let length = body.len().to_string();
        let mut request = HttpRequest::new(SdkBody::from(body));
        request.set_method(&self.method)?;
        request.set_uri(self.uri.as_str())?;
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            headers.try_insert(name.clone(), value.clone())?;
        }
        headers.try_insert(TARGET, format!("AmazonSQS.{action}"))?;
        headers.try_insert("content-length", length)?;
        Ok(request)
    }
}

/// Sends a call.
async fn exchange(connector: &SharedHttpConnector, request: HttpRequest) -> Result<Answered, Detour> {
    let broken = |error: &(dyn Error + 'static)| Detour::Broken(with_causes(error));
    let answer = connector.call(request).await.map_err(|error| broken(&error))?;
    let (status, code) = (answer.status(), answer.headers().get(QUERY_ERROR).map(str::to_owned));
    let request_id = answer.headers().get(REQUEST_ID).map(str::to_owned);
    let body = ByteStream::new(answer.into_body()).collect().await.map_err(|error| broken(&error))?.into_bytes();
    match status.is_success() {
        true => Ok(Answered { body, request_id }),
        false => {
            let refusal = json::refusal(status.as_u16(), code.as_deref(), &body);
            Err(Detour::Refused(Refusal { request_id, ..refusal }))
        }
    }
}

impl AuthScheme for Shortcut {
    fn scheme_id(&self) -> AuthSchemeId {
        self.signer.scheme_id()
    }

    fn identity_resolver(&self, resolvers: &dyn GetIdentityResolver) -> Option<SharedIdentityResolver> {
        self.signer.identity_resolver(resolvers)
    }

    fn signer(&self) -> &dyn Sign {
        self
    }
}

/// What the SDK has decided is all there when a call is to be signed.
impl Sign for Shortcut {
    fn sign_http_request(
        &self,
        request: &mut HttpRequest,
        identity: &Identity,
        endpoint: AuthSchemeEndpointConfig<'_>,
        components: &RuntimeComponents,
        config: &ConfigBag,
    ) -> Result<(), BoxError> {
        let way = Way::of(request, identity, &endpoint, components, &self.signer);
        self.signer.sign_http_request(request, identity, endpoint, components, config)?;
        way.into_iter().for_each(|way| self.learn(way));
        Ok(())
    }
}

impl fmt::Debug for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shortcut").field("signer", &self.signer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::Client;
    use aws_sdk_sqs::config::Credentials;

    use super::super::scripted::{Service, config};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A client whose credentials last this long, and the shortcut that learns from it.
    fn client(service: &Service, lasting: Option<Duration>) -> (Client, Shortcut) {
        let shortcut = Shortcut::new(Signer::new("eu-west-1", "sqs"));
        let until = lasting.map(|lasting| SystemTime::now() + lasting);
        let credentials = Credentials::new("AKIDEXAMPLE", "a secret", Some("a token".into()), until, "test");
        let config = config(service).credentials_provider(credentials).push_auth_scheme(shortcut.clone());
        (Client::from_conf(config.build()), shortcut)
    }

    async fn by_sdk(client: &Client) {
        let _ = client.purge_queue().queue_url("https://sqs/1/q").send().await;
    }

    async fn is_taken(shortcut: &Shortcut) -> bool {
        shortcut.call("DeleteMessageBatch", b"{}".to_vec(), SECOND).await.is_ok()
    }

    #[tokio::test]
    async fn a_call_is_what_the_sdk_would_have_sent() {
        let service = Service::answering(200);
        let (client, shortcut) = client(&service, None);
        assert!(!is_taken(&shortcut).await, "nothing is known yet");
        by_sdk(&client).await;
        let body = br#"{"QueueUrl":"https://sqs/1/q"}"#;
        assert_eq!(shortcut.call("PurgeQueue", body.to_vec(), SECOND).await.unwrap().body, "{}");
        let of = |mut call: HttpRequest| {
            for each in ["amz-sdk-invocation-id", "amz-sdk-request", "x-amz-date", "authorization"] {
                call.headers_mut().remove(each);
            }
            let mut headers: Vec<_> = call.headers().iter().map(|(name, value)| format!("{name}: {value}")).collect();
            headers.sort();
            (call.method().to_owned(), call.uri().to_owned(), headers, call.body().bytes().map(<[u8]>::to_vec))
        };
        let calls = service.calls();
        let [theirs, ours] = &calls[..] else { panic!("{calls:?}") };
        assert!(ours.headers().get("authorization").unwrap().contains("Credential=AKIDEXAMPLE/"));
        let (theirs, ours) = (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
        assert_eq!(of(ours), of(theirs));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_sdk_decided_holds_for_a_minute() {
        let service = Service::answering(200);
        let (client, shortcut) = client(&service, None);
        by_sdk(&client).await;
        tokio::time::advance(FRESH - SECOND).await;
        assert!(is_taken(&shortcut).await);
        tokio::time::advance(SECOND).await;
        assert!(!is_taken(&shortcut).await);
        by_sdk(&client).await;
        assert!(is_taken(&shortcut).await);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_the_sdk_makes_the_calls_for_a_while() {
        let service = Service::answering(200);
        let (client, shortcut) = client(&service, None);
        by_sdk(&client).await;
        for status in [503, 403] {
            assert!(is_taken(&shortcut).await);
            service.answer(status);
            let refused = shortcut.call("DeleteMessageBatch", b"{}".to_vec(), SECOND).await;
            assert!(matches!(&refused, Err(Detour::Refused(it)) if it.status == status), "{refused:?}");
            service.answer(200);
            by_sdk(&client).await;
            let calls = service.calls().len();
            assert!(!is_taken(&shortcut).await);
            assert_eq!(service.calls().len(), calls, "nothing was sent");
            tokio::time::advance(DISTRUST).await;
            by_sdk(&client).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_answer_is_lost_may_have_been_carried_out() {
        let service = Service::answering(200);
        let (client, shortcut) = client(&service, None);
        by_sdk(&client).await;
        service.answer(0);
        let broken = shortcut.call("DeleteMessageBatch", b"{}".to_vec(), SECOND).await;
        assert!(matches!(broken, Err(Detour::Broken(_))), "{broken:?}");
        service.answer(200);
        by_sdk(&client).await;
        assert!(!is_taken(&shortcut).await);
    }

    #[tokio::test]
    async fn credentials_that_expire_soon_are_left_to_the_sdk() {
        for (lasting, taken) in [(EXPIRING - SECOND, false), (EXPIRING + 60 * SECOND, true)] {
            let service = Service::answering(200);
            let (client, shortcut) = client(&service, Some(lasting));
            by_sdk(&client).await;
            assert_eq!(is_taken(&shortcut).await, taken, "{lasting:?}");
        }
    }
}
