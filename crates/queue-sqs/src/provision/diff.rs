//! Computes the steps that turn the observed resources into the desired ones. The steps are in an order in which they
//! can be carried out.

use std::collections::BTreeMap;

use super::account::Account;
use super::desired::{FanOut, Kind, Piece, Wanted};
use super::observed::{Observed, PENDING, Resource, Seen};
use super::queue_policy;
use super::setting::Setting;
use hostler_queue::{Action, Change, tag};

/// One step, which usually makes one change to a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step<'a> {
    /// Human-readable description of the change.
    pub(super) change: Change,
    pub(super) act: Act<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act<'a> {
    /// Changes nothing.
    Leave,
    Create(&'a Piece),
    Set {
        kind: Kind,
        address: String,
        attribute: &'static str,
        value: String,
    },
    Tag {
        kind: Kind,
        address: String,
        tags: BTreeMap<String, String>,
    },
    Untag {
        kind: Kind,
        address: String,
        names: Vec<String>,
    },
    /// Lets the topic send to the queue.
    Admit {
        queue: &'a Piece,
        topic: &'a Piece,
    },
    Subscribe {
        queue: &'a Piece,
        topic: &'a Piece,
        settings: &'a [Setting],
    },
}

/// Prefix of hostler's own tags. If a tag with this prefix is no longer desired, it is removed.
const OUR_TAGS: &str = "hostler:";

/// Explanation for a resource that hostler does not tag, because others have created it. `hostler clean` could later
/// delete a tagged resource.
const NOT_TAGGED: &str = "not tagged, as it was there before and has no tag of hostler's; `alarms` and `clean` pass it over \
                          (tag it hostler:managed=true to hand it over)";

/// Attribute of a dead-letter queue that lists the queues allowed to use it. Without this attribute, all queues may use
/// the dead-letter queue. hostler does not set the attribute for its own queues, because not every stand-in for SQS
/// stores it.
const REDRIVE_ALLOW_POLICY: &str = "RedriveAllowPolicy";

/// Returns all steps. There are no steps for a resource that hostler has no permission to read.
pub(super) fn steps<'a>(wanted: &'a Wanted, observed: &Observed) -> Vec<Step<'a>> {
    let account = observed.account();
    let account = account.as_ref();
    let mut steps = Vec::new();
    if let Some(piece) = &wanted.dead_letters {
        steps.extend(of_piece(piece, &observed.dead_letters, account));
        steps.extend(opening(piece, &observed.dead_letters, &wanted.queue, account));
    }
    steps.extend(of_piece(&wanted.queue, &observed.queue, account));
    if let Some(fan_out) = &wanted.fan_out {
        steps.extend(of_piece(&fan_out.topic, &observed.topic, account));
        let queues = [(wanted.dead_letters.as_ref(), &observed.dead_letters), (Some(&wanted.queue), &observed.queue)];
        for (piece, seen) in queues {
            steps.extend(piece.and_then(|piece| admission(piece, seen, &fan_out.topic, account)));
        }
        steps.extend(of_subscription(wanted, fan_out, &observed.subscription, account));
    }
    steps
}

/// Returns the steps that create missing resources. Existing resources stay unchanged, with one exception: if the
/// subscription is missing, the policies of existing queues are changed too, so that the topic may send to them. The
/// subscription is created last, so a missing one means that an earlier creation was interrupted.
pub(super) fn creations<'a>(wanted: &'a Wanted, observed: &Observed) -> Vec<Step<'a>> {
    let incomplete = observed.subscription.is_missing();
    let is_new = |queue: &Piece| {
        if queue == &wanted.queue { observed.queue.is_missing() } else { observed.dead_letters.is_missing() }
    };
    let mut steps = steps(wanted, observed);
    steps.retain(|step| match step.act {
        Act::Create(_) | Act::Subscribe { .. } => true,
        Act::Admit { queue, .. } => incomplete || is_new(queue),
        Act::Leave | Act::Set { .. } | Act::Tag { .. } | Act::Untag { .. } => false,
    });
    steps
}

fn of_piece<'a>(piece: &'a Piece, seen: &Seen<Resource>, account: Option<&Account>) -> Vec<Step<'a>> {
    match (seen, account) {
        (Seen::Missing, _) => {
            let details = piece.at_creation.iter().chain(&piece.settings);
            vec![Step { change: creation(piece.title(), details), act: Act::Create(piece) }]
        }
        (Seen::There(resource), Some(account)) => {
            let mut steps = settings(piece.kind, &piece.title(), &piece.settings, resource, account);
            steps.extend(tags(piece, resource));
            steps
        }
        _ => Vec::new(),
    }
}

