//! Checks the keys by which a consumer receives from something else than a channel: a subject of NATS, or the job service.

use super::{Section, problem};
use crate::choice::Fanout;
use crate::error::Problem;
use crate::grants::Token;

/// Keys that make no sense with `subject`, each with the reason.
const WITHOUT_A_STREAM: [(&str, &str); 9] = [
    ("channel", "the requests of a subject take the place of a channel's messages"),
    ("ordered", "requests have no order"),
    ("high_throughput", "requests are in no queue"),
    ("dead_letter", "a request that would be dead-lettered is answered `+TERM`, and its sender keeps it"),
    ("longest_delay", "the sender delays its requests itself"),
    ("filter.type", "the subject is the filter"),
    ("filter.values", "the subject is the filter"),
    ("tags.alarm_threshold", "requests are in no queue that could grow"),
    ("tags.dead_letter_alarm_threshold", "requests have no dead-letter queue"),
];

/// Checks that a subject is on NATS, and that no key is set that only a queue has.
pub(super) fn subject(at: &Section<'_>, on_nats: bool) -> Vec<Problem> {
    if !at.is_set("subject") {
        let group = at.is_set("queue_group").then(|| {
            let fault = format!("{} is not set, so this key has no effect", at.path("subject"));
            problem(at, "queue_group", fault, "set `subject`, or remove `queue_group`".to_owned())
        });
        return group.into_iter().collect();
    }
    let elsewhere = (!on_nats).then(|| {
        let fault = "only NATS has subjects".to_owned();
        problem(
            at,
            "subject",
            fault,
            "set queue.driver = \"nats\", or write `channel` in place of `subject`".to_owned(),
        )
    });
    let of_a_queue = WITHOUT_A_STREAM.into_iter().filter(|(key, _)| at.is_set(key)).map(|(key, why)| {
        let fault = format!("{} is set, and {why}", at.path("subject"));
        let cure = match key {
            "channel" => "remove one of the two".to_owned(),
            _ => format!("remove `{key}`, or write `channel` in place of `subject`"),
        };
        problem(at, key, fault, cure)
    });
    elsewhere.into_iter().chain(of_a_queue).collect()
}

/// Checks that a guest may send to subjects only on NATS.
pub(super) fn subjects(at: &Section<'_>, on_nats: bool) -> Option<Problem> {
    let is_idle = on_nats || at.get::<Vec<String>>("allow.subjects")?.is_empty();
    (!is_idle).then(|| {
        let cure = "set queue.driver = \"nats\", or remove `allow.subjects`".to_owned();
        problem(at, "allow.subjects", "only NATS has subjects".to_owned(), cure)
    })
}

/// Keys that make no sense with `job`, each with the reason.
const WITHOUT_A_QUEUE: [(&str, &str); 20] = [
    ("channel", "the items of jobs take the place of a channel's messages"),
    ("subject", "the items of jobs take the place of a subject's requests"),
    ("ordered", "the items of one `serialize_key` are in order anyway"),
    ("high_throughput", "items are in no queue"),
    ("lease", "the job service sets the lease by `jobs.heartbeat`"),
    ("longest_delay", "the job service delays items itself"),
    ("batch.max", "each item is processed by itself"),
    ("reply_channel", "a reply is the result of the item"),
    ("dead_letter", "an item that fails for good stays with its job, which `hostler jobs retry` tries again"),
    ("retry.requeues", RETRIES),
    ("retry.requeue_delay", RETRIES),
    ("retry.delays", RETRIES),
    ("retry.delay", RETRIES),
    ("retry.max_delay", RETRIES),
    ("filter.type", "the type is the filter"),
    ("filter.values", "the type is the filter"),
    ("tags.owner", "items are in no queue that could have tags"),
    ("tags.critical", "items are in no queue that could have tags"),
    ("tags.alarm_threshold", "items are in no queue that could grow"),
    ("tags.dead_letter_alarm_threshold", "items have no dead-letter queue"),
];

const RETRIES: &str = "the job service decides about retries, by `max_failures_per_item` of the job";

/// Checks that no key is set that only a queue has, if the consumer processes the items of jobs.
pub(super) fn job(at: &Section<'_>) -> Vec<Problem> {
    if !at.is_set("job") {
        return Vec::new();
    }
    let of_a_queue = WITHOUT_A_QUEUE.into_iter().filter(|(key, _)| at.is_set(key)).map(|(key, why)| {
        let fault = format!("{} is set, and {why}", at.path("job"));
        let cure = match key {
            "channel" | "subject" => "remove one of the two".to_owned(),
            _ => format!("remove `{key}`, or write `channel` in place of `job`"),
        };
        problem(at, key, fault, cure)
    });
    of_a_queue.collect()
}

/// Checks that the address of RabbitMQ is given exactly if the fan-out of jobs needs it.
pub(super) fn fanout(root: &Section<'_>) -> Option<Problem> {
    // A faulty one has been reported.
    let fanout: Fanout = root.get("jobs.fanout")?;
    match (fanout, root.is_set("jobs.rabbitmq")) {
        (Fanout::RabbitMq, false) => {
            let fault = "jobs.fanout = \"rabbitmq\" needs the address of the server".to_owned();
            let cure = "set it, for example by HOSTLER_JOBS__RABBITMQ, or write `poll` or `notify`".to_owned();
            Some(problem(root, "jobs.rabbitmq", fault, cure))
        }
        (Fanout::Poll | Fanout::Notify, true) => {
            let fault = "jobs.fanout is not \"rabbitmq\", so this key has no effect".to_owned();
            Some(problem(
                root,
                "jobs.rabbitmq",
                fault,
                "write `jobs.fanout = \"rabbitmq\"`, or remove this key".to_owned(),
            ))
        }
        (Fanout::RabbitMq, true) | (Fanout::Poll | Fanout::Notify, false) => None,
    }
}

/// Checks that the tokens of the job service differ. Otherwise, a token would have two roles.
pub(super) fn tokens(root: &Section<'_>) -> Vec<Problem> {
    let keys = ["jobs.tokens.producer", "jobs.tokens.worker", "jobs.tokens.operator"];
    let tokens = keys.map(|key| root.get::<Token>(key));
    let mut problems = Vec::new();
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.is_some()) {
        if let Some(other) = tokens[..index].iter().position(|other| other == token) {
            let fault = format!("the token is also that of {} (it is not shown: it is secret)", root.path(keys[other]));
            problems.push(problem(root, keys[index], fault, "give each role a token of its own".to_owned()));
        }
    }
    problems
}
