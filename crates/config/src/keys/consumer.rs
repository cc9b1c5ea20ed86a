//! The keys of `[consumers.NAME]`.

use std::time::Duration;

use super::{DefaultValue, Key, MAX_IN_FLIGHT, SECOND, idempotency, jobs, key, lasting, nats};
use crate::choice::{FilterType, OnProcessingTimeout, OnTrap, Reply};
use crate::kind::Kind;
use hostler_types::message::MAX_DELAY;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    key(
        "consumers.*.channel",
        Kind::Channel,
        DefaultValue::RequiredUnless(&["subject", "job"]),
        "The channel to consume: a queue, or an exchange and the queue subscribed to it.",
    ),
    nats::SUBJECT,
    nats::QUEUE_GROUP,
    jobs::TYPE,
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
        "Messages, or batches, processed at a time.",
    ),
    key(
        "consumers.*.batch.max",
        Kind::Integer { min: 1, max: 1_000 },
        DefaultValue::Unset,
        "Most messages in one call of a batch handler, which answers for each of them; unset: one message at a time.",
    ),
    key(
        "consumers.*.batch.wait",
        lasting(Duration::ZERO, Duration::from_secs(60)),
        DefaultValue::Value("2s"),
        "Longest time that a message waits for others while its batch is not full.",
    ),
    key(
        "consumers.*.batch.bytes",
        Kind::Size { min: 1 << 10, max: 64 << 20 },
        DefaultValue::Value("1MiB"),
        "Most bytes of bodies and attributes in one batch; a larger message is alone.",
    ),
    key(
        "consumers.*.batch.on_trap",
        Kind::Choice(OnTrap::WORDS),
        DefaultValue::Value("singly"),
        "Messages without an answer when the handler traps or is stopped. `singly`: each runs again alone, under its lease and \
         without another attempt; `fail`: each has failed.",
    ),
    idempotency::KEY,
    idempotency::STORE,
    idempotency::TTL,
    idempotency::ON_UNKNOWN,
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
        "Private networks to which the names in `allow.http` and `allow.tcp` may resolve. Without it, they must resolve to public \
         addresses.",
    ),
    key(
        "consumers.*.allow.tcp",
        Kind::Servers,
        DefaultValue::Value("[]"),
        "TCP servers that the guest may connect to: host and port. A name's grant is a grant for the addresses that it \
         resolves to. With `tls`, the host encrypts the connection: `direct` from the first byte, `postgres` after PostgreSQL's \
         request for TLS. `ca`: file with the trusted authorities, in place of the system's.",
    ),
    key(
        "consumers.*.allow.env.*",
        Kind::Variable,
        DefaultValue::Unset,
        "A variable of the guest's environment and its value, which is never shown. A secret is looked up at the start, every \
         5 minutes and on SIGHUP; new sandboxes get its new value.",
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
        "consumers.*.limits.connections",
        Kind::Integer { min: 1, max: 256 },
        DefaultValue::Value("8"),
        "TCP sockets that one sandbox may have open at once, with `allow.tcp`.",
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
];
