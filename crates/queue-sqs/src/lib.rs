//! The SQS driver: queues on Amazon SQS, exchanges as SNS topics, large bodies in S3.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `clients` | the AWS clients | yes |
//! | `clock` | estimate of the SQS clock | none |
//! | `credentials` | credentials, cached and renewed | yes |
//! | `calls` | the calls that every batch needs: receive, delete, change visibility | yes |
//! | `direct` | the same calls without the SDK's client | yes |
//! | `json` | the JSON format of the direct client's requests and answers | none |
//! | `names` | names of queues and topics on AWS | none |
//! | `fault` | AWS errors, classified by what the caller does next | none |
//! | `place` | queues and topics, and the target of a channel's messages | none |
//! | `resolve` | resolves names to queue URLs and topic ARNs, and caches them | yes |
//! | `target` | the target of a channel's messages; creates or refuses a missing target | yes |
//! | `wire` | converts between SQS or SNS messages and hostler's own | none |
//! | `not_before` | delays of more than 15 minutes | none |
//! | `envelope` | reads the trace context from an SNS envelope | none |
//! | `in_flight` | leases, timed by our own clock; ids of finished messages | none |
//! | `queue` | receives messages and extends leases | yes |
//! | `queue/settle` | settles deliveries: deletes, visibility changes, copies to the dead-letter queue | yes |
//! | `send` | prepares messages and copies of dead letters, and packs them into batches | yes |
//! | `deliver` | sends batches to a queue or topic, with retries | yes |
//! | `in_order` | sends batches to a FIFO queue or topic, in the order of each group | yes |
//! | `batch` | groups messages into batches, one batch per call | none |
//! | `payload` | the claim check: large bodies in S3 | yes |
//! | `sharing` | finds queues whose messages other queues may receive too | yes |
//! | `redrive` | SQS message move tasks | yes |
//! | `depth` | message counts; list of queues | yes |
//! | `inventory` | queues and topics that hostler owns, according to their tags | yes |
//! | `metrics` | usage data for queues and topics, from CloudWatch | yes |
//! | `disposal` | deletes unused queues and bodies | yes |
//! | `announce` | publishes notices for people to a topic | yes |
//! | `provision/` | compares desired resources with existing ones, and creates or changes them | yes |
//!
//! Some calls may be made for a guest (a WASM handler): sending a message, loading a body. They run on the runtime on
//! which the broker was created, regardless of the thread that requests them. Otherwise, the task that drives a
//! connection could be on the thread of a guest. A guest that keeps its thread busy would then delay all calls on that
//! connection, for example heartbeats.

mod announce;
mod batch;
mod calls;
mod clients;
mod clock;
mod credentials;
mod deliver;
mod depth;
mod direct;
mod disposal;
mod envelope;
mod fault;
mod in_flight;
mod in_order;
mod inventory;
mod json;
mod metrics;
mod names;
mod not_before;
mod payload;
mod place;
mod provision;
mod queue;
mod redrive;
mod resolve;
mod schedules;
#[cfg(test)]
mod scripted;
mod send;
mod sharing;
mod target;
pub mod wire;

pub use announce::Announcer;
pub use provision::policy::{
    alarming, cleaning, least_privilege, protecting_tasks, reading_handlers, receiving, redriving,
};

use std::collections::BTreeSet;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use clients::Clients;
use hostler_queue::{
    Admin, Body, Broker, Change, ChannelSpec, Depth, Disposal, Finding, Inventory, Listing, ManagedQueue, ManagedTopic,
    Origin, Provisioner, Queue, QueueError, QueueUse, Redriven, Removal, Schedules, SendError, Sent, StoredBodies,
};
use hostler_types::BoxFuture;
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Outgoing};
use names::Names;
use place::{Place, Target};
use queue::SqsQueue;
use resolve::Resolver;
use schedules::OwnStates;

/// Maximum size of a message in bytes, body and attributes together (AWS limit: 1 MiB). A queue may have a lower limit.
pub const MAX_MESSAGE: usize = 1024 * 1024;

/// Names of the services in OpenTelemetry's semantic conventions.
const SQS: &str = "aws_sqs";
const SNS: &str = "aws.sns";

/// Settings of the driver, from the config.
#[derive(Clone, Default)]
pub struct Options {
    /// AWS region. `None`: the region that the AWS environment sets.
    pub region: Option<String>,
    /// Endpoint URL of a stand-in for AWS. `None`: the endpoint that the AWS environment sets, or AWS's own.
    pub endpoint_url: Option<String>,
    /// Access key id and secret key. `None`: credentials from the SDK's chain (environment, profile, web identity, ECS,
    /// EC2).
    pub credentials: Option<(String, String)>,
    /// Prefix of every queue and topic name.
    pub prefix: String,
    /// Set to create missing resources when they are needed. If unset, a missing resource causes an error that says how
    /// to create it.
    pub create_missing: bool,
    /// KMS key for the queues and topics that hostler creates. `None`: hostler sets no key, and queues have SQS's own
    /// encryption.
    pub kms_key: Option<String>,
    /// S3 bucket for the bodies of messages that are larger than `threshold`. `None`: a message that is too large for
    /// SQS is refused.
    pub bucket: Option<String>,
    /// Maximum size in bytes (body and attributes together) of a message that is sent with its body. If a message is
    /// larger, its body is stored in the bucket.
    pub threshold: usize,
    /// Set to make every call with the SDK's generated client. The direct client is then not used.
    pub generated_calls_only: bool,
    /// HTTP connector for all requests. `None`: the driver creates the SDK's usual connector.
    pub http: Option<SharedHttpConnector>,
}