fn creation<'a>(resource: String, settings: impl Iterator<Item = &'a Setting>) -> Change {
    let details = settings.filter(|setting| !setting.goes_without_saying());
    let details: Vec<_> = details.map(|setting| format!("{} {}", setting.label, setting.value)).collect();
    Change { action: Action::Create, resource, detail: details.join(", ") }
}

fn settings<'a>(
    kind: Kind,
    title: &str,
    settings: &[Setting],
    resource: &Resource,
    account: &Account,
) -> Vec<Step<'a>> {
    let differing = settings.iter().filter_map(|setting| {
        let difference = setting.difference(resource.get(setting.attribute), account)?;
        let detail = format!("{}: {} → {}", setting.label, difference.seen, difference.wanted);
        let (address, value) = (resource.address.clone(), setting.text(Some(account))?);
        let act = Act::Set { kind, address, attribute: setting.attribute, value };
        Some(Step { change: Change::update(title.to_owned(), detail), act })
    });
    differing.collect()
}

fn tags<'a>(piece: &Piece, resource: &Resource) -> Vec<Step<'a>> {
    if !tag::is_owned(&resource.tags) {
        let change = Change::leave(piece.title(), NOT_TAGGED.to_owned());
        return vec![Step { change, act: Act::Leave }];
    }
    let differing = piece.tags.iter().filter(|(name, value)| resource.tags.get(*name) != Some(value));
    let tags: BTreeMap<_, _> = differing.map(|(name, value)| (name.clone(), value.clone())).collect();
    // Consumers of other configs may use the topic too. Therefore, tags of a topic are not removed.
    let unwanted = resource
        .tags
        .keys()
        .filter(|name| piece.kind == Kind::Queue && name.starts_with(OUR_TAGS) && !piece.tags.contains_key(*name));
    let unwanted: Vec<_> = unwanted.cloned().collect();
    let (kind, address) = (piece.kind, &resource.address);
    let step = |detail: String, act| Step { change: Change::update(piece.title(), detail), act };
    let mut steps = Vec::new();
    if !tags.is_empty() {
        let words: Vec<_> = tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        steps.push(step(format!("tags: {}", words.join(", ")), Act::Tag { kind, address: address.clone(), tags }));
    }
    if !unwanted.is_empty() {
        let detail = format!("tags no longer wanted: {}", unwanted.join(", "));
        steps.push(step(detail, Act::Untag { kind, address: address.clone(), names: unwanted }));
    }
    steps
}

/// Returns the step that lets the queue `source` use the dead-letter queue `piece`. `None`: the policy of the
/// dead-letter queue already allows it, or one of the resources does not exist yet.
fn opening<'a>(piece: &Piece, seen: &Seen<Resource>, source: &Piece, account: Option<&Account>) -> Option<Step<'a>> {
    let resource = seen.there()?;
    let policy = queue_policy::opened(resource.get(REDRIVE_ALLOW_POLICY), &account?.queue(&source.on_aws))?;
    let (address, value) = (resource.address.clone(), policy.to_string());
    Some(Step {
        change: Change::update(piece.title(), format!("redrive allowed: from {}", source.on_aws)),
        act: Act::Set { kind: Kind::Queue, address, attribute: REDRIVE_ALLOW_POLICY, value },
    })
}

fn admission<'a>(
    queue: &'a Piece,
    seen: &Seen<Resource>,
    topic: &'a Piece,
    account: Option<&Account>,
) -> Option<Step<'a>> {
    let admitted = match (seen, account) {
        (Seen::There(resource), Some(account)) => {
            queue_policy::admits(resource.get("Policy"), &resource.arn, &account.topic(&topic.on_aws))
        }
        (Seen::Missing, _) => false,
        _ => true,
    };
    let change = Change {
        action: Action::Create,
        resource: format!("policy of {}", queue.title()),
        detail: format!("{} may send to it", topic.title()),
    };
    (!admitted).then_some(Step { change, act: Act::Admit { queue, topic } })
}

