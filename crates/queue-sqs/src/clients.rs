//! The AWS clients. They share region, credentials and endpoint. Timeouts and retries depend on the purpose of a
//! client.

use std::sync::Arc;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};

use aws_sdk_sqs::config::retry::RetryPartition;
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_http_client::Connector;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::{
    HttpConnectorSettings, SharedHttpClient, SharedHttpConnector, http_client_fn,
};

use super::Options;
use super::clock::ServiceClock;
use super::credentials::KeptCredentials;
use super::direct::Direct;
use hostler_children::with_own_children;
use hostler_queue::QueueError;

/// Maximum wait of one ReceiveMessage call (AWS limit: WaitTimeSeconds 20).
pub(super) const MAX_WAIT: Duration = Duration::from_secs(20);

/// Timeout of one attempt of an ordinary call. The SDK makes at most three attempts, which together take at most half
/// of the default lease.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// Timeout of one attempt of a call that reads hundreds of metrics.
const METRICS: Duration = Duration::from_secs(60);
/// Time that a long poll gets for its answer in addition to its wait time. Both together are the timeout of the call.
pub(super) const BEYOND_WAIT: Duration = Duration::from_secs(10);
/// Timeout of a send call, long enough for 1 MiB over a slow connection.
const SEND: Duration = Duration::from_secs(10);
/// Timeout of one attempt to transfer up to 2 GiB to or from S3. The SDK detects a stalled transfer sooner.
const TRANSFER: Duration = Duration::from_secs(300);
/// Timeout for opening a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(3);

/// One client per kind of call. All clients share connections and credentials.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    /// Client that deletes messages, changes their visibility and reads attributes. The SDK retries its calls.
    pub(super) sqs: aws_sdk_sqs::Client,
    /// Client for long polls. Its timeout exceeds the wait time of a long poll. The SDK does not retry its calls.
    /// Leases are counted from the start of a call, so the messages of a second attempt would have lost part of their
    /// leases.
    pub(super) polls: aws_sdk_sqs::Client,
    /// Client that sends messages. The SDK does not retry its calls, because hostler retries entry by entry.
    pub(super) sends: aws_sdk_sqs::Client,
    /// Client that receives messages, deletes them and changes their visibility, in place of the SDK's generated
    /// client. `None`: the generated client makes these calls too.
    pub(super) direct: Option<Arc<Direct>>,
    /// Estimate of the SQS clock.
    pub(super) clock: ServiceClock,
    /// Client that publishes to SNS. The SDK does not retry its calls.
    pub(super) publishes: aws_sdk_sns::Client,
    /// Client that manages topics and subscriptions.
    pub(super) sns: aws_sdk_sns::Client,
    /// Client that stores and fetches bodies that are too large for a message.
    pub(super) s3: aws_sdk_s3::Client,
    /// Region of all clients.
    pub(super) region: String,
    /// Configuration of the clients for ordinary calls. Rarely needed clients are created from it on demand.
    ordinary: SdkConfig,
}

impl Clients {
    /// Creates the clients. If `options` has no credentials, the SDK's chain provides them (environment, profile, web
    /// identity, ECS, EC2). The first call fetches the credentials.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: neither `options` nor the AWS environment sets a region.
    pub(super) async fn new(options: &Options) -> Result<Self, QueueError> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &options.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(url) = &options.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some((key, secret)) = &options.credentials {
            loader = loader.credentials_provider(Credentials::new(key, secret, None, None, "options"));
        }
        let shared = with_own_children(loader.load().await);
        let Some(region) = shared.region().map(ToString::to_string) else {
            let text = "there is no AWS region: set queue.sqs.region, or AWS_REGION in the environment";
            return Err(QueueError::Refused(text.into()));
        };
        let clock = ServiceClock::default();
        let connector = options.http.clone().unwrap_or_else(connector);
        let (shared, direct) = connected(&shared, connector, &clock).await;
        let sqs = |shared: &SdkConfig, purpose| sqs(shared, purpose).interceptor(clock.clone());
        let client = |config: aws_sdk_sqs::config::Builder| aws_sdk_sqs::Client::from_conf(config.build());
        let ordinary = with_patience(&shared, CALL, 3);
        let single = with_patience(&shared, SEND, 1);
        let polls = with_patience(&shared, MAX_WAIT + BEYOND_WAIT, 1);
        let transfers = with_patience(&shared, TRANSFER, 3);
        Ok(Self {
            sqs: client(sqs(&ordinary, "calls")),
            polls: client(sqs(&polls, "polls")),
            sends: client(sqs(&single, "sends")),
            direct: direct.filter(|_| !options.generated_calls_only).map(Arc::new),
            clock: clock.clone(),
            publishes: sns(&single, &clock),
            sns: sns(&ordinary, &clock),
            s3: s3(&transfers),
            region,
            ordinary,
        })
    }

    /// Creates a client for the usage metrics of queues and topics. Its timeout is long enough for answers with
    /// hundreds of metrics over several days.
    pub(super) fn cloudwatch(&self) -> aws_sdk_cloudwatch::Client {
        aws_sdk_cloudwatch::Client::new(&with_patience(&self.ordinary, METRICS, 3))
    }
}

