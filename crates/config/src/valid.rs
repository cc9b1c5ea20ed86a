//! The validated configuration. Every value has its final type, and no two values contradict each other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Driver, HardeningMode, LogFormat, Provision, TaskProtection};
use super::consumer::Consumer;
use super::grants::{AmqpUrl, NatsUrl, PostgresUrl, SecretUrl, Url};
use super::jobs::JobService;
use super::postgres::root_certificate;
use super::read::Bytes;
use super::retry::RetryService;
use super::schedules::Schedule;
use super::settings::{Mismatch, Settings};
use hostler_types::channel::Channel;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Settings of the process.
    pub host: Host,
    /// Settings of the queue service.
    pub queue: QueueConfig,
    /// Claim check for large messages.
    pub payload: Payload,
    /// Consumers, sorted by name. At least one, unless there is a retry or a job service. Every consumer has its own queue.
    pub consumers: Vec<Consumer>,
    /// Schedules, sorted by name.
    pub schedules: Vec<Schedule>,
    /// Settings of `hostler retry`. `None`: there is no retry service.
    pub retry: Option<RetryService>,
    /// Settings of `hostler jobs`, and of the consumers with `job`.
    pub jobs: JobService,
    /// Settings of `hostler alarms` and `hostler clean`.
    pub alarms: Alarms,
    /// Logs, metrics and traces.
    pub telemetry: Telemetry,
    /// Settings of `hostler dev`.
    pub dev: Dev,
}

/// `[host]`: settings of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Path of the health file.
    pub health_file: PathBuf,
    /// Maximum duration of a drain: 1 s to 115 s, because ECS kills a container after at most 120 s.
    pub shutdown_grace: Duration,
    /// ECS scale-in protection.
    pub task_protection: TaskProtection,
    /// Hardening: limits on the files and system calls that the process may use.
    pub hardening: HardeningMode,
    /// Folder for fetched and compiled handlers, which remain across restarts. `None`: handlers are not stored.
    pub cache_dir: Option<PathBuf>,
}

/// `[queue]`: the driver in use, and the settings of each driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// Driver in use.
    pub driver: Driver,
    /// Settings of the embedded driver.
    pub embedded: Embedded,
    /// Settings of the SQS driver.
    pub sqs: Sqs,
    /// Settings of the RabbitMQ driver.
    pub rabbitmq: RabbitMq,
    /// Settings of the NATS driver.
    pub nats: Nats,
    /// Settings of the PostgreSQL driver.
    pub postgres: Postgres,
}

impl QueueConfig {
    /// Returns the prefix of every queue name on the driver's service. Empty if there is none.
    pub fn prefix(&self) -> &str {
        match self.driver {
            Driver::Embedded => "",
            Driver::Sqs => &self.sqs.prefix,
            Driver::RabbitMq => &self.rabbitmq.prefix,
            Driver::Nats => &self.nats.prefix,
            Driver::Postgres => &self.postgres.prefix,
        }
    }
}

/// `[queue.embedded]`: SQLite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embedded {
    /// Path of the database file. [`load`](crate::load) has already resolved a relative path.
    pub path: PathBuf,
}

/// `[queue.sqs]`: Amazon SQS and SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqs {
    /// AWS region. `None`: the region of the AWS environment.
    pub region: Option<String>,
    /// Endpoint URL of a stand-in for SQS. `None`: Amazon's own endpoint.
    pub endpoint_url: Option<String>,
    /// Prefix of every queue and topic name. May be empty. Prefix and queue name together must have at most 71
    /// characters. With the suffix `-dlq.fifo`, the name then has at most 80 characters (SQS limit).
    pub prefix: String,
    /// Treatment of queues that are missing when the host starts.
    pub provision: Provision,
    /// KMS key of the queues and topics: id, alias or ARN. `None`: SQS's own encryption.
    pub kms_key: Option<String>,
    /// Uses hostler's own client for receive calls, deletions and visibility changes, because it needs less CPU time.
    /// Otherwise, the AWS SDK's generated client makes these calls.
    pub direct_calls: bool,
}

