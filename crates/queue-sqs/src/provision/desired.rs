//! The desired AWS resources of a channel: a dead-letter queue, a queue, a topic and a subscription.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::super::clients::MAX_WAIT;
use super::super::names::Names;
use super::super::not_before;
use super::super::wire::{ROUTING_KEY_ATTRIBUTE, whole_seconds};
use super::super::{MAX_MESSAGE, Options};
use super::setting::{
    DEDUPLICATION_SCOPE, FILTER_SCOPE, MAX_SIZE, REDRIVE_POLICY, RETENTION, Redrive, Setting, THROUGHPUT_LIMIT,
    VISIBILITY_TIMEOUT, Value, WAIT_TIME,
};
use hostler_queue::{ChannelSpec, QueueError, tag};
use hostler_types::channel::Filter;

/// Retention of messages in a dead-letter queue (AWS limit: 14 days).
pub(super) const DEAD_LETTER_RETENTION: Duration = Duration::from_secs(14 * 86400);

/// Maximum number of times that a message can be received before a queue dead-letters it (AWS limit: maxReceiveCount
/// 1000).
const MOST_RECEIVES: u32 = 1000;

/// Time for which a queue keeps a message beyond the consumer's longest delay. Equals the default retention of
/// a new queue on AWS (4 days).
const AFTER_A_DELAY: Duration = Duration::from_secs(4 * 86400);

/// Maximum number of values in a filter policy with one key. The AWS limit is 150 combinations of values for up to 5
/// keys.
const MAX_FILTER_VALUES: usize = 150;

/// The desired resources of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) dead_letters: Option<Piece>,
    pub(super) queue: Piece,
    pub(super) fan_out: Option<FanOut>,
}

/// The desired resources that deliver an exchange's messages to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FanOut {
    pub(super) topic: Piece,
    /// Settings of the subscription.
    pub(super) subscription: Vec<Setting>,
}

/// The desired state of a queue or a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    /// Name of the queue or exchange, without the prefix and `.fifo`.
    pub(super) name: String,
    pub(super) ordered: bool,
    /// Name on AWS.
    pub(super) on_aws: String,
    /// Settings with which the resource is created. They are not changed later.
    pub(super) at_creation: Vec<Setting>,
    /// Settings with which hostler creates the resource, and which it restores if the resource differs from them later.
    pub(super) settings: Vec<Setting>,
    pub(super) tags: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Queue,
    Topic,
    Subscription,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Topic => "topic",
            Self::Subscription => "subscription",
        }
    }
}

impl Piece {
    /// Returns the human-readable name: the kind of the resource and its AWS name.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.kind.name(), self.on_aws)
    }
}

/// Returns the resources that a consumer of `spec` needs.
///
/// # Errors
/// [`QueueError::Refused`]: the filter has more values than SNS accepts.
pub(super) fn channel(spec: &ChannelSpec, options: &Options, names: &Names) -> Result<Wanted, QueueError> {
    let dead_letters = spec.max_receives.map(|_| {
        let mut piece = queue(&spec.channel.dead_letter_queue(), spec.ordered, options, names);
        piece.settings.extend(throughput(spec));
        let retention = Value::Seconds(DEAD_LETTER_RETENTION.as_secs());
        piece.settings.push(Setting::new(RETENTION, "retention", retention));
        tagged(piece, spec)
    });
    let redrive = |after: Option<u32>| {
        let to = dead_letters.as_ref().map(|piece| piece.on_aws.clone());
        Setting::new(REDRIVE_POLICY, "redrive", Value::Redrive(to.map(|to| Redrive { to, after })))
    };
    let mut consumed = queue(spec.channel.queue(), spec.ordered, options, names);
    consumed.settings.extend(throughput(spec));
    consumed.settings.extend([
        Setting::new(VISIBILITY_TIMEOUT, "visibility timeout", Value::Seconds(whole_seconds(spec.lease))),
        Setting::new(WAIT_TIME, "receive wait", Value::Seconds(MAX_WAIT.as_secs())),
        redrive(spec.max_receives.map(|most| most.saturating_add(waits(spec)).min(MOST_RECEIVES))),
    ]);
    consumed.settings.extend(retention(spec));
    let fan_out = match spec.channel.exchange() {
        None => None,
        Some(exchange) => {
            let mut subscription = subscription(spec)?;
            // Not every implementation of SNS can remove a redrive policy. Therefore, if there is no dead-letter queue,
            // an existing policy is left unchanged.
            subscription.extend(dead_letters.as_ref().map(|_| redrive(None)));
            Some(FanOut { topic: topic(exchange, spec.ordered, options, names), subscription })
        }
    };
    Ok(Wanted { queue: tagged(consumed, spec), dead_letters, fan_out })
}

