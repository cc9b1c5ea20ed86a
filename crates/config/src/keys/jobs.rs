//! The keys of `[jobs]`, and the one of consumers that the job service has.

use std::time::Duration;

use super::{DefaultValue, Key, SECOND, key, lasting};
use crate::choice::Fanout;
use crate::kind::Kind;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    key(
        "jobs.database",
        Kind::PostgresUrl,
        DefaultValue::Unset,
        "Address of the PostgreSQL database of `hostler jobs`, with the user and the password. It is a secret and never shown; set \
         it by a variable, or use `database_file`.",
    ),
    key(
        "jobs.database_file",
        Kind::Path,
        DefaultValue::Unset,
        "File with the address, for example a secret of the container platform. Read at the start; unused if `database` is set. \
         With several lines, each names a database, and trees are spread over them; the list is always to be the same.",
    ),
    key(
        "jobs.listen",
        Kind::Address,
        DefaultValue::Value("127.0.0.1:8081"),
        "Address at which `hostler jobs serve` answers. Without `jobs.tokens`, it must be a loopback address.",
    ),
    key(
        "jobs.heartbeat",
        lasting(SECOND, Duration::from_secs(600)),
        DefaultValue::Value("60s"),
        "Interval at which a worker renews its assignments. After three that are missed, the item has failed.",
    ),
    key(
        "jobs.retention",
        lasting(SECOND, Duration::from_secs(3650 * 86_400)),
        DefaultValue::Value("7d"),
        "Time for which a complete tree of jobs is kept. Its results must be fetched before.",
    ),
    key(
        "jobs.fanout",
        Kind::Choice(Fanout::WORDS),
        DefaultValue::Value("poll"),
        "How idle workers learn of items that another instance has made available. `poll`: each instance looks into the database \
         four times a second while a worker waits. `notify`: the instances also notify each other, by PostgreSQL. `rabbitmq`: as \
         `notify`, and ids are published to `jobs.rabbitmq`, for workers that take them there.",
    ),
    key(
        "jobs.rabbitmq",
        Kind::AmqpUrl,
        DefaultValue::Unset,
        "Address of the RabbitMQ of `jobs.fanout = \"rabbitmq\"`, with the user, the password and the virtual host; several hosts \
         are separated by commas. Each type has a queue `hostler.jobs.TYPE` with the ids of items. It is a secret and never shown; \
         set it by a variable.",
    ),
    key(
        "jobs.tokens.producer",
        Kind::Token,
        DefaultValue::Unset,
        "Bearer token of those who create jobs and read their results. It is a secret and never shown.",
    ),
    key(
        "jobs.tokens.worker",
        Kind::Token,
        DefaultValue::Unset,
        "Bearer token of those who process items. It is a secret and never shown.",
    ),
    key(
        "jobs.tokens.operator",
        Kind::Token,
        DefaultValue::Unset,
        "Bearer token for all calls. It is a secret and never shown.",
    ),
    key(
        "jobs.callback_secret",
        Kind::Token,
        DefaultValue::Derived("a random one, which the database keeps"),
        "Secret that signs the callbacks of complete trees. It is never shown.",
    ),
    key(
        "jobs.rate_limit",
        Kind::Rate,
        DefaultValue::Unset,
        "Highest number of requests of one token per period, in this process. More are answered with 429.",
    ),
    key(
        "jobs.applets.*.handler",
        Kind::Handler,
        DefaultValue::Required,
        "The WASM handler of an applet, which makes the items of jobs with `\"feed\": {\"applet\": \"NAME\"}` out of results. It is \
         granted nothing. A relative path counts from the current directory.",
    ),
    key(
        "jobs.applets.*.sha256",
        Kind::Sha256,
        DefaultValue::Unset,
        "The SHA-256 of the handler's bytes; others are refused.",
    ),
    key(
        "jobs.applets.*.concurrency",
        Kind::Integer { min: 1, max: 64 },
        DefaultValue::Value("4"),
        "Results that the applet processes at a time, in this process.",
    ),
    key(
        "jobs.applets.*.processing_timeout",
        lasting(SECOND, Duration::from_secs(8)),
        DefaultValue::Value("5s"),
        "Longest run time for one result; then the applet is stopped, and the attempt has failed.",
    ),
    key(
        "jobs.applets.*.limits.memory",
        Kind::Size { min: 1 << 20, max: 4 << 30 },
        DefaultValue::Derived("`128MiB`, or less if the container's memory is small"),
        "Linear memory of one sandbox.",
    ),
    key(
        "jobs.applets.*.limits.output",
        Kind::Size { min: 0, max: 16 << 20 },
        DefaultValue::Value("1MiB"),
        "Stdout and stderr kept per result. The standard output of a command is its reply.",
    ),
    key(
        "jobs.url",
        Kind::Url { example: "http://jobs.example.com:8081" },
        DefaultValue::Derived("`jobs.listen`, by `http://`"),
        "Address of the job service, for commands and for consumers with `job`.",
    ),
    key(
        "jobs.token",
        Kind::Token,
        DefaultValue::Unset,
        "Bearer token that commands and consumers show to the job service. It is a secret and never shown.",
    ),
];

/// The type of a consumer's jobs.
pub(super) const TYPE: Key = key(
    "consumers.*.job",
    Kind::Word { also: "._-", min: 1, max: 100 },
    DefaultValue::Unset,
    "Type of jobs whose items the handler processes, in place of `channel`. They come from the job service at `jobs.url`, which also \
     decides about retries.",
);