/// `[queue.rabbitmq]`: RabbitMQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitMq {
    /// Address of the server. `None`: the file contains the address.
    pub url: Option<AmqpUrl>,
    /// File with the address of the server.
    pub url_file: Option<PathBuf>,
    /// PEM file with certificates of authorities.
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate and its private key.
    pub client_cert: Option<PathBuf>,
    /// Prefix of every queue and exchange name. May be empty.
    pub prefix: String,
    /// Treatment of queues that are missing when the host starts.
    pub provision: Provision,
    /// Address of the management API. `None`: the API is not used.
    pub management_url: Option<String>,
    /// Interval of heartbeats.
    pub heartbeat: Duration,
}

/// `[queue.nats]`: NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nats {
    /// Address of the server. `None`: the file contains the address.
    pub url: Option<NatsUrl>,
    /// File with the address of the server.
    pub url_file: Option<PathBuf>,
    /// File with the user's JWT and the seed of its key.
    pub credentials: Option<PathBuf>,
    /// File with the seed of the user's NKey.
    pub nkey: Option<PathBuf>,
    /// PEM file with certificates of authorities. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate and its private key.
    pub client_cert: Option<PathBuf>,
    /// Prefix of every stream name. May be empty.
    pub prefix: String,
    /// Treatment of streams that are missing when the host starts.
    pub provision: Provision,
    /// Number of copies of each new stream: 1 to 5.
    pub replicas: u32,
    /// Longest wait for the acknowledgement of a guest's message to a subject.
    pub request_timeout: Duration,
    /// Subject of the retry service that takes such messages. `None`: there is none.
    pub fallback: Option<String>,
}

/// `[queue.postgres]`: PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// Address of the database. `None`: the file contains the address.
    pub url: Option<PostgresUrl>,
    /// File with the address of the database.
    pub url_file: Option<PathBuf>,
    /// PEM file with certificates of authorities, as `sslrootcert` of `url` names it. Read at the start.
    pub root_certificate: Option<PathBuf>,
    /// Prefix of every queue and exchange name. May be empty.
    pub prefix: String,
    /// Treatment of tables and queues that are missing when the host starts.
    pub provision: Provision,
    /// Maximum number of connections of this process: 1 to 16, without the one that listens.
    pub connections: usize,
}

/// `[payload]`: the claim check for large messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// S3 bucket for large bodies. `None`: no claim check.
    pub bucket: Option<String>,
    /// Maximum size in bytes of a message that is sent without the bucket: at most 1 MiB (SQS limit). Counts the body
    /// and the attributes. If a message is larger, its body is stored in the bucket.
    pub threshold: u64,
}

/// `[alarms]`: the threshold of alarms, and the destination of notices about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarms {
    /// Minimum number of messages in a queue for an alarm: at least 1. Applies to queues without a threshold in their
    /// tags.
    pub threshold: u64,
    /// Webhook that receives the notices of `hostler alarms` and `hostler clean`. `None`: no notices are sent.
    pub webhook: Option<SecretUrl>,
}

/// `[telemetry]`: logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Format of the log lines. `None`: the format is [`LogFormat::usual`].
    pub log: Option<LogFormat>,
    /// Destination of OTLP traces and metrics. `None`: none are sent.
    pub otlp_endpoint: Option<String>,
    /// Writes metrics to stdout in CloudWatch's embedded metric format.
    pub emf: bool,
    /// IP address and port of the endpoint for Prometheus. `None`: there is no endpoint.
    pub prometheus: Option<SocketAddr>,
}

/// `[dev]`: settings of `hostler dev`. All other commands ignore them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dev {
    /// Shell command that builds the handlers. `None`: handlers are run without a build.
    pub build: Option<String>,
    /// Files and folders to watch. A change in one of them starts a build.
    pub watch: Vec<PathBuf>,
}

impl Postgres {
    fn read(settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.root();
        let url: Option<PostgresUrl> = at.maybe("queue.postgres.url")?;
        let root_certificate = url.as_ref().and_then(|url| root_certificate(url.expose())).map(PathBuf::from);
        Ok(Self {
            url,
            url_file: at.maybe("queue.postgres.url_file")?,
            root_certificate,
            prefix: at.need("queue.postgres.prefix")?,
            provision: at.need("queue.postgres.provision")?,
            connections: at.need("queue.postgres.connections")?,
        })
    }
}