/// Creates the S3 client. If the config or AWS_ENDPOINT_URL sets an endpoint, buckets are addressed by path, because
/// stand-ins for S3 have no host name for each bucket.
fn s3(shared: &SdkConfig) -> aws_sdk_s3::Client {
    let config = aws_sdk_s3::config::Builder::from(shared).force_path_style(shared.endpoint_url().is_some());
    aws_sdk_s3::Client::from_conf(config.build())
}

/// Creates the configuration of an SQS client. Each `purpose` has its own retry budget, so that other calls cannot use
/// up the retries that heartbeats need. The SDK's stalled-stream protection is disabled: every attempt has a timeout
/// anyway, and the protection would wake up regularly during each call that waits.
fn sqs(shared: &SdkConfig, purpose: &'static str) -> aws_sdk_sqs::config::Builder {
    aws_sdk_sqs::config::Builder::from(shared)
        .retry_partition(RetryPartition::custom(purpose).build())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

/// Creates an SNS client. Its answers update the estimate of the service's clock, like those of SQS.
fn sns(shared: &SdkConfig, clock: &ServiceClock) -> aws_sdk_sns::Client {
    let config = aws_sdk_sns::config::Builder::from(shared).interceptor(clock.clone());
    aws_sdk_sns::Client::from_conf(config.build())
}

/// Creates the SDK's usual connector, with proxies from the environment and the system's root certificates. All clients
/// share its connections.
fn connector() -> SharedHttpConnector {
    let settings = HttpConnectorSettings::builder().connect_timeout(CONNECT).build();
    let connector = Connector::builder().connector_settings(settings).proxy_config(ProxyConfig::from_env());
    SharedHttpConnector::new(connector.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).build())
}

fn client_of(connector: &SharedHttpConnector) -> SharedHttpClient {
    let connector = connector.clone();
    http_client_fn(move |_, _| connector.clone())
}

/// Returns the configuration with this connector, and with a credentials cache that all clients share. Also returns the
/// direct client, which is `None` if there is no source of credentials or no endpoint.
async fn connected(
    shared: &SdkConfig,
    connector: SharedHttpConnector,
    clock: &ServiceClock,
) -> (SdkConfig, Option<Direct>) {
    let over = shared.to_builder().http_client(client_of(&connector));
    let Some(provider) = shared.credentials_provider() else { return (over.build(), None) };
    let kept = KeptCredentials::new(provider);
    let over = over.credentials_provider(SharedCredentialsProvider::new(kept.clone())).build();
    let direct = Direct::new(&over, connector, kept, clock.clone()).await;
    (over, direct)
}

fn with_patience(shared: &SdkConfig, attempt: Duration, attempts: u32) -> SdkConfig {
    let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).operation_attempt_timeout(attempt).build();
    let retries = RetryConfig::standard().with_max_attempts(attempts);
    shared.to_builder().timeout_config(timeouts).retry_config(retries).build()
}

#[cfg(test)]
mod tests {
    use super::super::scripted::Service;
    use super::*;

    #[tokio::test]
    async fn a_look_alike_finds_the_bucket_in_the_path() {
        let url = async |endpoint: Option<&str>| {
            let service = Service::answering(200);
            let credentials = Credentials::new("key", "secret", None, None, "test");
            let shared = SdkConfig::builder()
                .behavior_version(BehaviorVersion::latest())
                .region(Region::new("eu-west-1"))
                .credentials_provider(SharedCredentialsProvider::new(credentials))
                .http_client(client_of(&service.connector()));
            let mut shared = shared.build();
            if let Some(endpoint) = endpoint {
                shared = shared.to_builder().endpoint_url(endpoint).build();
            }
            s3(&with_patience(&shared, CALL, 1)).get_object().bucket("bodies").key("hostler/1").send().await.unwrap();
            service.calls()[0].uri().split('?').next().unwrap().to_owned()
        };
        assert_eq!(url(Some("http://look-alike:4566")).await, "http://look-alike:4566/bodies/hostler/1");
        assert_eq!(url(None).await, "https://bodies.s3.eu-west-1.amazonaws.com/hostler/1");
    }

    #[tokio::test]
    async fn the_direct_client_can_be_switched_off() {
        for generated_calls_only in [false, true] {
            let options = Options {
                region: Some("eu-west-1".into()),
                endpoint_url: Some("http://sqs".into()),
                credentials: Some(("key".into(), "secret".into())),
                generated_calls_only,
                http: Some(Service::answering(200).connector()),
                ..Options::default()
            };
            let clients = Clients::new(&options).await.unwrap();
            assert_eq!(clients.direct.is_none(), generated_calls_only);
        }
    }
}
