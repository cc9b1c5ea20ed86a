//! Compares the direct client with the generated client: requests on the wire, behaviour after failures, and calls with
//! a wrong clock.

use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_runtime_api::client::http::http_client_fn;

use super::super::scripted::{Service, signer_of};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DELETE: &str = "AmazonSQS.DeleteMessageBatch";
const SECRET: &str = "a secret/+";

/// A generated client and a direct client for the same service.
struct Both {
    generated: Client,
    direct: Direct,
    clock: ServiceClock,
}

impl Both {
    async fn of(service: &Service, endpoint: Option<&str>, token: Option<&str>) -> Self {
        let credentials = Credentials::new("AKIDEXAMPLE", SECRET, token.map(str::to_owned), None, "test");
        let kept = KeptCredentials::new(SharedCredentialsProvider::new(credentials));
        let connector = service.connector();
        let over = connector.clone();
        let mut shared = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(SharedCredentialsProvider::new(kept.clone()))
            .http_client(http_client_fn(move |_, _| over.clone()));
        shared.set_endpoint_url(endpoint.map(str::to_owned));
        let (shared, clock) = (shared.build(), ServiceClock::default());
        let direct = Direct::new(&shared, connector, kept, clock.clone()).await.unwrap();
        Self { generated: Client::new(&shared), direct, clock }
    }

    /// Makes a call with the generated client, which fetches the credentials that direct calls need.
    async fn purge(&self) {
        let _ = self.generated.purge_queue().queue_url("https://sqs/1/q").send().await;
    }

    async fn delete(&self) -> Result<Answered, Failure> {
        self.direct.call(DELETE, b"{}".to_vec(), SECOND).await
    }
}

#[tokio::test]
async fn a_call_is_signed_and_otherwise_as_the_generated_client_makes_it() {
    let body = br#"{"QueueUrl":"https://sqs/1/q"}"#;
    let endpoints = [
        None,
        Some("http://localhost:9324"),
        Some("http://localhost:80"),
        Some("https://sqs.example:443/a/path/"),
        Some("http://localhost/a/path"),
    ];
    for endpoint in endpoints {
        for token in [None, Some("a/session+token==")] {
            let service = Service::answering(200);
            let both = Both::of(&service, endpoint, token).await;
            both.purge().await;
            let answer = both.direct.call("AmazonSQS.PurgeQueue", body.to_vec(), SECOND).await.unwrap();
            assert_eq!((&*answer.body, answer.request_id.as_deref()), (&b"{}"[..], Some("the-id")));
            let calls = service.calls();
            let [theirs, ours] = &calls[..] else { panic!("{calls:?}") };
            for call in [theirs, ours] {
                assert_eq!(signer_of(call, SECRET).as_deref(), Some("AKIDEXAMPLE"), "{call:?}");
                assert_eq!(signer_of(call, "another secret"), None);
            }
            assert_eq!((theirs.method(), theirs.uri()), (ours.method(), ours.uri()), "{endpoint:?}");
            assert_eq!(theirs.body().bytes(), ours.body().bytes());
            let same = ["content-type", "x-amz-target", "x-amzn-query-mode", "x-amz-security-token"];
            for name in same {
                assert_eq!(theirs.headers().get(name), ours.headers().get(name), "{name}");
            }
            let known = ["content-length", "user-agent", "x-amz-user-agent", "x-amz-date", "authorization"];
            let known = |name: &str| same.contains(&name) || known.contains(&name) || name.starts_with("amz-sdk-");
            assert!(theirs.headers().iter().all(|(name, _)| known(name)), "there is a new one: {:?}", theirs.headers());
        }
    }
}

#[tokio::test]
async fn what_the_wire_changes_is_no_longer_signed() {
    let service = Service::answering(200);
    let both = Both::of(&service, None, Some("token")).await;
    both.purge().await;
    both.delete().await.unwrap();
    for name in ["host", "x-amz-target", "x-amz-security-token", "x-amz-date"] {
        let mut call = service.calls().pop().unwrap();
        match name {
            "host" => call.set_uri("https://elsewhere.example/").unwrap(),
            name => drop(call.headers_mut().insert(name, "another")),
        }
        assert_eq!(signer_of(&call, SECRET), None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_the_generated_client_makes_the_calls_for_a_while() {
    let service = Service::answering(200);
    let both = Both::of(&service, None, None).await;
    assert!(matches!(both.delete().await, Err(Failure::NotMade)), "there are no credentials yet");
    both.purge().await;
    for status in [503, 403, 0, 1] {
        both.delete().await.unwrap();
        service.answer(status);
        let failed = both.delete().await.unwrap_err();
        match (&failed, status) {
            (Failure::Broken(_), 0) | (Failure::Late, 1) => {}
            (Failure::Refused(it), _) if it.status == status && it.request_id.as_deref() == Some("the-id") => {}
            _ => panic!("{status}: {failed:?}"),
        }
        service.answer(200);
        let calls = service.calls().len();
        tokio::time::advance(PAUSE - SECOND).await;
        assert!(matches!(both.delete().await, Err(Failure::NotMade)));
        assert_eq!(service.calls().len(), calls, "nothing was sent");
        tokio::time::advance(SECOND).await;
    }
    both.delete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_the_clock_that_later_calls_are_signed_by() {
    let mut service = Service::answering(403);
    service.ahead = HOUR;
    let both = Both::of(&service, None, None).await;
    both.purge().await;
    let date = || service.calls().pop().unwrap().headers().get("x-amz-date").unwrap().to_owned();
    let shown = |time| humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "");
    let before = shown(SystemTime::now());
    both.delete().await.unwrap_err();
    assert!((before..=shown(SystemTime::now())).contains(&date()), "nothing is known of the clock yet");
    let ahead = both.clock.show(SystemTime::now()).duration_since(SystemTime::now()).unwrap();
    assert!((HOUR - 2 * SECOND..=HOUR).contains(&ahead), "{ahead:?}");
    tokio::time::advance(PAUSE).await;
    service.answer(200);
    let before = shown(SystemTime::now() + HOUR - 2 * SECOND);
    both.delete().await.unwrap();
    assert!((before..=shown(SystemTime::now() + HOUR)).contains(&date()), "{}", date());
}