impl Config {
    /// Returns the consumers that receive from a channel. The others answer requests on a subject, or process the items of jobs.
    pub fn with_channels(&self) -> impl Iterator<Item = &Consumer> + Clone {
        self.consumers.iter().filter(|consumer| consumer.has_channel())
    }

    /// Returns the channels that messages are sent to: by the consumers that receive from a channel, and by schedules.
    pub fn destinations(&self) -> impl Iterator<Item = &Channel> + Clone {
        let consumers = self.with_channels();
        let of_consumers = consumers.flat_map(|consumer| consumer.reply_channel.iter().chain(&consumer.allow.send));
        of_consumers.chain(self.schedules.iter().map(|schedule| &schedule.channel))
    }

    /// Converts the checked settings to the configuration. Returns an error if the table of keys does not match this
    /// code.
    pub(super) fn read(settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.root();
        let url = |key| at.maybe(key).map(|url: Option<Url>| url.map(|url| url.0));
        Ok(Self {
            host: Host {
                health_file: at.need("host.health_file")?,
                shutdown_grace: at.need("host.shutdown_grace")?,
                task_protection: at.need("host.task_protection")?,
                hardening: at.need("host.hardening")?,
                cache_dir: at.maybe("host.cache_dir")?,
            },
            queue: QueueConfig {
                driver: at.need("queue.driver")?,
                embedded: Embedded { path: at.need("queue.embedded.path")? },
                sqs: Sqs {
                    region: at.maybe("queue.sqs.region")?,
                    endpoint_url: url("queue.sqs.endpoint_url")?,
                    prefix: at.need("queue.sqs.prefix")?,
                    provision: at.need("queue.sqs.provision")?,
                    kms_key: at.maybe("queue.sqs.kms_key")?,
                    direct_calls: at.need("queue.sqs.direct_calls")?,
                },
                rabbitmq: RabbitMq {
                    url: at.maybe("queue.rabbitmq.url")?,
                    url_file: at.maybe("queue.rabbitmq.url_file")?,
                    ca: at.maybe("queue.rabbitmq.ca")?,
                    client_cert: at.maybe("queue.rabbitmq.client_cert")?,
                    prefix: at.need("queue.rabbitmq.prefix")?,
                    provision: at.need("queue.rabbitmq.provision")?,
                    management_url: url("queue.rabbitmq.management_url")?,
                    heartbeat: at.need("queue.rabbitmq.heartbeat")?,
                },
                nats: Nats {
                    url: at.maybe("queue.nats.url")?,
                    url_file: at.maybe("queue.nats.url_file")?,
                    credentials: at.maybe("queue.nats.credentials")?,
                    nkey: at.maybe("queue.nats.nkey")?,
                    ca: at.maybe("queue.nats.ca")?,
                    client_cert: at.maybe("queue.nats.client_cert")?,
                    prefix: at.need("queue.nats.prefix")?,
                    provision: at.need("queue.nats.provision")?,
                    replicas: at.need("queue.nats.replicas")?,
                    request_timeout: at.need("queue.nats.request_timeout")?,
                    fallback: at.maybe("queue.nats.fallback")?,
                },
                postgres: Postgres::read(settings)?,
            },
            payload: Payload {
                bucket: at.maybe("payload.bucket")?,
                threshold: at.need::<Bytes>("payload.threshold")?.0,
            },
            consumers: settings
                .consumers
                .keys()
                .map(|name| Consumer::read(name, settings))
                .collect::<Result<_, _>>()?,
            schedules: Schedule::all(settings)?,
            retry: RetryService::read(settings)?,
            jobs: JobService::read(settings)?,
            alarms: Alarms { threshold: at.need("alarms.threshold")?, webhook: at.maybe("alarms.webhook")? },
            telemetry: Telemetry {
                log: at.maybe("telemetry.log")?,
                otlp_endpoint: url("telemetry.otlp_endpoint")?,
                emf: at.need("telemetry.emf")?,
                prometheus: at.maybe("telemetry.prometheus")?,
            },
            dev: Dev { build: at.maybe("dev.build")?, watch: at.need("dev.watch")? },
        })
    }
}
