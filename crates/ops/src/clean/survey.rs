//! Surveys all resources that hostler owns, and classifies the queues.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::Serialize;

use super::Windows;
use super::class::{Class, Observed, classify};
use hostler_queue::{Disposal, Listing, ManagedQueue, ManagedTopic, QueueError, QueueUse, StoredBodies, Unread, tag};
use hostler_types::BoxFuture;

/// Maximum number of stored bodies that one survey lists. The next run finds the remaining bodies.
const MAX_BODIES: usize = 100_000;

/// Names of the queues and exchanges in the config, without the configured prefix. None of these queues is deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// Queues, including dead-letter queues.
    pub queues: BTreeSet<String>,
    /// Exchanges.
    pub exchanges: BTreeSet<String>,
}

/// A queue and its class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueFinding {
    /// Name of the queue, as the service knows it.
    pub queue: String,
    /// Class of the queue.
    pub class: Class,
    /// Set if the config names the queue.
    pub named_by_config: bool,
    /// Current number of messages.
    pub messages: u64,
    /// `true` if a topic delivers to the queue. `None`: the subscriptions cannot be listed.
    pub subscribed: Option<bool>,
    /// Use of the queue. `None`: the service has no record.
    #[serde(flatten, serialize_with = "use_or_nulls")]
    pub used: Option<QueueUse>,
    /// Consumer of the queue, from the queue's tags.
    pub consumer: Option<String>,
    /// Owner of the queue, from the queue's tags.
    pub owner: Option<String>,
}

impl QueueFinding {
    /// Returns `true` if this survey permits the deletion of the queue. A second survey must agree.
    pub fn may_go(&self) -> bool {
        self.class == Class::Deletable && !self.named_by_config && self.subscribed == Some(false)
    }
}

/// A topic and its use. Topics are never deleted, because their producers would fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicFinding {
    /// Name of the topic, as the service knows it.
    pub topic: String,
    /// Set if nothing was published to the topic during the period [`Windows::topics`].
    pub inactive: bool,
    /// Number of messages published during the period [`Windows::topics`]. `None`: the service has no record.
    pub published: Option<u64>,
    /// Set if the config names the topic.
    pub named_by_config: bool,
}

/// Result of one survey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// All queues that hostler owns.
    pub queues: Vec<QueueFinding>,
    /// All topics that hostler owns.
    pub topics: Vec<TopicFinding>,
    /// Stored bodies older than [`Windows::bodies`]. `None`: no bodies are stored outside messages, or they cannot be
    /// listed.
    pub bodies: Option<StoredBodies>,
    /// Resources that could not be read.
    pub unread: Vec<Unread>,
}

impl Survey {
    /// Returns `true` if the service has a usage record for at least one queue. If it has none, it may not record any
    /// use, so the use of the queues is unknown.
    pub fn has_record(&self) -> bool {
        self.queues.iter().any(|finding| finding.used.is_some())
    }
}

/// Surveys all resources once. If subscriptions, topics or bodies cannot be listed, [`Survey::unread`] reports this. If
/// the subscriptions cannot be listed, no queue may be deleted.
///
/// # Errors
/// [`QueueError`]: the queues cannot be listed, or their usage records cannot be read.
pub fn survey<'a>(
    inventory: &'a dyn Disposal,
    windows: &'a Windows,
    named: &'a Named,
    now: SystemTime,
) -> BoxFuture<'a, Result<Survey, QueueError>> {
    Box::pin(async move {
        let Listing { found, mut unread } = inventory.queues().await?;
        let names: Vec<_> = found.iter().map(|held| held.name.clone()).collect();
        let used = if names.is_empty() { Vec::new() } else { inventory.queue_use(&names, windows.queues).await? };
        let subscribed = part(&mut unread, "subscriptions", inventory.subscribed().await);
        let queues =
            queue_findings(&Seen { held: &found, unread: &unread, used: &used, subscribed }, windows, named, now);
        let topics = part(&mut unread, "topics", topics(inventory, windows, named).await).unwrap_or_default();
        unread.extend(topics.unread);
        let before = now.checked_sub(windows.bodies).unwrap_or(SystemTime::UNIX_EPOCH);
        let bodies = part(&mut unread, "stored bodies", inventory.stored_before(before, MAX_BODIES).await).flatten();
        Ok(Survey { queues, topics: topics.found, bodies, unread })
    })
}