/// Returns the number of times that a message with the longest delay is received before it is due. These are in
/// addition to its attempts.
fn waits(spec: &ChannelSpec) -> u32 {
    let kept = if spec.channel.exchange().is_some() { Duration::ZERO } else { not_before::KEPT };
    if spec.longest_delay > not_before::KEPT { not_before::turns(spec.longest_delay, kept) } else { 0 }
}

/// Returns the setting for the minimum retention of a queue whose messages may be delayed by more than 15 minutes. If
/// the existing retention is longer, it is left unchanged, because SQS would delete messages that are older than a
/// shortened retention. `None`: the delays are shorter, so the queue's retention is left unchanged.
fn retention(spec: &ChannelSpec) -> Option<Setting> {
    let keeps = (spec.longest_delay + AFTER_A_DELAY).min(DEAD_LETTER_RETENTION);
    let wanted = Setting::new(RETENTION, "retention", Value::SecondsAtLeast(whole_seconds(keeps)));
    (spec.longest_delay > not_before::KEPT).then_some(wanted)
}

/// Returns the throughput settings of a FIFO queue, in the order in which SQS accepts them. SQS refuses a limit per
/// group unless deduplication is per group.
fn throughput(spec: &ChannelSpec) -> Vec<Setting> {
    let text = |attribute, label, value: &str| Setting::new(attribute, label, Value::Text(value.to_owned()));
    let scope = |value| text(DEDUPLICATION_SCOPE, "deduplication scope", value);
    let limit = |value| text(THROUGHPUT_LIMIT, "throughput limit", value);
    match spec.high_throughput.filter(|_| spec.ordered) {
        Some(true) => vec![scope("messageGroup"), limit("perMessageGroupId")],
        Some(false) => vec![limit("perQueue"), scope("queue")],
        None => Vec::new(),
    }
}

/// Returns the resources that consumers of `specs` need. If a dead-letter queue has its own consumer, the queue gets
/// only the tags of that consumer, and not those of the source queue's consumer. With both, the two consumers would
/// overwrite each other's tags.
///
/// # Errors
/// The same as those of [`channel`].
pub(super) fn channels(specs: &[ChannelSpec], options: &Options, names: &Names) -> Result<Vec<Wanted>, QueueError> {
    let mut wanted: Vec<_> = specs.iter().map(|spec| channel(spec, options, names)).collect::<Result<_, _>>()?;
    let consumed: BTreeMap<_, _> =
        wanted.iter().map(|one| (one.queue.on_aws.clone(), one.queue.tags.clone())).collect();
    for dead_letters in wanted.iter_mut().filter_map(|one| one.dead_letters.as_mut()) {
        if let Some(tags) = consumed.get(&dead_letters.on_aws) {
            dead_letters.tags.clone_from(tags);
        }
    }
    Ok(wanted)
}

/// Returns the desired state of a queue, with the settings that all queues have.
pub(super) fn queue(name: &str, ordered: bool, options: &Options, names: &Names) -> Piece {
    let mut at_creation = vec![Setting::new(MAX_SIZE, "largest message", Value::Bytes(MAX_MESSAGE))];
    if ordered {
        at_creation.push(Setting::flag("FifoQueue", "FIFO"));
    }
    piece(Kind::Queue, name, ordered, at_creation, options, names)
}

/// Returns the desired state of a topic. Consumers in several configs may share the topic, so it has no consumer's
/// tags.
pub(super) fn topic(exchange: &str, ordered: bool, options: &Options, names: &Names) -> Piece {
    let at_creation = if ordered { vec![Setting::flag("FifoTopic", "FIFO")] } else { Vec::new() };
    piece(Kind::Topic, exchange, ordered, at_creation, options, names)
}

fn piece(kind: Kind, name: &str, ordered: bool, at_creation: Vec<Setting>, options: &Options, names: &Names) -> Piece {
    let deduplication = Setting::flag("ContentBasedDeduplication", "content-based deduplication");
    let key = options.kms_key.clone().map(|key| Setting::new("KmsMasterKeyId", "KMS key", Value::Text(key)));
    Piece {
        kind,
        name: name.to_owned(),
        ordered,
        on_aws: names.on_aws(name, ordered),
        at_creation,
        settings: ordered.then_some(deduplication).into_iter().chain(key).collect(),
        tags: BTreeMap::from([(tag::MANAGED.to_owned(), "true".to_owned())]),
    }
}

