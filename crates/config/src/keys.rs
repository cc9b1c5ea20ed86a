//! The table of all keys, with their accepted values, defaults and meanings. The checks, the schema and the reference
//! are derived from this table. The files below have the keys of one table of the config each.

mod consumer;
mod host;
mod idempotency;
mod jobs;
mod lookup;
mod nats;
mod postgres;
mod queue;
mod rabbitmq;
mod retry;
mod schedules;
mod telemetry;

use std::time::Duration;

use super::kind::Kind;
pub(super) use lookup::{Node, child, joined, names};
pub(super) use schedules::MAX_MESSAGE;

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
    /// No default: a missing value is an error, unless one of these other keys of the table is set.
    RequiredUnless(&'static [&'static str]),
}

/// Default path of the health file.
pub(super) const HEALTH_FILE_DEFAULT: &str = "/tmp/hostler/health.json";

/// Tables whose tables the user names. Their names have the syntax [`CONSUMER_NAME`].
pub(super) const NAMED: [&str; 3] = [CONSUMERS, SCHEDULES, APPLETS];

/// Table of the consumers.
pub(super) const CONSUMERS: &str = "consumers";

/// Table of the schedules.
pub(super) const SCHEDULES: &str = "schedules";

/// Table of the applets.
pub(super) const APPLETS: &str = "jobs.applets";

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

/// All keys by table, in the order of the documentation.
const TABLES: [&[Key]; 7] =
    [host::KEYS, queue::KEYS, consumer::KEYS, schedules::KEYS, retry::KEYS, jobs::KEYS, telemetry::KEYS];

/// Returns all keys, in the order of the documentation.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    TABLES.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::lookup::below;
    use super::*;

    #[test]
    fn every_default_is_accepted() {
        for key in keys() {
            if let DefaultValue::Value(text) = key.preset {
                assert_eq!(key.kind.check(&key.kind.value(text)), Ok(()), "{}", key.path);
            }
        }
    }

    #[test]
    fn paths_are_unique_and_no_key_is_a_table() {
        for (index, key) in keys().enumerate() {
            for other in keys().skip(index + 1) {
                assert!(key.path != other.path && below(other.path, key.path).is_none(), "{}", other.path);
            }
        }
    }
}