/// Returns the value in `result`, the result of one part of the survey. If that part failed, adds it to `unread` under
/// `name` and returns `None`.
fn part<T>(unread: &mut Vec<Unread>, name: &str, result: Result<T, QueueError>) -> Option<T> {
    match result {
        Ok(part) => Some(part),
        Err(error) => {
            let denied = matches!(error, QueueError::Refused(_));
            unread.push(Unread { name: name.to_owned(), reason: error.to_string(), denied });
            None
        }
    }
}

async fn topics(
    inventory: &dyn Disposal,
    windows: &Windows,
    named: &Named,
) -> Result<Listing<TopicFinding>, QueueError> {
    let Listing { found, unread } = inventory.topics().await?;
    let names: Vec<_> = found.iter().map(|held| held.name.clone()).collect();
    let published = if names.is_empty() { Vec::new() } else { inventory.published(&names, windows.topics).await? };
    let found = found.into_iter().zip(published.into_iter().chain(std::iter::repeat(None)));
    let finding = |(ManagedTopic { name, exchange }, published): (ManagedTopic, Option<u64>)| TopicFinding {
        topic: name,
        inactive: published.unwrap_or(0) == 0,
        published,
        named_by_config: named.exchanges.contains(&exchange),
    };
    Ok(Listing { found: found.map(finding).collect(), unread })
}

/// Data by which queues are classified.
struct Seen<'a> {
    held: &'a [ManagedQueue],
    unread: &'a [Unread],
    /// Use of each queue, in the order of `held`.
    used: &'a [Option<QueueUse>],
    /// Names of the queues that topics deliver to. `None`: the subscriptions cannot be listed.
    subscribed: Option<BTreeSet<String>>,
}

/// Classifies each queue. Returns the findings in the order of the queues.
fn queue_findings(seen: &Seen<'_>, windows: &Windows, named: &Named, now: SystemTime) -> Vec<QueueFinding> {
    let Seen { held, unread, used, subscribed } = seen;
    let used = |n: usize| used.get(n).copied().flatten();
    let subscribed = |queue: &ManagedQueue| subscribed.as_ref().map(|names| names.contains(&queue.name));
    let observed = |n: usize, queue: &ManagedQueue, dead_letters| Observed {
        messages: queue.messages(),
        age: queue.created.and_then(|created| now.duration_since(created).ok()),
        used: used(n),
        dead_letters,
        subscribed: subscribed(queue) == Some(true),
    };
    let alone: Vec<_> =
        held.iter().enumerate().map(|(n, queue)| classify(&observed(n, queue, false), windows.queues)).collect();
    // A queue is kept unless it is known to be deletable. For a queue that could not be read, only its name is known.
    let stays = held.iter().zip(&alone).filter(|(queue, class)| {
        **class != Class::Deletable || named.queues.contains(&queue.queue) || subscribed(queue) != Some(false)
    });
    let stays: BTreeSet<&str> =
        stays.map(|(queue, _)| queue.name.as_str()).chain(unread.iter().map(|unread| unread.name.as_str())).collect();
    let finding = |(n, queue): (usize, &ManagedQueue)| {
        let dead_letters = source(&queue.name).is_some_and(|source| stays.contains(source.as_str()));
        let tag = |name: &str| queue.tags.get(name).cloned();
        QueueFinding {
            queue: queue.name.clone(),
            class: classify(&observed(n, queue, dead_letters), windows.queues),
            named_by_config: named.queues.contains(&queue.queue),
            messages: queue.messages(),
            subscribed: subscribed(queue),
            used: used(n),
            consumer: tag(tag::CONSUMER),
            owner: tag(tag::OWNER),
        }
    };
    held.iter().enumerate().map(finding).collect()
}

/// Returns the name of a dead-letter queue's source queue, derived from hostler's naming scheme. Both are names as the
/// service knows them. `None`: `name` is not the name of a dead-letter queue.
fn source(name: &str) -> Option<String> {
    let (name, suffix) = match name.strip_suffix(".fifo") {
        Some(name) => (name, ".fifo"),
        None => (name, ""),
    };
    name.strip_suffix("-dlq").filter(|source| !source.is_empty()).map(|source| format!("{source}{suffix}"))
}