fn tagged(mut piece: Piece, spec: &ChannelSpec) -> Piece {
    piece.tags.extend(spec.tags.clone());
    piece
}

fn subscription(spec: &ChannelSpec) -> Result<Vec<Setting>, QueueError> {
    let filter = filter_policy(&spec.filter);
    let count = match &spec.filter {
        Filter::All => 0,
        Filter::Exact(values) | Filter::Prefix(values) | Filter::Exclude(values) => values.len(),
    };
    if count > MAX_FILTER_VALUES {
        return Err(QueueError::Refused(format!(
            "channel {}: its filter has {count} values, and SNS takes {MAX_FILTER_VALUES} at most: shorten filter.values, \
             or use prefixes",
            spec.channel
        )));
    }
    let mut settings = vec![Setting::flag("RawMessageDelivery", "raw message delivery")];
    if filter.is_some() {
        settings.push(Setting::new(FILTER_SCOPE, "filter scope", Value::Text("MessageAttributes".into())));
    }
    settings.push(Setting::new("FilterPolicy", "filter", Value::Filter(filter)));
    Ok(settings)
}

fn filter_policy(filter: &Filter) -> Option<Json> {
    let conditions = match filter {
        Filter::All => return None,
        Filter::Exact(keys) => json!(keys),
        Filter::Prefix(prefixes) => prefixes.iter().map(|prefix| json!({"prefix": prefix})).collect(),
        Filter::Exclude(keys) => json!([{"anything-but": keys}]),
    };
    Some(json!({ROUTING_KEY_ATTRIBUTE: conditions}))
}

#[cfg(test)]
pub(super) mod example {
    use super::*;

    /// Returns the spec of a consumer of this channel. A message that has been received five times is dead-lettered.
    pub(in super::super) fn spec(channel: &str) -> ChannelSpec {
        ChannelSpec {
            max_receives: Some(5),
            tags: BTreeMap::from([("hostler:owner".into(), "media".into())]),
            ..ChannelSpec::new(channel.parse().unwrap())
        }
    }

    /// Returns the resources that the consumer needs. Their names have the prefix `t-`.
    pub(in super::super) fn wanted(spec: &ChannelSpec) -> Wanted {
        with(spec, &Options::default()).unwrap()
    }

    pub(in super::super) fn with(spec: &ChannelSpec, options: &Options) -> Result<Wanted, QueueError> {
        channel(spec, options, &Names::new("t-"))
    }
}

#[cfg(test)]
mod tests {
    use super::example::{spec, wanted, with};
    use super::*;

    fn said(settings: &[Setting]) -> Vec<String> {
        settings.iter().map(|setting| format!("{} {}", setting.attribute, setting.value)).collect()
    }

    #[test]
    fn a_plain_channel_is_a_queue_and_its_dead_letter_queue() {
        let lease = Duration::from_millis(29_001);
        let Wanted { dead_letters, queue, fan_out } = wanted(&ChannelSpec { lease, ..spec("orders") });
        assert_eq!(queue.title(), "queue t-orders");
        assert_eq!(said(&queue.at_creation), ["MaximumMessageSize 1.0 MiB"]);
        let redrive = "RedrivePolicy to t-orders-dlq after 5 receives";
        assert_eq!(said(&queue.settings), ["VisibilityTimeout 30s", "ReceiveMessageWaitTimeSeconds 20s", redrive]);
        let dead_letters = dead_letters.unwrap();
        assert_eq!((dead_letters.on_aws.as_str(), &dead_letters.tags), ("t-orders-dlq", &queue.tags));
        assert_eq!(said(&dead_letters.settings), ["MessageRetentionPeriod 14days"]);
        let tags = [("hostler:managed", "true"), ("hostler:owner", "media")];
        assert_eq!(queue.tags, tags.map(|(name, value)| (name.into(), value.into())).into());
        assert_eq!(fan_out, None);
    }

    #[test]
    fn a_dead_letter_queue_with_a_consumer_of_its_own_has_the_tags_of_that() {
        let tagged = |channel: &str, owner: &str| ChannelSpec {
            tags: BTreeMap::from([("hostler:owner".into(), owner.into())]),
            ..spec(channel)
        };
        let specs = [tagged("uploads.orders", "shop"), tagged("orders-dlq", "support"), tagged("stock", "store")];
        let wanted = channels(&specs, &Options::default(), &Names::new("t-")).unwrap();
        let dead_letters: Vec<_> = wanted.iter().map(|one| &one.dead_letters.as_ref().unwrap().tags).collect();
        assert_eq!(dead_letters, [&wanted[1].queue.tags, &wanted[1].queue.tags, &wanted[2].queue.tags]);
        assert_eq!(wanted[0].queue.tags["hostler:owner"], "shop");
        assert_eq!(wanted[1].queue.tags["hostler:owner"], "support");
    }

