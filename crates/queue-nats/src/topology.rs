//! Streams and consumers as hostler configures them, and how others differ. No I/O.

use std::time::Duration;

use hostler_queue::{ChannelSpec, Finding};
use hostler_types::channel::Filter;
use hostler_types::message::MAX_DELAY;
use serde_json::{Value, json};

use super::names::{CONSUMER, Names, key_tokens};

/// Time after which the server delivers a message again, beyond the lease of the consumer. The driver ends leases by its own
/// clock, and returns the messages itself; the server's timer is for a host that is gone.
pub(crate) const AFTER_LEASE: Duration = Duration::from_secs(2);

/// Time after which the server delivers a message of an exchange again that was not forwarded to its queue. Well within the window
/// in which it drops duplicates.
const FORWARDING: Duration = Duration::from_secs(30);

/// Messages of an exchange that may be on their way to a queue. One if the order counts.
const FORWARDED_AT_ONCE: i64 = 512;

/// Time for which a note about a message is kept: longer than any message waits.
const NOTED: Duration = MAX_DELAY.saturating_add(Duration::from_secs(17 * 86_400));

/// Settings that streams of one installation share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Common {
    pub(crate) replicas: u32,
    pub(crate) dedupe_window: Duration,
}

impl Common {
    fn stream(self, name: &str, what: &str, subjects: &[String], retention: &str) -> Value {
        json!({
            "name": name,
            "description": what,
            "subjects": subjects,
            "retention": retention,
            "storage": "file",
            "num_replicas": self.replicas,
            "duplicate_window": nanos(self.dedupe_window),
            "allow_direct": true,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "max_msgs_per_subject": -1,
            "discard": "new",
        })
    }

    /// Returns the stream of a queue.
    pub(crate) fn queue(self, names: &Names, queue: &str) -> Value {
        self.stream(&names.queue(queue), "Queue of hostler", &names.queue_subjects(queue), "workqueue")
    }

    /// Returns the stream of an exchange.
    pub(crate) fn exchange(self, names: &Names, exchange: &str) -> Value {
        let subjects = [names.exchange_subjects(exchange)];
        self.stream(&names.exchange(exchange), "Exchange of hostler", &subjects, "interest")
    }

    /// Returns the stream with notes about messages.
    pub(crate) fn notes(self, names: &Names) -> Value {
        let mut stream =
            self.stream(&names.notes(), "Notes of hostler about messages", &[names.note_subjects()], "limits");
        stream["max_msgs_per_subject"] = json!(1);
        stream["max_age"] = json!(nanos(NOTED));
        stream["discard"] = json!("old");
        stream
    }

    /// Returns the stream with the states of schedules.
    pub(crate) fn schedules(self, names: &Names) -> Value {
        let subjects = [names.schedule_subjects()];
        let mut stream = self.stream(&names.schedules(), "States of schedules of hostler", &subjects, "limits");
        stream["max_msgs_per_subject"] = json!(1);
        stream["discard"] = json!("old");
        stream
    }
}

/// Returns the consumer that all receivers of a queue share.
pub(crate) fn receiver(lease: Duration) -> Value {
    json!({
        "durable_name": CONSUMER,
        "description": "Receivers of hostler",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": nanos(lease.saturating_add(AFTER_LEASE)),
        // A message that was delivered too often would be lost, and one that waits would stop all others.
        "max_deliver": -1,
        "max_ack_pending": -1,
        "replay_policy": "instant",
    })
}

/// Lets a longer timer of the server stay: another host may depend on it.
pub(crate) fn keep_longer_timer(wanted: &mut Value, found: &Value) {
    if let (Some(timer), Some(longer)) = (wanted["ack_wait"].as_u64(), found["ack_wait"].as_u64())
        && longer > timer
    {
        wanted["ack_wait"] = json!(longer);
    }
}