impl std::fmt::Debug for Options {
    /// Formats the options without the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { region, endpoint_url, prefix, bucket, .. } = self;
        let mut options = f.debug_struct("Options");
        options.field("region", region).field("endpoint_url", endpoint_url).field("prefix", prefix);
        options.field("bucket", bucket).finish_non_exhaustive()
    }
}

/// Queues on SQS under one prefix, in one account and region.
#[derive(Debug, Clone)]
pub struct SqsBroker(Arc<Service>);

/// State that all parts of the driver share.
#[derive(Debug)]
struct Service {
    options: Options,
    names: Names,
    clients: Clients,
    resolver: Resolver,
    runtime: Handle,
    schedules: OwnStates,
    /// Ensures that only one warning is logged if SQS refuses to count dead letters.
    uncounted: Once,
}

impl SqsBroker {
    /// Creates a broker without making a call to AWS. Calls that may be made for a guest run on the runtime on which
    /// this function is awaited.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: neither `options` nor the AWS environment sets a region.
    pub fn connect(options: Options) -> BoxFuture<'static, Result<Self, QueueError>> {
        Box::pin(async move {
            let clients = Clients::new(&options).await?;
            let names = Names::new(&options.prefix);
            let resolver = Resolver::default();
            let (runtime, schedules, uncounted) = (Handle::current(), OwnStates::default(), Once::new());
            Ok(Self(Arc::new(Service { options, names, clients, resolver, runtime, schedules, uncounted })))
        })
    }

    /// Runs `work` on the runtime on which the broker was created, and returns its result.
    async fn on_runtime<T, F>(&self, work: impl FnOnce(Arc<Service>) -> F) -> Result<T, QueueError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let done = self.0.runtime.spawn(work(Arc::clone(&self.0))).await;
        done.map_err(|error| QueueError::Unavailable(format!("hostler is shutting down: {error}")))
    }

    /// Adds the configured endpoint URL, if any, to the message of [`QueueError::Unavailable`]. Returns other errors
    /// unchanged.
    fn located(&self, error: QueueError) -> QueueError {
        match (error, &self.0.options.endpoint_url) {
            (QueueError::Unavailable(text), Some(url)) => QueueError::Unavailable(format!(
                "{text} (queue.sqs.endpoint_url is {url}: does the service listen there?)"
            )),
            (error, _) => error,
        }
    }
}

#[async_trait]
impl Broker for SqsBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let spec = spec.clone();
        self.on_runtime(|service| async move {
            let queue = service.open(&spec).await?;
            Ok::<_, QueueError>(Arc::new(queue) as Arc<dyn Queue>)
        })
        .await?
        .map_err(|error| self.located(error))
    }

    /// The size is checked when the message is sent, because its body may go to S3.
    fn check(&self, _: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        message.validate(usize::MAX)
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let (channel, count) = (channel.clone(), batch.len());
        let sent = self.on_runtime(|service| async move { send::send(&service, &channel, batch).await }).await;
        let located = |error| match error {
            SendError::Queue(error) => self.located(error).into(),
            error @ SendError::Invalid(_) => error,
        };
        let sent = sent.unwrap_or_else(|error| vec![Err(error.into()); count]);
        sent.into_iter().map(|sent| sent.map_err(located)).collect()
    }

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        Ok(self)
    }

    fn origin(&self, channel: &Channel) -> Origin {
        match self.0.resolver.target(channel) {
            Some(Target::Queue(place)) => Origin { system: SQS, address: Some(place.address) },
            Some(Target::Topic(place)) => Origin { system: SNS, address: Some(place.address) },
            None => Origin { system: if channel.exchange().is_some() { SNS } else { SQS }, address: None },
        }
    }
}

