//! The keys of `[queue]`, those of its drivers, and `[payload]`.

use super::{DefaultValue, Key, key, nats, postgres, rabbitmq};
use crate::choice::{Driver, Provision};
use crate::kind::Kind;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
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
];
