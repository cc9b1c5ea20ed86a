//! The keys of `[queue.postgres]`.

use super::{DefaultValue, Key, key};
use crate::choice::Provision;
use crate::kind::Kind;

pub(super) const URL: Key = key(
    "queue.postgres.url",
    Kind::PostgresUrl,
    DefaultValue::Unset,
    "Address of the PostgreSQL database, with the user and the password. Servers of a cluster are separated by commas; \
     `sslmode` and `sslrootcert` say how the server proves itself. It is a secret and never shown; set it by a variable, or use \
     `url_file`.",
);

pub(super) const URL_FILE: Key = key(
    "queue.postgres.url_file",
    Kind::Path,
    DefaultValue::Unset,
    "File with the address, for example a secret of the container platform. Read at the start; unused if `url` is set.",
);

pub(super) const PREFIX: Key = key(
    "queue.postgres.prefix",
    Kind::Word { also: "_-", min: 0, max: 64 },
    DefaultValue::Value(""),
    "Prefix of every queue and exchange name.",
);

pub(super) const PROVISION: Key = key(
    "queue.postgres.provision",
    Kind::Choice(Provision::WORDS),
    DefaultValue::Value("check"),
    "`check`: a missing table or queue is exit code 69 with the cure. `auto`: missing tables, queues and exchanges are created.",
);

pub(super) const CONNECTIONS: Key = key(
    "queue.postgres.connections",
    Kind::Integer { min: 1, max: 16 },
    DefaultValue::Value("4"),
    "Number of connections that a process opens at most, beside the one by which it learns of new messages.",
);