fn of_subscription<'a>(
    wanted: &'a Wanted,
    fan_out: &'a FanOut,
    seen: &Seen<Resource>,
    account: Option<&Account>,
) -> Vec<Step<'a>> {
    let (queue, topic, wanted) = (&wanted.queue, &fan_out.topic, &fan_out.subscription);
    let title = format!("{} of {} to {}", Kind::Subscription.name(), queue.on_aws, topic.on_aws);
    match (seen, account) {
        (Seen::Missing, _) => {
            let act = Act::Subscribe { queue, topic, settings: wanted };
            vec![Step { change: creation(title, wanted.iter()), act }]
        }
        // A subscription that is not confirmed yet cannot be changed.
        (Seen::There(resource), Some(account)) if resource.get(PENDING) != Some("true") => {
            settings(Kind::Subscription, &title, wanted, resource, account)
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired::example::{spec, wanted};
    use super::super::observed::example::{nothing, whole};
    use super::*;
    use hostler_queue::ChannelSpec;
    use hostler_types::channel::Filter;

    fn changes(steps: &[Step<'_>]) -> Vec<String> {
        steps.iter().map(|step| step.change.to_string()).collect()
    }

    fn fanned() -> Wanted {
        wanted(&ChannelSpec { filter: Filter::Prefix(vec!["MOBILE.".into()]), ..spec("uploads.thumbnails") })
    }

    /// Applies `drift` to resources in the desired state, and returns descriptions of the steps that restore them.
    fn after(wanted: &Wanted, drift: impl FnOnce(&mut Observed)) -> Vec<String> {
        let mut observed = whole(wanted);
        drift(&mut observed);
        changes(&steps(wanted, &observed))
    }

    #[test]
    fn what_is_whole_takes_no_step() {
        let ordered = wanted(&ChannelSpec { ordered: true, ..spec("uploads.thumbnails") });
        let single = wanted(&ChannelSpec { max_receives: None, ..spec("orders") });
        for wanted in [fanned(), wanted(&spec("orders")), ordered, single] {
            assert_eq!(steps(&wanted, &whole(&wanted)), []);
            assert_eq!(creations(&wanted, &whole(&wanted)), []);
        }
    }

    #[test]
    fn out_of_nothing_comes_everything_and_in_order() {
        let all = [
            "+ queue t-thumbnails-dlq: largest message 1.0 MiB, retention 14days",
            "+ queue t-thumbnails: largest message 1.0 MiB, visibility timeout 30s, receive wait 20s, redrive to \
             t-thumbnails-dlq after 5 receives",
            "+ topic t-uploads",
            "+ policy of queue t-thumbnails-dlq: topic t-uploads may send to it",
            "+ policy of queue t-thumbnails: topic t-uploads may send to it",
            "+ subscription of t-thumbnails to t-uploads: raw message delivery true, filter scope MessageAttributes, filter \
             {\"routing-key\":[{\"prefix\":\"MOBILE.\"}]}, redrive to t-thumbnails-dlq",
        ];
        let wanted = fanned();
        assert_eq!(changes(&steps(&wanted, &nothing())), all);
        assert_eq!(changes(&creations(&wanted, &nothing())), all);
    }

    #[test]
    fn what_was_interrupted_goes_on() {
        let wanted = fanned();
        let mut observed = whole(&wanted);
        observed.subscription = Seen::Missing;
        observed.queue.set("Policy", "");
        observed.queue.set("VisibilityTimeout", "1");
        let created = changes(&creations(&wanted, &observed));
        assert!(created[0].starts_with("+ policy of queue t-thumbnails:"), "{created:?}");
        assert!(created[1].starts_with("+ subscription"), "{created:?}");
        assert_eq!(created.len(), 2);
        // If the subscription exists, a queue policy without the statement counts as intended, unless the queue is new.
        let mut observed = whole(&wanted);
        observed.dead_letters = Seen::Missing;
        let created = changes(&creations(&wanted, &observed));
        assert!(created[0].starts_with("+ queue t-thumbnails-dlq:"), "{created:?}");
        assert!(created[1].starts_with("+ policy of queue t-thumbnails-dlq:"), "{created:?}");
        let mut observed = whole(&wanted);
        observed.queue.set("Policy", "");
        assert_eq!(creations(&wanted, &observed), []);
        assert_eq!(changes(&steps(&wanted, &observed)).len(), 1);
    }

    #[test]
    fn drift_is_told_with_what_was_and_what_will_be() {
        let wanted = fanned();
        let drift = |drift: fn(&mut Observed)| after(&wanted, drift);
        assert_eq!(
            drift(|seen| seen.queue.set("VisibilityTimeout", "45")),
            ["~ queue t-thumbnails: visibility timeout: 45s → 30s"]
        );
        assert_eq!(
            drift(|seen| seen.queue.set("RedrivePolicy", "")),
            ["~ queue t-thumbnails: redrive: none → to t-thumbnails-dlq after 5 receives"]
        );
        assert_eq!(
            drift(|seen| seen.dead_letters.set("MessageRetentionPeriod", "345600")),
            ["~ queue t-thumbnails-dlq: retention: 4days → 14days"]
        );
        assert_eq!(
            drift(|seen| seen.subscription.set("FilterPolicy", "{}")),
            [
                "~ subscription of t-thumbnails to t-uploads: filter: none → {\"routing-key\":[{\"prefix\":\"MOBILE.\"}]}"
            ]
        );
        assert_eq!(
            drift(|seen| seen.dead_letters.set("RedriveAllowPolicy", r#"{"redrivePermission":"denyAll"}"#)),
            ["~ queue t-thumbnails-dlq: redrive allowed: from t-thumbnails"]
        );
        assert_eq!(drift(|seen| seen.queue.set("MessageRetentionPeriod", "60")), [""; 0]);
        assert_eq!(drift(|seen| seen.queue.set("MaximumMessageSize", "1024")), [""; 0]);
    }

    #[test]
    fn a_longer_retention_is_never_shortened() {
        let longest_delay = std::time::Duration::from_secs(86400);
        let wanted = wanted(&ChannelSpec { longest_delay, ..spec("orders") });
        let of = |seconds: &'static str| after(&wanted, |seen| seen.queue.set("MessageRetentionPeriod", seconds));
        assert_eq!(of("345600"), ["~ queue t-orders: retention: 4days → 5days"]);
        assert_eq!(of("432000"), [""; 0]);
        assert_eq!(of("1209600"), [""; 0], "SQS would delete what is older");
    }

    #[test]
    fn high_throughput_is_turned_on_and_off_in_the_order_that_sqs_takes() {
        let ordered = |high_throughput| wanted(&ChannelSpec { ordered: true, high_throughput, ..spec("orders") });
        let (high, low, any) = (ordered(Some(true)), ordered(Some(false)), ordered(None));
        let of_queue = |changes: Vec<String>| {
            let of_queue =
                changes.into_iter().filter_map(|line| Some(line.strip_prefix("~ queue t-orders.fifo: ")?.to_owned()));
            of_queue.collect::<Vec<_>>()
        };
        let raised = of_queue(changes(&steps(&high, &whole(&any))));
        let expected = ["deduplication scope: queue → messageGroup", "throughput limit: perQueue → perMessageGroupId"];
        assert_eq!(raised, expected);
        let lowered = of_queue(changes(&steps(&low, &whole(&high))));
        let expected = ["throughput limit: perMessageGroupId → perQueue", "deduplication scope: messageGroup → queue"];
        assert_eq!(lowered, expected);
        assert_eq!((steps(&any, &whole(&high)), steps(&low, &whole(&any))), (Vec::new(), Vec::new()));
        let standard = wanted(&ChannelSpec { high_throughput: Some(true), ..spec("orders") });
        assert_eq!(standard.queue, wanted(&spec("orders")).queue);
    }

    #[test]
    fn our_tags_are_kept_and_other_peoples_left() {
        let wanted = fanned();
        let changed = after(&wanted, |seen| {
            let tags = &mut seen.queue.get_mut().tags;
            tags.extend(
                [("team", "x"), ("hostler:owner", "?"), ("hostler:former", "1")].map(|(a, b)| (a.into(), b.into())),
            );
            seen.topic.get_mut().tags.insert("hostler:owner".into(), "another config".into());
        });
        let title = "~ queue t-thumbnails:";
        let expected =
            [format!("{title} tags: hostler:owner=media"), format!("{title} tags no longer wanted: hostler:former")];
        assert_eq!(changed, expected);
    }

    #[test]
    fn what_others_have_made_is_not_claimed() {
        let wanted = fanned();
        let changed = after(&wanted, |seen| {
            let foreign = [("team", "x"), ("hostler:managed", "false")].map(|(a, b)| (a.to_owned(), b.to_owned()));
            seen.queue.get_mut().tags = foreign.clone().into();
            seen.topic.get_mut().tags = foreign.into();
            seen.queue.set("VisibilityTimeout", "45");
        });
        let [timeout, queue, topic] = &changed[..] else { panic!("{changed:?}") };
        assert_eq!(timeout, "~ queue t-thumbnails: visibility timeout: 45s → 30s");
        assert!(queue.starts_with("= queue t-thumbnails: not tagged, as it was there before"), "{queue}");
        assert!(topic.starts_with("= topic t-uploads: not tagged"), "{topic}");
    }

    #[test]
    fn a_redrive_that_is_not_wanted_is_taken_away() {
        let spec = ChannelSpec { max_receives: None, ..spec("orders") };
        let policy = r#"{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:x","maxReceiveCount":3}"#;
        let wanted = wanted(&spec);
        let mut observed = whole(&wanted);
        observed.queue.set("RedrivePolicy", policy);
        let steps = steps(&wanted, &observed);
        assert_eq!(changes(&steps), ["~ queue t-orders: redrive: to x after 3 receives → none"]);
        assert!(matches!(&steps[0].act, Act::Set { attribute: "RedrivePolicy", value, .. } if value.is_empty()));
    }

    #[test]
    fn a_subscription_that_nobody_confirmed_is_left() {
        let wanted = fanned();
        let changed = after(&wanted, |seen| {
            seen.subscription.set("PendingConfirmation", "true");
            seen.subscription.set("RawMessageDelivery", "false");
        });
        assert_eq!(changed, [""; 0]);
    }
}
