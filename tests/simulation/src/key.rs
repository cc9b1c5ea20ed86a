//! The name of a scenario, as text and as a value.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Kinds of faults in some scenarios. Shrinking removes one kind after another.
pub const CLASSES: [&str; 23] = [
    "lost-requests",
    "lost-answers",
    "refusals",
    "entries",
    "latency",
    "duplicates",
    "stale",
    "drains",
    "crashes",
    "pauses",
    "work",
    "failures",
    "outages",
    "holds",
    "breaker",
    "rate-limit",
    "lingering",
    "clocks",
    "denials",
    "cancels",
    "not-before",
    "cuts",
    "records",
];

/// Available worlds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Sqs,
    Embedded,
    Push,
    /// The model of [`Kind::Push`], but leases outlive a connection, and a settlement may be done though its answer is lost.
    Nats,
    /// The world of SQS, with batches.
    Batch,
    /// The world of SQS, with keys and a separate store of their records.
    Keys,
    /// The world of the embedded queue, which keeps the records of keys.
    OwnKeys,
}

impl Kind {
    pub const ALL: [Self; 7] =
        [Self::Sqs, Self::Embedded, Self::Push, Self::Nats, Self::Batch, Self::Keys, Self::OwnKeys];

    /// Returns the prefix of this world's keys.
    fn prefix(self) -> &'static str {
        match self {
            Self::Sqs => "",
            Self::Embedded => "embedded:",
            Self::Push => "push:",
            Self::Nats => "nats:",
            Self::Batch => "batch:",
            Self::Keys => "keys:",
            Self::OwnKeys => "own-keys:",
        }
    }
}

/// Name of a scenario: its world, its seed, and the parts left out. As text: `17`, `embedded:17`, `push:17`, `nats:17`, `batch:17`,
/// `keys:17`, `own-keys:17`, `17:messages=3:without=latency,work`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Key {
    pub kind: Kind,
    pub seed: u64,
    pub messages: Option<usize>,
    pub without: BTreeSet<&'static str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.seed)?;
        if let Some(count) = self.messages {
            write!(f, ":messages={count}")?;
        }
        if !self.without.is_empty() {
            write!(f, ":without={}", self.without.iter().copied().collect::<Vec<_>>().join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Sqs);
        let found = kinds.find_map(|kind| Some((kind, text.strip_prefix(kind.prefix())?)));
        let (kind, text) = found.unwrap_or((Kind::Sqs, text));
        let mut parts = text.split(':');
        let seed = parts.next().and_then(|seed| seed.parse().ok()).ok_or_else(|| format!("no seed in {text:?}"))?;
        let mut key = Self { kind, seed, ..Self::default() };
        for part in parts {
            match part.split_once('=') {
                Some(("messages", count)) => key.messages = Some(count.parse().map_err(|_| format!("{part:?}"))?),
                Some(("without", names)) => {
                    for name in names.split(',') {
                        let known = CLASSES.into_iter().find(|class| *class == name);
                        key.without.insert(known.ok_or_else(|| format!("{name:?} is none of {CLASSES:?}"))?);
                    }
                }
                _ => return Err(format!("{part:?} is not understood")),
            }
        }
        Ok(key)
    }
}