/// Returns the consumer of an exchange's stream that feeds a queue. `filters`: the server knows filters with several subjects.
/// Without them, all messages come, and the driver applies the filter.
pub(crate) fn feeder(names: &Names, spec: &ChannelSpec, exchange: &str, filters: bool) -> Value {
    let subjects =
        if filters { filter_subjects(names, exchange, &spec.filter) } else { vec![names.exchange_subjects(exchange)] };
    json!({
        "durable_name": spec.channel.queue(),
        "description": "Feeds a queue of hostler",
        "deliver_policy": "new",
        "ack_policy": "explicit",
        "ack_wait": nanos(FORWARDING),
        "max_deliver": -1,
        "max_ack_pending": if spec.ordered { 1 } else { FORWARDED_AT_ONCE },
        "replay_policy": "instant",
        "filter_subjects": subjects,
    })
}

/// Returns subjects that let at least the messages of a filter pass. No subject contains another, which the server would refuse.
/// Another client may write a key in another way, unless each of its characters stands for itself.
pub(crate) fn filter_subjects(names: &Names, exchange: &str, filter: &Filter) -> Vec<String> {
    let everything = || vec![names.exchange_subjects(exchange)];
    let mut subjects = match filter {
        Filter::Exact(keys) if keys.iter().all(|key| key_tokens(key) == *key) => {
            keys.iter().map(|key| names.published(exchange, Some(key))).collect()
        }
        Filter::Prefix(prefixes) if prefixes.iter().all(|prefix| is_whole(prefix)) => {
            prefixes.iter().map(|prefix| names.published_below(exchange, prefix)).collect()
        }
        Filter::All | Filter::Exact(_) | Filter::Exclude(_) | Filter::Prefix(_) => everything(),
    };
    subjects.sort();
    subjects.dedup();
    let all = subjects.clone();
    subjects.retain(|subject| !all.iter().any(|other| other != subject && covers(other, subject)));
    if subjects.is_empty() { everything() } else { subjects }
}

/// Returns `true` if a prefix consists of whole tokens, whose characters stand for themselves.
fn is_whole(prefix: &str) -> bool {
    let tokens = prefix.strip_suffix('.');
    tokens.is_some_and(|tokens| !tokens.is_empty() && !tokens.ends_with('.') && key_tokens(tokens) == tokens)
}

/// Returns `true` if the pattern matches all subjects that the other matches.
fn covers(pattern: &str, other: &str) -> bool {
    let (mut ours, mut theirs) = (pattern.split('.'), other.split('.'));
    loop {
        match (ours.next(), theirs.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(token), Some(same)) if token == same => {}
            _ => return false,
        }
    }
}

/// Returns the subjects of a consumer's filter, as the server tells them: one by an older name, and none for everything.
fn filter_of(found: &Value) -> Vec<&str> {
    let one = found["filter_subject"].as_str().filter(|subject| !subject.is_empty());
    let several = found["filter_subjects"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut subjects: Vec<_> = one.into_iter().chain(several).collect();
    subjects.sort_unstable();
    if subjects.is_empty() { vec![">"] } else { subjects }
}

/// Returns `true` if a consumer gets all messages of the filter.
fn is_covered(wanted: &Value, found: &Value) -> bool {
    let found = filter_of(found);
    filter_of(wanted).iter().all(|subject| found.iter().any(|pattern| covers(pattern, subject)))
}

/// Difference between a stream or consumer and hostler's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Drift {
    /// Difference, for example `allow_direct: false → true`.
    pub(crate) text: String,
    /// Set if hostler cannot work with it.
    pub(crate) fatal: bool,
}

/// Settings with which hostler cannot work, if they differ.
const FATAL: [&str; 6] =
    ["retention", "subjects", "ack_policy", "max_deliver", "deliver_policy", "max_msgs_per_subject"];
/// Settings that an operator may choose.
pub(crate) const FREE: [&str; 9] = [
    "name",
    "description",
    "durable_name",
    "storage",
    "discard",
    "max_consumers",
    "max_msgs",
    "max_bytes",
    "max_msg_size",
];

