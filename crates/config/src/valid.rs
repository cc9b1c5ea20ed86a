//! The validated configuration: typed, read once, and consistent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Driver, HardeningMode, LogFormat, Provision, TaskProtection};
use super::consumer::Consumer;
use super::grants::{SecretUrl, Url};
use super::read::Bytes;
use super::settings::{Mismatch, Settings};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process.
    pub host: Host,
    /// The source of the messages.
    pub queue: QueueConfig,
    /// The claim check for large messages.
    pub payload: Payload,
    /// The consumers by name, sorted; at least one, each on a queue of its own.
    pub consumers: Vec<Consumer>,
    /// The settings of `hostler alarms` and `hostler clean`.
    pub alarms: Alarms,
    /// Logs, metrics and traces.
    pub telemetry: Telemetry,
}

/// `[host]`: the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The path of the health file.
    pub health_file: PathBuf,
    /// The longest that a drain may take: 1 s to 115 s, because ECS kills a container after 120 s at most.
    pub shutdown_grace: Duration,
    /// ECS scale-in protection.
    pub task_protection: TaskProtection,
    /// Limits on files and system calls of the process.
    pub hardening: HardeningMode,
    /// The folder in which fetched and compiled handlers are kept from one start to the next; `None`: they are not kept.
    pub cache_dir: Option<PathBuf>,
}

/// `[queue]`: the driver, and the settings of each driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueConfig {
    /// The driver in use.
    pub driver: Driver,
    /// Settings of the embedded driver.
    pub embedded: Embedded,
    /// Settings of the SQS driver.
    pub sqs: Sqs,
}

/// `[queue.embedded]`: SQLite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embedded {
    /// The database file, with a relative path resolved as the table of keys describes.
    pub path: PathBuf,
}

/// `[queue.sqs]`: Amazon SQS and SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqs {
    /// AWS region; `None`: as the AWS environment says.
    pub region: Option<String>,
    /// Address of an SQS look-alike; `None`: Amazon's own.
    pub endpoint_url: Option<String>,
    /// A prefix of every queue and topic name; may be empty. With any queue's name it has at most 71 characters, so that
    /// `-dlq.fifo` still fits into SQS's 80.
    pub prefix: String,
    /// The treatment of queues that are missing at the start.
    pub provision: Provision,
    /// KMS key of the queues and topics: id, alias or ARN; `None`: SQS's own encryption.
    pub kms_key: Option<String>,
    /// Makes receives, deletes and visibility changes without the SDK's generated client.
    pub direct_calls: bool,
}

/// `[payload]`: the claim check for large messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// S3 bucket of the bodies; `None`: no claim check.
    pub bucket: Option<String>,
    /// Bytes of body and attributes above which a message goes to the bucket: at most 1 MiB, SQS's own limit.
    pub threshold: u64,
}

/// `[alarms]`: the threshold of an alarm, and the destination of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarms {
    /// The number of messages that raises an alarm for a queue whose tags set no threshold: at least 1.
    pub threshold: u64,
    /// The destination of reports; `None`: none are sent.
    pub webhook: Option<SecretUrl>,
}

/// `[telemetry]`: logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Format of the log lines.
    pub log: LogFormat,
    /// The destination of OTLP traces and metrics; `None`: none are sent.
    pub otlp_endpoint: Option<String>,
    /// Writes metrics to stdout in CloudWatch's embedded metric format.
    pub emf: bool,
    /// The address on which Prometheus may fetch metrics; `None`: there is none.
    pub prometheus: Option<SocketAddr>,
}

impl Config {
    /// Reads checked settings. An error means that the table of keys and this code disagree.
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
            alarms: Alarms { threshold: at.need("alarms.threshold")?, webhook: at.maybe("alarms.webhook")? },
            telemetry: Telemetry {
                log: at.need("telemetry.log")?,
                otlp_endpoint: url("telemetry.otlp_endpoint")?,
                emf: at.need("telemetry.emf")?,
                prometheus: at.maybe("telemetry.prometheus")?,
            },
        })
    }
}
