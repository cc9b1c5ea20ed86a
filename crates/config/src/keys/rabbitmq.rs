//! The keys of `[queue.rabbitmq]`.

use std::time::Duration;

use super::{DefaultValue, Key, key, lasting};
use crate::choice::Provision;
use crate::kind::Kind;

pub(super) const URL: Key = key(
    "queue.rabbitmq.url",
    Kind::AmqpUrl,
    DefaultValue::Unset,
    "Address of the RabbitMQ server, with the user, the password and the virtual host. Nodes of a cluster are separated by \
     commas. It is a secret and never shown; set it by a variable, or use `url_file`.",
);

pub(super) const URL_FILE: Key = key(
    "queue.rabbitmq.url_file",
    Kind::Path,
    DefaultValue::Unset,
    "File with the address, for example a secret of the container platform. Read at the start; unused if `url` is set.",
);

pub(super) const CA: Key = key(
    "queue.rabbitmq.ca",
    Kind::Path,
    DefaultValue::Unset,
    "PEM file with certificates of authorities to trust, in addition to those of the system.",
);

pub(super) const CLIENT_CERT: Key = key(
    "queue.rabbitmq.client_cert",
    Kind::Path,
    DefaultValue::Unset,
    "PEM file with the client's certificate and its private key.",
);

pub(super) const PREFIX: Key = key(
    "queue.rabbitmq.prefix",
    Kind::Word { also: "_-", min: 0, max: 64 },
    DefaultValue::Value(""),
    "Prefix of every queue and exchange name.",
);

pub(super) const PROVISION: Key = key(
    "queue.rabbitmq.provision",
    Kind::Choice(Provision::WORDS),
    DefaultValue::Value("check"),
    "`check`: a missing queue is exit code 69 with the cure. `auto`: missing queues and exchanges are created.",
);

pub(super) const MANAGEMENT_URL: Key = key(
    "queue.rabbitmq.management_url",
    Kind::Url { example: "http://rabbit.example.com:15672" },
    DefaultValue::Unset,
    "Address of the management API, which lists queues and counts messages in flight; unset: neither is known. The user of `url` \
     needs the tag `monitoring`.",
);

pub(super) const HEARTBEAT: Key = key(
    "queue.rabbitmq.heartbeat",
    lasting(Duration::from_secs(2), Duration::from_secs(600)),
    DefaultValue::Value("10s"),
    "Interval of heartbeats. After one without a sign of life, the handlers are stopped; after two, the connection is lost.",
);