/// Returns the differences. `found`: the configuration as the server tells it. `strict`: settings with which hostler cannot work
/// here, if they differ.
pub(crate) fn drift(wanted: &Value, found: &Value, strict: &[&str]) -> Vec<Drift> {
    let settings = wanted.as_object().into_iter().flatten();
    let differ = settings.filter(|(name, wanted)| !FREE.contains(&name.as_str()) && !is_alike(name, wanted, found));
    let drift = |(name, setting): (&String, &Value)| Drift {
        text: format!("{name}: {} → {}", shown(name, told(name, found)), shown(name, setting)),
        fatal: match name.as_str() {
            // The driver applies the filter too.
            "filter_subjects" => !is_covered(wanted, found),
            name => FATAL.contains(&name) || strict.contains(&name),
        },
    };
    let mut drifts: Vec<_> = differ.map(drift).collect();
    drifts.sort_by(|one, other| one.text.cmp(&other.text));
    drifts
}

fn is_alike(name: &str, wanted: &Value, found: &Value) -> bool {
    let of = &found[name];
    match name {
        // Further subjects of an operator do no harm.
        "subjects" => wanted
            .as_array()
            .into_iter()
            .flatten()
            .all(|subject| of.as_array().is_some_and(|found| found.contains(subject))),
        "filter_subjects" => {
            let (wanted, found) = (filter_of_setting(wanted), filter_of(found));
            // No filter at all is that of an exchange.
            found == wanted || found == [">"] && wanted.iter().all(|subject| is_everything(subject))
        }
        // A missing number is the default.
        _ if wanted.is_i64() || wanted.is_u64() => {
            let default = if name == "max_age" { 0 } else { -1 };
            of.as_i64().unwrap_or(default) == wanted.as_i64().unwrap_or_default()
        }
        _ => wanted == of,
    }
}

fn filter_of_setting(wanted: &Value) -> Vec<&str> {
    let mut subjects: Vec<_> = wanted.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    subjects.sort_unstable();
    subjects
}

/// Returns `true` for the pattern of all messages to an exchange, whose name is one token.
fn is_everything(pattern: &str) -> bool {
    pattern.strip_suffix(".>").is_some_and(|exchange| !exchange.contains('.'))
}

/// Returns a setting as the server tells it.
fn told<'a>(name: &str, found: &'a Value) -> &'a Value {
    let is_one = name == "filter_subjects" && found["filter_subject"].as_str().is_some_and(|one| !one.is_empty());
    if is_one { &found["filter_subject"] } else { &found[name] }
}

fn shown(name: &str, value: &Value) -> String {
    let is_time = ["ack_wait", "max_age", "duplicate_window"].contains(&name);
    match value.as_u64().filter(|_| is_time) {
        Some(nanos) => humantime::format_duration(Duration::from_nanos(nanos)).to_string(),
        None if value.is_null() => "unset".to_owned(),
        None => value.to_string(),
    }
}