/// Serializes each count under the name of its field. If there is no record, each of these fields is null.
fn use_or_nulls<S: serde::Serializer>(used: &Option<QueueUse>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap as _;
    let mut map = serializer.serialize_map(Some(3))?;
    map.serialize_entry("sent", &used.map(|used| used.sent))?;
    map.serialize_entry("received", &used.map(|used| used.received))?;
    map.serialize_entry("empty_receives", &used.map(|used| used.empty_receives))?;
    map.end()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000
    }

    fn held(queue: &str) -> ManagedQueue {
        let name = format!("p-{queue}");
        let queue = queue.trim_end_matches(".fifo").to_owned();
        ManagedQueue { name, queue, created: Some(now() - DAY * 40), ..ManagedQueue::default() }
    }

    fn classes(
        held: &[ManagedQueue],
        used: &[Option<QueueUse>],
        hidden: &[&str],
        named: &[&str],
    ) -> Vec<(Class, bool)> {
        with_subscriptions(Some(BTreeSet::new()), held, used, hidden, named)
    }

    fn with_subscriptions(
        subscribed: Option<BTreeSet<String>>,
        held: &[ManagedQueue],
        used: &[Option<QueueUse>],
        hidden: &[&str],
        named: &[&str],
    ) -> Vec<(Class, bool)> {
        let unread = |name: &&str| Unread { name: (*name).to_owned(), reason: String::new(), denied: true };
        let unread: Vec<_> = hidden.iter().map(unread).collect();
        let named = Named { queues: named.iter().map(|name| (*name).to_owned()).collect(), ..Named::default() };
        let seen = Seen { held, unread: &unread, used, subscribed };
        let findings = queue_findings(&seen, &Windows::default(), &named, now());
        findings.iter().map(|finding| (finding.class, finding.may_go())).collect()
    }

    #[test]
    fn a_dead_letter_queue_goes_with_its_queue_and_not_before() {
        let busy = Some(QueueUse { sent: 1, received: 1, empty_receives: 0 });
        let both = [held("orders"), held("orders-dlq")];
        let goes = (Class::Deletable, true);
        assert_eq!(classes(&both, &[None, None], &[], &[]), [goes, goes]);
        assert_eq!(classes(&both, &[busy, None], &[], &[]), [(Class::InUse, false); 2]);
        assert_eq!(classes(&both[1..], &[None], &[], &[]), [goes], "its queue is gone");
        assert_eq!(classes(&both[1..], &[None], &["p-orders"], &[]), [(Class::InUse, false)], "its queue is hidden");
        let fifo = [held("orders.fifo"), held("orders-dlq.fifo"), held("orders-dlq")];
        let expected = [(Class::InUse, false), (Class::InUse, false), goes];
        assert_eq!(classes(&fifo, &[busy, None, None], &[], &[]), expected);
    }

    #[test]
    fn what_the_config_names_stays_and_so_do_its_dead_letters() {
        let both = [held("orders"), held("orders-dlq"), held("old")];
        let expected = [(Class::Deletable, false), (Class::InUse, false), (Class::Deletable, true)];
        assert_eq!(classes(&both, &[None; 3], &[], &["orders"]), expected);
    }

    #[test]
    fn a_subscribed_queue_stays_with_its_dead_letter_queue() {
        let queues = [held("orders"), held("orders-dlq"), held("old")];
        let some = Some(["p-orders".to_owned()].into());
        let expected = [(Class::Subscribed, false), (Class::InUse, false), (Class::Deletable, true)];
        assert_eq!(with_subscriptions(some, &queues, &[None; 3], &[], &[]), expected);
        let unknown = with_subscriptions(None, &queues, &[None; 3], &[], &[]);
        assert!(unknown.iter().all(|(_, may_go)| !may_go), "{unknown:?}");
    }

    #[test]
    fn a_queue_from_the_future_is_young() {
        let queue = ManagedQueue { created: Some(now() + DAY), ..held("orders") };
        assert_eq!(classes(&[queue], &[None], &[], &[]), [(Class::Young, false)]);
    }

    #[test]
    fn a_finding_tells_its_counts_or_that_there_is_no_record() {
        let finding = |used| {
            let subscribed = Some(BTreeSet::new());
            let seen = Seen { held: &[held("a")], unread: &[], used: &[used], subscribed };
            let findings = queue_findings(&seen, &Windows::default(), &Named::default(), now());
            serde_json::to_value(&findings[0]).unwrap()
        };
        let used = QueueUse { sent: 0, received: 2, empty_receives: 3 };
        let expected = serde_json::json!({
            "queue": "p-a", "class": "no-producers", "named_by_config": false, "messages": 0, "subscribed": false,
            "sent": 0, "received": 2, "empty_receives": 3, "consumer": null, "owner": null,
        });
        assert_eq!(finding(Some(used)), expected);
        assert!(finding(None)["sent"].is_null());
    }
}