#[async_trait]
impl Admin for SqsBroker {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        self.on_runtime(|service| async move { depth::channels(&service).await })
            .await?
            .map_err(|error| self.located(error))
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let channels = channels.to_vec();
        let depths = self.on_runtime(|service| async move { depth::depths(&service, &channels).await }).await?;
        Ok(depths.into_iter().map(|depth| depth.map_err(|error| self.located(error))).collect())
    }

    async fn exchanges_feeding(&self, channels: &[Channel]) -> Result<Option<Vec<String>>, QueueError> {
        inventory::feeding(&self.0, channels).await.map_err(|error| self.located(error))
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let channel = channel.clone();
        self.on_runtime(|service| async move {
            let queue = service.open_stored(&channel).await?;
            Ok::<_, QueueError>(Arc::new(queue) as Arc<dyn Queue>)
        })
        .await?
        .map_err(|error| self.located(error))
    }

    async fn redrive(
        &self,
        from: &Channel,
        to: &Channel,
        per_second: Option<u32>,
        stop: &CancellationToken,
        progress: &mut (dyn FnMut(Redriven) + Send),
    ) -> Result<Redriven, QueueError> {
        redrive::redrive(&self.0, from, to, per_second, stop, progress).await
    }

    fn on_its_clock(&self, time: SystemTime) -> SystemTime {
        self.0.clients.clock.show(time)
    }
}

#[async_trait]
impl Provisioner for SqsBroker {
    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        provision::plan(&self.0, wanted).await.map_err(|error| self.located(error))
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        provision::apply(&self.0, wanted, done).await.map_err(|error| self.located(error))
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        provision::inspect(&self.0, spec).await.map_err(|error| self.located(error))
    }

    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        provision::missing_destinations(&self.0, channels).await.map_err(|error| self.located(error))
    }

    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        provision::make_destination(&self.0, channel).await.map_err(|error| self.located(error))
    }
}

#[async_trait]
impl Inventory for SqsBroker {
    async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError> {
        inventory::queues(&self.0).await.map_err(|error| self.located(error))
    }
}

#[async_trait]
impl Disposal for SqsBroker {
    async fn topics(&self) -> Result<Listing<ManagedTopic>, QueueError> {
        inventory::topics(&self.0).await.map_err(|error| self.located(error))
    }

    async fn subscribed(&self) -> Result<BTreeSet<String>, QueueError> {
        inventory::subscribed(&self.0).await.map_err(|error| self.located(error))
    }

    async fn queue_use(&self, names: &[String], over: Duration) -> Result<Vec<Option<QueueUse>>, QueueError> {
        metrics::queue_use(&self.0, names, over).await.map_err(|error| self.located(error))
    }

    async fn published(&self, names: &[String], over: Duration) -> Result<Vec<Option<u64>>, QueueError> {
        metrics::published(&self.0, names, over).await.map_err(|error| self.located(error))
    }

    async fn stored_before(&self, time: SystemTime, most: usize) -> Result<Option<StoredBodies>, QueueError> {
        disposal::stored_before(&self.0, time, most).await.map_err(|error| self.located(error))
    }

    async fn remove_queue(&self, name: &str, gone: &BTreeSet<String>) -> Result<Removal, QueueError> {
        disposal::remove_queue(&self.0, name, gone).await.map_err(|error| self.located(error))
    }

    async fn remove_bodies(&self, bodies: &[Body]) -> Result<usize, QueueError> {
        disposal::remove_bodies(&self.0, bodies).await.map_err(|error| self.located(error))
    }
}

impl Service {
    /// Opens the queue of a consumer. If resources are missing, creates them or returns an error, depending on
    /// [`Options::create_missing`].
    async fn open(self: &Arc<Self>, spec: &ChannelSpec) -> Result<SqsQueue, QueueError> {
        let (queue, dead_letter) = (spec.channel.queue().to_owned(), spec.channel.dead_letter_queue());
        if self.options.create_missing {
            provision::create_missing(self, spec).await?;
        }
        let dead_letters = async {
            match spec.max_receives {
                Some(_) => self.existing_queue(&dead_letter, spec.ordered).await.map(Some),
                None => Ok(None),
            }
        };
        let (place, dead_letters) = tokio::join!(self.existing_queue(&queue, spec.ordered), dead_letters);
        let owns_bodies = spec.channel.exchange().is_none();
        Ok(SqsQueue::new(Arc::clone(self), &spec.channel, place?, dead_letters?, owns_bodies))
    }

    /// Opens an existing queue, standard or FIFO, without its dead-letter queue.
    async fn open_stored(self: &Arc<Self>, channel: &Channel) -> Result<SqsQueue, QueueError> {
        let found = self.find_queue_of_either_kind(channel.queue()).await?;
        let place = found.ok_or_else(|| self.no_queue(channel.queue(), false))?;
        Ok(SqsQueue::new(Arc::clone(self), channel, place, None, false))
    }

    async fn existing_queue(&self, name: &str, ordered: bool) -> Result<Place, QueueError> {
        self.find_queue(name, ordered).await?.ok_or_else(|| self.no_queue(name, ordered))
    }

    fn no_queue(&self, name: &str, ordered: bool) -> QueueError {
        let (name, region) = (self.names.on_aws(name, ordered), &self.clients.region);
        QueueError::Refused(format!(
            "there is no SQS queue `{name}` in {region}: run `hostler provision`, or set queue.sqs.provision = \"auto\""
        ))
    }
}
