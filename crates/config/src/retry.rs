//! `[retry]`: settings of `hostler retry`.

use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Expired, RetryBackoff};
use super::grants::NatsUrl;
use super::read::Bytes;
use super::settings::{Mismatch, Settings};

/// Priorities of a config that names none, with their weights.
const PRIORITIES: [(&str, u32); 3] = [("high", 4), ("normal", 2), ("low", 1)];

/// `[retry]`: the retry service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryService {
    /// Address of the NATS server.
    pub nats: NatsUrl,
    /// Folder of the stores. [`load`](crate::load) has already resolved a relative path.
    pub store: PathBuf,
    /// Maximum number of bytes of messages in one store. `None`: only the disk limits it.
    pub max_store: Option<u64>,
    /// Time after which a store that no instance has is adopted.
    pub adopt_after: Duration,
    /// Subject of the service.
    pub subject: String,
    /// Subjects to which messages may be delivered, with wildcards.
    pub targets: Vec<String>,
    /// Queue group of the instances.
    pub queue_group: String,
    /// Maximum wait for the answer of a receiver.
    pub ack_timeout: Duration,
    /// Maximum wait that a receiver may ask for.
    pub longest_wait: Duration,
    /// Maximum number of messages in flight: at least 1.
    pub in_flight: usize,
    /// Maximum number of messages in flight to one subject: at least 1.
    pub in_flight_per_subject: usize,
    /// Number of deliveries after the first one.
    pub retries: u32,
    /// Time to live. `None`: messages never expire.
    pub ttl: Option<Duration>,
    /// Wait before the first delivery.
    pub delay: Duration,
    /// Growth of the waits between deliveries.
    pub backoff: RetryBackoff,
    /// Wait after the first delivery. At most `max`.
    pub base: Duration,
    /// Maximum wait of exponential growth.
    pub max: Duration,
    /// End of messages that expire.
    pub expired: Expired,
    /// Priorities with their weights, the greatest weight first. Contains `priority`.
    pub priorities: Vec<(String, u32)>,
    /// Priority of messages that name none.
    pub priority: String,
}

impl RetryService {
    /// Returns the settings. `None`: the config has no retry service.
    pub(super) fn read(settings: &Settings) -> Result<Option<Self>, Mismatch> {
        let at = settings.root();
        let Some(nats) = at.maybe("retry.nats")? else { return Ok(None) };
        Ok(Some(Self {
            nats,
            store: at.need("retry.store")?,
            max_store: at.maybe::<Bytes>("retry.max_store")?.map(|size| size.0),
            adopt_after: at.need("retry.adopt_after")?,
            subject: at.need("retry.subject")?,
            targets: at.need("retry.targets")?,
            queue_group: at.need("retry.queue_group")?,
            ack_timeout: at.need("retry.ack_timeout")?,
            longest_wait: at.need("retry.longest_wait")?,
            in_flight: at.need("retry.in_flight")?,
            in_flight_per_subject: at.need("retry.in_flight_per_subject")?,
            retries: at.need("retry.retries")?,
            ttl: Some(at.need::<Duration>("retry.ttl")?).filter(|ttl| !ttl.is_zero()),
            delay: at.need("retry.delay")?,
            backoff: at.need("retry.backoff")?,
            base: at.need("retry.base")?,
            max: at.need("retry.max")?,
            expired: at.need("retry.expired")?,
            priorities: priorities(settings),
            priority: at.need("retry.priority")?,
        }))
    }
}

/// Returns `true` for a name that subjects may have: parts of letters, digits, `_` and `-`, with dots between them.
pub(super) fn is_subject(text: &str) -> bool {
    text.split('.').all(|token| !token.is_empty())
}

/// Returns `true` for a subject that may have wildcards: `*` for one part, `>` at the end for one or more.
pub(super) fn is_pattern(text: &str) -> bool {
    let is_word = |token: &str| {
        !token.is_empty()
            && !token.contains(|char: char| char.is_whitespace() || char.is_control() || "*>".contains(char))
    };
    let (rest, last) = text.rsplit_once('.').map_or((None, text), |(rest, last)| (Some(rest), last));
    let is_last = matches!(last, "*" | ">") || is_word(last);
    is_last && rest.is_none_or(|rest| rest.split('.').all(|token| token == "*" || is_word(token)))
}

/// Returns the priorities with their weights, the greatest weight first.
pub(super) fn priorities(settings: &Settings) -> Vec<(String, u32)> {
    let mut priorities: Vec<(String, u32)> = settings.root().values("retry.priorities").into_iter().collect();
    if priorities.is_empty() {
        priorities = PRIORITIES.map(|(name, weight)| (name.to_owned(), weight)).into();
    }
    priorities.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
    priorities
}
