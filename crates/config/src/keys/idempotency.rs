//! The keys of `[consumers.NAME.idempotency]`.

use std::time::Duration;

use super::{DefaultValue, Key, key, lasting};
use crate::choice::{OnUnknown, RecordStore};
use crate::kind::Kind;

pub(super) const KEY: Key = key(
    "consumers.*.idempotency.key",
    Kind::MessageKey,
    DefaultValue::Unset,
    "The key of a message, of which each is processed once: `$.` and names joined by dots for a member of a JSON body (a number is the \
     index of an array), `attr:NAME` for an attribute, or `id` for the message's id, which a requeue keeps. Unset: each message is \
     processed.",
);

pub(super) const STORE: Key = key(
    "consumers.*.idempotency.store",
    Kind::Choice(RecordStore::WORDS),
    DefaultValue::Derived("the queue's own database"),
    "The store of the records, at `queue.embedded.path` or `queue.postgres.url`. In the queue's own database, the record, the ack, the \
     reply and what the handler sends are one transaction.",
);

pub(super) const TTL: Key = key(
    "consumers.*.idempotency.ttl",
    lasting(Duration::from_secs(60), Duration::from_secs(366 * 24 * 3600)),
    DefaultValue::Value("14d"),
    "Time for which a processed key is remembered: at least the time for which the queue keeps messages.",
);

pub(super) const ON_UNKNOWN: Key = key(
    "consumers.*.idempotency.on_unknown",
    Kind::Choice(OnUnknown::WORDS),
    DefaultValue::Value("run"),
    "A message whose earlier run was stopped, or died with its host, so that nobody knows what it has done. `run`: the handler runs \
     again; `dead-letter`: the message is dead-lettered, and runs once somebody requeues it.",
);
