//! The table of all keys, with their accepted values, defaults and meanings. The checks, the schema and the reference
//! are derived from this table.

mod lookup;
mod nats;
mod postgres;
mod rabbitmq;
mod retry;

use std::time::Duration;

use super::choice::{
    Driver, FilterType, HardeningMode, LogFormat, OnProcessingTimeout, Provision, Reply, TaskProtection,
};
use super::kind::Kind;
use hostler_types::message::MAX_DELAY;
pub(super) use lookup::{Node, child, joined, names};

/// A key. A `*` in its path matches any name that the user chooses.
pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    pub(super) preset: DefaultValue,
    /// Description in one or two sentences, in Markdown.
    pub(super) meaning: &'static str,
}

/// Default of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefaultValue {
    /// This value, as written in an environment variable.
    Value(&'static str),
    /// A value derived from other values. The text describes the derivation.
    Derived(&'static str),
    /// No value: the feature is disabled.
    Unset,
    /// No default: a missing value is an error.
    Required,
    /// No default: a missing value is an error, unless this other key of the table is set.
    RequiredUnless(&'static str),
}

/// Default path of the health file.
pub(super) const HEALTH_FILE_DEFAULT: &str = "/tmp/hostler/health.json";

/// Syntax of consumer names, which also occur in variables, logs and metrics.
pub(super) const CONSUMER_NAME: Kind = Kind::Word { also: "_-", min: 1, max: 71 };

const SECOND: Duration = Duration::from_secs(1);
/// Maximum time that SQS keeps a received message in flight (AWS limit: 12 h).
pub(super) const MAX_IN_FLIGHT: Duration = Duration::from_secs(12 * 3600);

const fn key(path: &'static str, kind: Kind, preset: DefaultValue, meaning: &'static str) -> Key {
    Key { path, kind, preset, meaning }
}

const fn lasting(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max }
}

/// All keys, in the order of the documentation.
pub(super) static KEYS: &[Key] = &[
    key(
        "host.health_file",
        Kind::Path,
        DefaultValue::Value(HEALTH_FILE_DEFAULT),
        "File to which the host writes its health, for `hostler check-consumer-health`.",
    ),
    key(
        "host.shutdown_grace",
        lasting(SECOND, Duration::from_secs(115)),
        DefaultValue::Value("25s"),
        "Longest duration of a drain. Keep it below the container's stop timeout: on ECS `stopTimeout`, 30 s by \
         default and 120 s at most.",
    ),
    key(
        "host.task_protection",
        Kind::Choice(TaskProtection::WORDS),
        DefaultValue::Value("auto"),
        "ECS scale-in protection while messages are in flight.",
    ),
    key(
        "host.hardening",
        Kind::Choice(HardeningMode::WORDS),
        DefaultValue::Value("auto"),
        "Gives up rights that the process does not need, by Landlock and seccomp: files that the config does not name, \
         programs, mounts, tracing. `auto`: as far as the kernel supports it; `require`: completely, or exit code 70.",
    ),
    key(
        "host.cache_dir",
        Kind::Path,
        DefaultValue::Unset,
        "Folder that keeps fetched and compiled handlers for the next start, 1 GiB at most. Must be owned by the user that \
         runs hostler and writable by no one else.",
    ),
    key(
        "queue.driver",
        Kind::Choice(Driver::WORDS),
        DefaultValue::Value("embedded"),
        "The queue service: SQLite in one file, Amazon SQS, RabbitMQ, NATS JetStream, or PostgreSQL.",
    ),
    key(
        "queue.embedded.path",
        Kind::Path,
        DefaultValue::Value("./hostler.db"),
        "The SQLite file; several processes may share it. A relative path counts from the folder of the \
         config file; from the working directory if a variable sets it, and with `/etc/hostler/hostler.toml`.",
    ),
    key(
        "queue.sqs.region",
        Kind::Word { also: "-", min: 1, max: 32 },
        DefaultValue::Unset,
        "AWS region; unset: the region of the AWS environment.",
    ),
    key(
        "queue.sqs.endpoint_url",
        Kind::Url { example: "http://localhost:4566" },
        DefaultValue::Unset,
        "Address of an SQS-compatible server such as LocalStack; unset in production.",
    ),
    key(
        "queue.sqs.prefix",
        Kind::Word { also: "_-", min: 0, max: 64 },
        DefaultValue::Value(""),
        "Prefix of every queue and topic name.",
    ),
    key(
        "queue.sqs.provision",
        Kind::Choice(Provision::WORDS),
        DefaultValue::Value("check"),
        "`check`: a missing queue is exit code 69 with the cure. `auto`: missing queues and topics are created.",
    ),
    key(
        "queue.sqs.kms_key",
        Kind::Word { also: "-_:/", min: 1, max: 256 },
        DefaultValue::Unset,
        "KMS key (id, alias or ARN) for the queues and topics that `provision` makes; unset: SQS's own encryption.",
    ),
    key(
        "queue.sqs.direct_calls",
        Kind::Bool,
        DefaultValue::Value("true"),
        "`true`: a small client of hostler's own makes receives, deletes and visibility changes, which takes a fraction of the CPU \
         time. `false`: the AWS SDK's generated client makes all calls.",
    ),
    rabbitmq::URL,
    rabbitmq::URL_FILE,
    rabbitmq::CA,
    rabbitmq::CLIENT_CERT,
    rabbitmq::PREFIX,
    rabbitmq::PROVISION,
    rabbitmq::MANAGEMENT_URL,
    rabbitmq::HEARTBEAT,
    nats::URL,
    nats::URL_FILE,
    nats::CREDENTIALS,
    nats::NKEY,
    nats::CA,
    nats::CLIENT_CERT,
    nats::PREFIX,
    nats::PROVISION,
    nats::REPLICAS,
    nats::REQUEST_TIMEOUT,
    nats::FALLBACK,
    postgres::URL,
    postgres::URL_FILE,
    postgres::PREFIX,
    postgres::PROVISION,
    postgres::CONNECTIONS,
    key(
        "payload.bucket",
        Kind::Word { also: ".-", min: 3, max: 63 },
        DefaultValue::Unset,
        "S3 bucket for messages above the threshold (the claim check); unset: such a message is refused.",
    ),
    key(
        "payload.threshold",
        Kind::Size { min: 0, max: 1 << 20 },
        DefaultValue::Value("256KiB"),
        "Body and attributes above this size go to the bucket. SQS itself takes 1 MiB.",
    ),
    key(
        "consumers.*.channel",
        Kind::Channel,
        DefaultValue::RequiredUnless("subject"),
        "The channel to consume: a queue, or an exchange and the queue subscribed to it.",
    ),
    nats::SUBJECT,
    nats::QUEUE_GROUP,
    key(
        "consumers.*.ordered",
        Kind::Bool,
        DefaultValue::Value("false"),
        "FIFO: messages of one group in order, one at a time.",
    ),
    key(
        "consumers.*.high_throughput",
        Kind::Bool,
        DefaultValue::Unset,
        "High throughput of a FIFO queue on SQS, as `hostler provision` sets it: `true`: deduplication scope and throughput limit \
         for each message group; `false`: for the whole queue. Unset: left unchanged.",
    ),
    key(
        "consumers.*.handler",
        Kind::Handler,
        DefaultValue::Required,
        "The WASM handler. A relative path counts from the current directory.",
    ),
    key(
        "consumers.*.hooks",
        Kind::Handler,
        DefaultValue::Unset,
        "A component with lifecycle hooks, if the handler exports none.",
    ),
    key(
        "consumers.*.sha256",
        Kind::Sha256,
        DefaultValue::Unset,
        "The SHA-256 of the handler's bytes; others are refused.",
    ),
    key(
        "consumers.*.hooks_sha256",
        Kind::Sha256,
        DefaultValue::Unset,
        "The SHA-256 of the bytes of the component under `hooks`; others are refused.",
    ),
    key(
        "consumers.*.concurrency",
        Kind::Integer { min: 1, max: 1024 },
        DefaultValue::Derived("`16`, or as many as the container's memory allows"),
        "Messages processed at a time.",
    ),
    key(
        "consumers.*.lease",
        lasting(SECOND, MAX_IN_FLIGHT),
        DefaultValue::Value("30s"),
        "Visibility timeout; a heartbeat renews it every third of it.",
    ),
    key(
        "consumers.*.processing_timeout",
        lasting(SECOND, MAX_IN_FLIGHT),
        DefaultValue::Value("60s"),
        "Longest run time of a handler; then it is stopped. On SQS 12 h less a lease at most.",
    ),
    key(
        "consumers.*.delay_tolerance",
        lasting(SECOND, Duration::from_secs(14 * 86400)),
        DefaultValue::Value("2m"),
        "A message older than this counts as late: a metric, and a signal for scaling.",
    ),
    key(
        "consumers.*.longest_delay",
        lasting(Duration::from_secs(0), MAX_DELAY),
        DefaultValue::Value("15m"),
        "Longest delay of messages that are sent to the consumer. Beyond `15m`, SQS cannot delay a message: the consumer \
         receives and hides it until it is due, and `provision` sets the queue up for that.",
    ),
    key(
        "consumers.*.on_processing_timeout",
        Kind::Choice(OnProcessingTimeout::WORDS),
        DefaultValue::Derived("`dead-letter`; `exit` with `dead_letter = false`"),
        "Outcome of a message whose handler was stopped. `exit`: drain, then exit code 71.",
    ),
    key(
        "consumers.*.healthcheck_timeout",
        lasting(SECOND, Duration::from_secs(24 * 3600)),
        DefaultValue::Derived("`processing_timeout` + 30 s"),
        "Unhealthy after this long in one state, or without a poll. Longer than `processing_timeout`.",
    ),
    key(
        "consumers.*.rate_limit",
        Kind::Rate,
        DefaultValue::Unset,
        "Highest number of messages to start per period, in this process.",
    ),
    key(
        "consumers.*.messages_per_instance",
        Kind::Integer { min: 1, max: 1_000_000 },
        DefaultValue::Value("1"),
        "Messages that one sandbox handles before it is replaced; 1: a fresh one each.",
    ),
    key(
        "consumers.*.reply",
        Kind::Choice(Reply::WORDS),
        DefaultValue::Value("off"),
        "`stdout`: the standard output of a WASI command is its reply.",
    ),
    key(
        "consumers.*.reply_channel",
        Kind::Channel,
        DefaultValue::Unset,
        "Channel for replies, correlated by message id; unset: a reply counts as ack.",
    ),
    key(
        "consumers.*.dead_letter",
        Kind::Bool,
        DefaultValue::Value("true"),
        "`false`: no dead-letter queue; a message that would go there stays in the queue.",
    ),
    key(
        "consumers.*.retry.requeues",
        Kind::Integer { min: 0, max: 100 },
        DefaultValue::Value("1"),
        "Failed attempts that are released after `requeue_delay`.",
    ),
    key(
        "consumers.*.retry.requeue_delay",
        lasting(Duration::ZERO, MAX_IN_FLIGHT),
        DefaultValue::Value("5s"),
        "Wait after each requeue.",
    ),
    key(
        "consumers.*.retry.delays",
        Kind::Integer { min: 0, max: 100 },
        DefaultValue::Value("1"),
        "Failed attempts, after the requeues, that are released after a growing delay. The next failure dead-letters.",
    ),
    key(
        "consumers.*.retry.delay",
        lasting(Duration::ZERO, MAX_IN_FLIGHT),
        DefaultValue::Value("1m"),
        "The first growing delay: doubled each time, with full jitter.",
    ),
    key(
        "consumers.*.retry.max_delay",
        lasting(Duration::ZERO, MAX_IN_FLIGHT),
        DefaultValue::Value("15m"),
        "The longest growing delay. SQS hides a message for 12 h at most.",
    ),
    key(
        "consumers.*.breaker.failures",
        Kind::Share,
        DefaultValue::Unset,
        "Receiving pauses when more than this share of the messages failed, trapped or timed out; unset: never.",
    ),
    key(
        "consumers.*.breaker.over",
        lasting(SECOND, Duration::from_secs(3600)),
        DefaultValue::Value("1m"),
        "Time window of that share.",
    ),
    key(
        "consumers.*.breaker.min",
        Kind::Integer { min: 1, max: 1_000_000 },
        DefaultValue::Value("20"),
        "Lowest number of messages in that time that can pause receiving.",
    ),
    key(
        "consumers.*.breaker.pause",
        lasting(SECOND, Duration::from_secs(600)),
        DefaultValue::Value("30s"),
        "Pause before one message is tried; doubled each time that it fails, up to 10 m.",
    ),
    key(
        "consumers.*.filter.type",
        Kind::Choice(FilterType::WORDS),
        DefaultValue::Unset,
        "Comparison of `values` with the routing key, on a channel with an exchange; unset: every message passes.",
    ),
    key(
        "consumers.*.filter.values",
        Kind::Texts,
        DefaultValue::Value("[]"),
        "Routing keys, or their beginnings with `prefix`.",
    ),
    key(
        "consumers.*.allow.http",
        Kind::Origins,
        DefaultValue::Value("[]"),
        "Origins that the guest may send HTTP requests to: scheme, host and port.",
    ),
    key(
        "consumers.*.allow.networks",
        Kind::Networks,
        DefaultValue::Value("[]"),
        "Private networks to which the names in `allow.http` may resolve. Without it, they must resolve to public addresses.",
    ),
    key(
        "consumers.*.allow.env.*",
        Kind::Secret,
        DefaultValue::Unset,
        "A variable of the guest's environment and its value, which is never shown.",
    ),
    key(
        "consumers.*.allow.dirs",
        Kind::Dirs,
        DefaultValue::Value("[]"),
        "Folders that the guest may use. `host` counts from the current directory; `guest` is absolute; `mode` is `ro` \
         unless set.",
    ),
    key("consumers.*.allow.send", Kind::Channels, DefaultValue::Value("[]"), "Channels that the guest may send to."),
    nats::SUBJECTS,
    key(
        "consumers.*.limits.memory",
        Kind::Size { min: 1 << 20, max: 4 << 30 },
        DefaultValue::Derived("`128MiB`, or less if the container's memory is small"),
        "Linear memory of one sandbox.",
    ),
    key(
        "consumers.*.limits.output",
        Kind::Size { min: 0, max: 16 << 20 },
        DefaultValue::Value("64KiB"),
        "Stdout and stderr kept per message.",
    ),
    key(
        "consumers.*.tags.owner",
        Kind::Word { also: " _.:/=+-@", min: 1, max: 256 },
        DefaultValue::Unset,
        "Owner of the queues; a tag on them.",
    ),
    key(
        "consumers.*.tags.critical",
        Kind::Bool,
        DefaultValue::Value("false"),
        "`true`: alarms on the queues are flagged critical.",
    ),
    key(
        "consumers.*.tags.alarm_threshold",
        Kind::Integer { min: 1, max: 1_000_000_000 },
        DefaultValue::Unset,
        "Number of messages in the queue that raises an alarm; unset: `alarms.threshold`.",
    ),
    key(
        "consumers.*.tags.dead_letter_alarm_threshold",
        Kind::Integer { min: 1, max: 1_000_000_000 },
        DefaultValue::Derived("`1`"),
        "Number of messages in the dead-letter queue that raises an alarm.",
    ),
    retry::NATS,
    retry::STORE,
    retry::MAX_STORE,
    retry::ADOPT_AFTER,
    retry::SUBJECT,
    retry::TARGETS,
    retry::QUEUE_GROUP,
    retry::ACK_TIMEOUT,
    retry::LONGEST_WAIT,
    retry::IN_FLIGHT,
    retry::IN_FLIGHT_PER_SUBJECT,
    retry::RETRIES,
    retry::TTL,
    retry::DELAY,
    retry::BACKOFF,
    retry::BASE,
    retry::MAX,
    retry::EXPIRED,
    retry::PRIORITY,
    retry::PRIORITIES,
    key(
        "alarms.threshold",
        Kind::Integer { min: 1, max: 1_000_000_000 },
        DefaultValue::Value("1000"),
        "Number of messages that raises an alarm on a queue whose tags set none.",
    ),
    key(
        "alarms.webhook",
        Kind::SecretUrl,
        DefaultValue::Unset,
        "Address to which `hostler alarms` and `hostler clean` send with `--webhook`. It is a secret and never shown; set it \
         by the variable `HOSTLER_ALARMS__WEBHOOK`.",
    ),
    key(
        "telemetry.log",
        Kind::Choice(LogFormat::WORDS),
        DefaultValue::Derived("`text` on a terminal, else `json`"),
        "Form of the log lines; their level is `RUST_LOG`'s.",
    ),
    key(
        "telemetry.otlp_endpoint",
        Kind::Url { example: "http://localhost:4318" },
        DefaultValue::Unset,
        "Endpoint for OTLP traces and metrics; the standard `OTEL_` variables apply.",
    ),
    key(
        "telemetry.emf",
        Kind::Bool,
        DefaultValue::Value("false"),
        "Metrics on stdout in CloudWatch's embedded metric format.",
    ),
    key("telemetry.prometheus", Kind::Address, DefaultValue::Unset, "Address at which Prometheus fetches metrics."),
    key(
        "dev.build",
        Kind::Command,
        DefaultValue::Unset,
        "Command that builds the handlers, run with `sh` in the current directory. Only `hostler dev` runs it. Unset: no build.",
    ),
    key(
        "dev.watch",
        Kind::Paths,
        DefaultValue::Value("[]"),
        "Files and folders that `hostler dev` watches for changes, relative to the current directory. In a folder, hidden \
         files, build folders, editors' temporary files, and `.md`, `.wasm`, `.db` and `.log` files do not count.",
    ),
];

#[cfg(test)]
mod tests {
    use super::lookup::below;
    use super::*;

    #[test]
    fn every_default_is_accepted() {
        for key in KEYS {
            if let DefaultValue::Value(text) = key.preset {
                assert_eq!(key.kind.check(&key.kind.value(text)), Ok(()), "{}", key.path);
            }
        }
    }

    #[test]
    fn paths_are_unique_and_no_key_is_a_table() {
        for (index, key) in KEYS.iter().enumerate() {
            for other in KEYS.iter().skip(index + 1) {
                assert!(key.path != other.path && below(other.path, key.path).is_none(), "{}", other.path);
            }
        }
    }
}
