//! The keys of `[retry]`.

use std::time::Duration;

use super::{DefaultValue, Key, key, lasting};
use crate::choice::{Expired, RetryBackoff};
use crate::kind::Kind;
use hostler_types::message::MAX_DELAY;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    NATS,
    STORE,
    MAX_STORE,
    ADOPT_AFTER,
    SUBJECT,
    TARGETS,
    QUEUE_GROUP,
    ACK_TIMEOUT,
    LONGEST_WAIT,
    IN_FLIGHT,
    IN_FLIGHT_PER_SUBJECT,
    RETRIES,
    TTL,
    DELAY,
    BACKOFF,
    BASE,
    MAX,
    EXPIRED,
    PRIORITY,
    PRIORITIES,
];

const WAIT: Kind = lasting(Duration::from_millis(10), MAX_DELAY);

const NATS: Key = key(
    "retry.nats",
    Kind::NatsUrl,
    DefaultValue::Unset,
    "Address of the NATS server for `hostler retry`, written as `queue.nats.url`. It is a secret and never shown; set it by a \
     variable.",
);

const STORE: Key = key(
    "retry.store",
    Kind::Path,
    DefaultValue::Value("./retry"),
    "Folder of the stores. Each instance of `hostler retry` has its own below it; several instances may share the folder. A \
     relative path counts from the folder of the config file.",
);

const MAX_STORE: Key = key(
    "retry.max_store",
    Kind::Size { min: 1 << 20, max: 1 << 50 },
    DefaultValue::Unset,
    "Space that the messages of one instance may take. Beyond it, producers are told to come back later. In any case, a tenth of \
     the disk is kept free, but no more than 128 MiB.",
);

const ADOPT_AFTER: Key = key(
    "retry.adopt_after",
    lasting(Duration::ZERO, Duration::from_secs(3600)),
    DefaultValue::Value("20s"),
    "Time after which the store of an instance that has ended is adopted by another one. An instance that starts sooner takes the \
     store over as it is.",
);

const TARGETS: Key = key(
    "retry.targets",
    Kind::Texts,
    DefaultValue::Value("[\">\"]"),
    "Subjects to which messages may be delivered, with the wildcards of NATS. The service publishes with its own permissions, for \
     every producer that may send to it. Subjects that begin with `$` or `_` are always refused.",
);

const LONGEST_WAIT: Key = key(
    "retry.longest_wait",
    WAIT,
    DefaultValue::Value("1d"),
    "Longest wait that a receiver may ask for. It closes the whole subject; a longer one is cut.",
);

const SUBJECT: Key = key(
    "retry.subject",
    Kind::Word { also: "._-", min: 1, max: 200 },
    DefaultValue::Value("retry"),
    "Subject of the service. A message for `webhooks.a` is sent to `retry.webhooks.a`.",
);

const QUEUE_GROUP: Key = key(
    "retry.queue_group",
    Kind::Word { also: "._-", min: 1, max: 200 },
    DefaultValue::Value("hostler-retry"),
    "Queue group by which the instances share the messages of producers.",
);

const ACK_TIMEOUT: Key = key(
    "retry.ack_timeout",
    lasting(Duration::from_millis(100), Duration::from_secs(12 * 3600)),
    DefaultValue::Value("30s"),
    "Longest wait for the answer of a receiver, counted anew from each `+WPI`.",
);

const IN_FLIGHT: Key = key(
    "retry.in_flight",
    Kind::Integer { min: 1, max: 65_536 },
    DefaultValue::Value("1024"),
    "Messages of one instance in flight at a time.",
);

const IN_FLIGHT_PER_SUBJECT: Key = key(
    "retry.in_flight_per_subject",
    Kind::Integer { min: 1, max: 65_536 },
    DefaultValue::Value("64"),
    "Messages of one instance in flight to one subject at a time.",
);

const RETRIES: Key = key(
    "retry.retries",
    Kind::Integer { min: 0, max: 1_000_000 },
    DefaultValue::Value("20"),
    "Deliveries after the first one that was not acknowledged. Then the message is dead-lettered. Header: `Hostler-Retries`.",
);

const TTL: Key = key(
    "retry.ttl",
    lasting(Duration::ZERO, Duration::from_secs(3650 * 86_400)),
    DefaultValue::Value("0s"),
    "Time after which a message expires; `0s`: never. Header: `Hostler-TTL`.",
);

const DELAY: Key = key(
    "retry.delay",
    lasting(Duration::ZERO, MAX_DELAY),
    DefaultValue::Value("0s"),
    "Wait before the first delivery. Header: `Hostler-Delay`.",
);

const BACKOFF: Key = key(
    "retry.backoff",
    Kind::Choice(RetryBackoff::WORDS),
    DefaultValue::Value("exponential"),
    "Waits between deliveries. `fixed`: `base` each time. `exponential`: doubled each time from `base` to `max`, with jitter. \
     Header: `Hostler-Backoff`.",
);

const BASE: Key = key(
    "retry.base",
    WAIT,
    DefaultValue::Value("1s"),
    "Wait after the first delivery that was not acknowledged. Header: `Hostler-Base`.",
);

const MAX: Key =
    key("retry.max", WAIT, DefaultValue::Value("10m"), "Longest wait with `exponential`. Header: `Hostler-Max`.");

const EXPIRED: Key = key(
    "retry.expired",
    Kind::Choice(Expired::WORDS),
    DefaultValue::Value("dead-letter"),
    "End of a message that expires. `drop`: it is removed.",
);

const PRIORITY: Key = key(
    "retry.priority",
    Kind::Word { also: "_-", min: 1, max: 40 },
    DefaultValue::Value("normal"),
    "Priority of messages that name none: one of `priorities`. Header: `Hostler-Priority`.",
);

const PRIORITIES: Key = key(
    "retry.priorities.*",
    Kind::Integer { min: 1, max: 1_000 },
    DefaultValue::Derived("`{ high = 4, normal = 2, low = 1 }`"),
    "A priority, and its share of the deliveries while others have messages too.",
);
