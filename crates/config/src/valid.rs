//! The configuration as valid: typed, read once, and right in itself.

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
    /// Where the messages come from.
    pub queue: QueueConfig,
    /// The claim check for large messages.
    pub payload: Payload,
    /// The consumers by name, sorted; at least one, each on a queue of its own.
    pub consumers: Vec<Consumer>,
    /// What `hostler alarms` and `hostler clean` need beside the queues.
    pub alarms: Alarms,
    /// Logs, metrics and traces.
    pub telemetry: Telemetry,
}

/// `[host]`: the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where the health file is written.
    pub health_file: PathBuf,
    /// How long a drain may take: 1 s to 115 s, since ECS kills a container after 120 s at most.
    pub shutdown_grace: Duration,
    /// ECS scale-in protection.
    pub task_protection: TaskProtection,
    /// Limits on files and system calls of the process.
    pub hardening: HardeningMode,
    /// Where compiled handlers are kept from one start to the next; `None`: nowhere.
    pub cache_dir: Option<PathBuf>,
}

/// `[queue]`: the driver, and what each driver needs.
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
    /// The database file, found as the table of keys says.
    pub path: PathBuf,
}

/// `[queue.sqs]`: Amazon SQS and SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqs {
    /// AWS region; `None`: as the AWS environment says.
    pub region: Option<String>,
    /// Address of an SQS look-alike; `None`: Amazon's own.
    pub endpoint_url: Option<String>,
    /// Stands before every queue and topic name; may be empty. With any queue's name at most 71 characters, so that
    /// `-dlq.fifo` still fits SQS's 80.
    pub prefix: String,
    /// What happens to missing queues at the start.
    pub provision: Provision,
    /// KMS key of the queues and topics: id, alias or ARN; `None`: SQS's own encryption.
    pub kms_key: Option<String>,
    /// Receives, deletes and visibility changes go without the SDK's generated client.
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

/// `[alarms]`: when there is an alarm, and who is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarms {
    /// Messages from which on a queue whose tags say nothing has an alarm: at least 1.
    pub threshold: u64,
    /// Where reports are sent; `None`: nowhere.
    pub webhook: Option<SecretUrl>,
}

/// `[telemetry]`: logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Form of the log lines.
    pub log: LogFormat,
    /// Where OTLP traces and metrics go; `None`: nowhere.
    pub otlp_endpoint: Option<String>,
    /// Whether metrics go to stdout in CloudWatch's embedded metric format.
    pub emf: bool,
    /// Where Prometheus may fetch metrics; `None`: nowhere.
    pub prometheus: Option<SocketAddr>,
}

impl Config {
    /// Reads settings that are checked. An error is a contradiction between the table of keys and this code.
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
