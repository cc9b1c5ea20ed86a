//! The keys of `[queue.nats]`, and those of consumers that only NATS has.

use std::time::Duration;

use super::{DefaultValue, Key, key, lasting};
use crate::choice::Provision;
use crate::kind::Kind;

pub(super) const URL: Key = key(
    "queue.nats.url",
    Kind::NatsUrl,
    DefaultValue::Unset,
    "Address of the NATS server, with the user and the password, or with a token in place of both. Servers of a cluster are \
     separated by commas. It is a secret and never shown; set it by a variable, or use `url_file`.",
);

pub(super) const URL_FILE: Key = key(
    "queue.nats.url_file",
    Kind::Path,
    DefaultValue::Unset,
    "File with the address, for example a secret of the container platform. Read at the start; unused if `url` is set.",
);

pub(super) const CREDENTIALS: Key = key(
    "queue.nats.credentials",
    Kind::Path,
    DefaultValue::Unset,
    "Credentials file (`.creds`) with the user's JWT and the seed of its key. Read at the start.",
);

pub(super) const NKEY: Key = key(
    "queue.nats.nkey",
    Kind::Path,
    DefaultValue::Unset,
    "File with the seed of the user's NKey. Read at the start; not together with `credentials`.",
);

pub(super) const CA: Key = key(
    "queue.nats.ca",
    Kind::Path,
    DefaultValue::Unset,
    "PEM file with certificates of authorities to trust, in place of those of the system.",
);

pub(super) const CLIENT_CERT: Key = key(
    "queue.nats.client_cert",
    Kind::Path,
    DefaultValue::Unset,
    "PEM file with the client's certificate and its private key.",
);

pub(super) const PREFIX: Key = key(
    "queue.nats.prefix",
    Kind::Word { also: "_-", min: 0, max: 64 },
    DefaultValue::Value(""),
    "Prefix of every stream name and of the streams' subjects.",
);

pub(super) const PROVISION: Key = key(
    "queue.nats.provision",
    Kind::Choice(Provision::WORDS),
    DefaultValue::Value("check"),
    "`check`: a missing stream is exit code 69 with the cure. `auto`: missing streams and consumers are created.",
);

pub(super) const REPLICAS: Key = key(
    "queue.nats.replicas",
    Kind::Integer { min: 1, max: 5 },
    DefaultValue::Value("1"),
    "Number of servers that keep a copy of each stream that hostler creates; 3 in a cluster.",
);

pub(super) const REQUEST_TIMEOUT: Key = key(
    "queue.nats.request_timeout",
    lasting(Duration::from_millis(100), Duration::from_secs(12 * 3600)),
    DefaultValue::Value("30s"),
    "Longest wait for the acknowledgement of a message that a guest sends to a subject, counted anew from each `+WPI`.",
);

pub(super) const FALLBACK: Key = key(
    "queue.nats.fallback",
    Kind::Word { also: "._-", min: 1, max: 200 },
    DefaultValue::Unset,
    "Subject of the retry service (`retry.subject`) that takes what no receiver acknowledges. Unset: such a send fails.",
);

pub(super) const SUBJECT: Key = key(
    "consumers.*.subject",
    Kind::Subject,
    DefaultValue::Unset,
    "Subject of NATS whose requests the handler answers, in place of `channel`: no stream keeps them. `*` stands for one token, and \
     `>` at the end for all that follow.",
);

pub(super) const QUEUE_GROUP: Key = key(
    "consumers.*.queue_group",
    Kind::Word { also: "_-", min: 1, max: 136 },
    DefaultValue::Derived("`queue.nats.prefix` and the consumer's name"),
    "Receivers of one group share the requests of `subject`.",
);

pub(super) const SUBJECTS: Key = key(
    "consumers.*.allow.subjects",
    Kind::Subjects,
    DefaultValue::Value("[]"),
    "Subjects of NATS that the guest may send to. A send waits until a receiver acknowledges the message.",
);