    #[test]
    fn without_a_dead_letter_queue_there_is_no_redrive() {
        let wanted = wanted(&ChannelSpec { max_receives: None, ..spec("uploads.thumbnails") });
        assert_eq!(wanted.dead_letters, None);
        assert!(said(&wanted.queue.settings).contains(&"RedrivePolicy none".into()));
        let subscription = said(&wanted.fan_out.unwrap().subscription);
        assert!(!subscription.iter().any(|setting| setting.starts_with("RedrivePolicy")), "{subscription:?}");
    }

    #[test]
    fn a_queue_whose_messages_wait_for_days_neither_drops_nor_dead_letters_them_meanwhile() {
        let settings = |channel: &str, days: u32| {
            let longest_delay = Duration::from_secs(86400) * days;
            said(&wanted(&ChannelSpec { longest_delay, ..spec(channel) }).queue.settings)
        };
        let redrive = |channel, days| settings(channel, days)[2].clone();
        assert_eq!(redrive("orders", 0), "RedrivePolicy to t-orders-dlq after 5 receives");
        assert_eq!(redrive("orders", 3), "RedrivePolicy to t-orders-dlq after 12 receives");
        let most =
            ChannelSpec { max_receives: Some(1000), longest_delay: Duration::from_secs(3 * 86400), ..spec("orders") };
        assert!(said(&wanted(&most).queue.settings)[2].ends_with("after 1000 receives"), "AWS takes no more");
        assert_eq!(settings("orders", 0).len(), 3, "without delays, its retention is its own");
        assert_eq!(settings("orders", 3)[3..], ["MessageRetentionPeriod 7days"]);
        assert_eq!(settings("orders", 13)[3..], ["MessageRetentionPeriod 14days"]);
    }

    #[test]
    fn an_ordered_channel_is_fifo_throughout() {
        let options = Options { kms_key: Some("alias/queues".into()), ..Options::default() };
        let Wanted { dead_letters, queue, fan_out } =
            with(&ChannelSpec { ordered: true, ..spec("uploads.thumbnails") }, &options).unwrap();
        let (dead_letters, topic) = (dead_letters.unwrap(), fan_out.unwrap().topic);
        for (piece, flag) in [(&dead_letters, "FifoQueue true"), (&queue, "FifoQueue true"), (&topic, "FifoTopic true")]
        {
            assert!(piece.on_aws.ends_with(".fifo"), "{}", piece.on_aws);
            assert!(said(&piece.at_creation).contains(&flag.into()), "{}", piece.on_aws);
            for setting in ["ContentBasedDeduplication true", "KmsMasterKeyId alias/queues"] {
                assert!(said(&piece.settings).contains(&setting.into()), "{} {setting}", piece.on_aws);
            }
        }
        assert_eq!(topic.tags.len(), 1, "a topic has the tags of no one consumer");
    }

    #[test]
    fn filters_become_filter_policies() {
        let policy = |filter: Filter| {
            let wanted = wanted(&ChannelSpec { filter, ..spec("uploads.thumbnails") });
            let subscription = wanted.fan_out.unwrap().subscription;
            subscription.into_iter().find_map(|setting| match setting.value {
                Value::Filter(filter) => Some(filter),
                _ => None,
            })
        };
        let keys = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(policy(Filter::All), Some(None));
        assert_eq!(policy(Filter::Exact(keys.clone())), Some(Some(json!({"routing-key": ["a", "b"]}))));
        let prefixes = json!({"routing-key": [{"prefix": "a"}, {"prefix": "b"}]});
        assert_eq!(policy(Filter::Prefix(keys.clone())), Some(Some(prefixes)));
        assert_eq!(policy(Filter::Exclude(keys)), Some(Some(json!({"routing-key": [{"anything-but": ["a", "b"]}]}))));
    }

    #[test]
    fn a_filter_beyond_what_sns_takes_is_refused() {
        let of = |count: usize| {
            let filter = Filter::Exact((0..count).map(|number| number.to_string()).collect());
            with(&ChannelSpec { filter, ..spec("uploads.thumbnails") }, &Options::default())
        };
        assert!(of(MAX_FILTER_VALUES).is_ok());
        let text = of(MAX_FILTER_VALUES + 1).unwrap_err().to_string();
        assert!(text.contains("uploads.thumbnails") && text.contains("151") && text.contains("150"), "{text}");
    }
}