/// Returns the findings about a stream or consumer that differs.
pub(crate) fn findings(what: &str, drift: &[Drift]) -> Vec<Finding> {
    let finding = |drift: &Drift| Finding {
        fault: format!("the {what} is not as hostler configures it: {}", drift.text),
        cure: "run `hostler provision`, which changes what the server lets it change".to_owned(),
        fatal: drift.fatal,
    };
    drift.iter().map(finding).collect()
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(filter: Filter) -> ChannelSpec {
        ChannelSpec { filter, ..ChannelSpec::new("shop.jobs".parse().unwrap()) }
    }

    #[test]
    fn filters_become_subjects_that_do_not_overlap() {
        let of = |filter: Filter| filter_subjects(&Names::new("p-"), "shop", &filter);
        let list = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(of(Filter::All), ["p-shop.>"]);
        assert_eq!(of(Filter::Exact(list(&["EU.order", "a", "EU.order"]))), ["p-shop.EU.order", "p-shop.a"]);
        assert_eq!(of(Filter::Prefix(list(&["EU.west.", "EU.", "US."]))), ["p-shop.EU.>", "p-shop.US.>"]);
        for loose in [
            Filter::Prefix(list(&["EU.", "U"])),
            Filter::Prefix(list(&["EU.."])),
            Filter::Exclude(list(&["x"])),
            Filter::Exact(list(&["a", "clé"])),
            Filter::Prefix(list(&["a b."])),
        ] {
            assert_eq!(of(loose), ["p-shop.>"]);
        }
    }

    fn feeder_of(keys: &[&str], filters: bool) -> Value {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        feeder(&Names::new(""), &spec(Filter::Exact(keys)), "shop", filters)
    }

    #[test]
    fn what_a_server_drops_is_a_difference() {
        let wanted = feeder_of(&["a"], true);
        let mut told = wanted.clone();
        assert_eq!(drift(&wanted, &told, &[]), []);
        told["filter_subjects"] = Value::Null;
        assert_eq!(
            drift(&wanted, &told, &[]),
            [Drift { text: "filter_subjects: unset → [\"shop.a\"]".to_owned(), fatal: false }]
        );
        told["filter_subject"] = json!("shop.a");
        assert_eq!(drift(&wanted, &told, &[]), [], "servers may tell one subject by its older name");
        let older = feeder_of(&["a"], false);
        told["filter_subject"] = Value::Null;
        assert_eq!(drift(&older, &told, &[]), [], "an older server sends everything");
    }

    /// The driver drops what comes too much, but does not miss what does not come.
    #[test]
    fn a_subscription_that_does_not_get_all_is_not_used() {
        let is_fatal = |wanted: &Value, filter: Value| {
            let mut told = wanted.clone();
            told["filter_subjects"] = filter;
            drift(wanted, &told, &[]).iter().any(|drift| drift.fatal)
        };
        let wanted = feeder_of(&["a.b", "c"], true);
        for enough in
            [json!(["shop.>"]), json!(["shop.a.*", "shop.c", "shop.d"]), json!(["shop.a.>", "shop.*"]), Value::Null]
        {
            assert!(!is_fatal(&wanted, enough.clone()), "{enough}");
        }
        for less in [json!(["shop.c"]), json!(["shop.a", "shop.c"]), json!(["shop.a.b.>", "shop.c"]), json!(["shop.*"])]
        {
            assert!(is_fatal(&wanted, less.clone()), "{less}");
        }
        assert!(is_fatal(&feeder_of(&["a"], false), json!(["shop.a"])), "of an older server, everything is wanted");
        let mut told = wanted.clone();
        told["max_ack_pending"] = json!(9);
        assert!(!drift(&wanted, &told, &[])[0].fatal);
        assert!(drift(&wanted, &told, &["max_ack_pending"])[0].fatal, "the order would be lost");
    }

    #[test]
    fn a_longer_timer_of_another_host_stays() {
        let minute = Duration::from_secs(60);
        let mut wanted = receiver(minute);
        keep_longer_timer(&mut wanted, &receiver(minute / 2));
        assert_eq!(wanted, receiver(minute));
        keep_longer_timer(&mut wanted, &receiver(2 * minute));
        assert_eq!(wanted["ack_wait"], receiver(2 * minute)["ack_wait"]);
    }

    #[test]
    fn an_operators_own_settings_are_no_difference() {
        let common = Common { replicas: 3, dedupe_window: Duration::from_secs(300) };
        let wanted = common.queue(&Names::new(""), "jobs");
        let mut found = wanted.clone();
        found["storage"] = json!("memory");
        found["subjects"].as_array_mut().unwrap().push(json!("other"));
        assert_eq!(drift(&wanted, &found, &[]), []);
        found["num_replicas"] = json!(1);
        found["max_age"] = json!(1_000_000_000);
        found["retention"] = json!("limits");
        let texts: Vec<_> = drift(&wanted, &found, &[]).into_iter().map(|drift| (drift.text, drift.fatal)).collect();
        let expected = [
            ("max_age: 1s → 0s", false),
            ("num_replicas: 1 → 3", false),
            ("retention: \"limits\" → \"workqueue\"", true),
        ];
        assert_eq!(texts, expected.map(|(text, fatal)| (text.to_owned(), fatal)));
    }
}
