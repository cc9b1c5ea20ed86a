//! Checks the keys of idempotency against each other and against the other keys.

use std::time::Duration;

use super::{Section, beside, lasting, problem};
use crate::choice::{Driver, OnUnknown, RecordStore};
use crate::error::Problem;
use crate::units::duration_text;

/// Keys that have no effect without `idempotency.key`.
const OTHERS: [&str; 3] = ["idempotency.store", "idempotency.ttl", "idempotency.on_unknown"];

/// Checks the idempotency of one consumer.
pub(super) fn check(at: &Section<'_>, root: &Section<'_>) -> Vec<Problem> {
    // An emptied key turns idempotency off, regardless of the other keys.
    if at.is_emptied("idempotency.key") {
        return Vec::new();
    }
    if !at.is_set("idempotency.key") {
        let key = OTHERS.into_iter().find(|key| at.is_set(key));
        return key.map(|key| without_key(at, key)).into_iter().collect();
    }
    [excluded(at), id(at, root), store(at, root), ttl(at), unknown(at)].into_iter().flatten().collect()
}

fn without_key(at: &Section<'_>, key: &str) -> Problem {
    let fault = format!("{} is not set, so this key has no effect", at.path("idempotency.key"));
    problem(at, key, fault, "set `idempotency.key` to a place such as `$.order.id` or `id`".to_owned())
}

fn excluded(at: &Section<'_>) -> Option<Problem> {
    let reasons = [
        ("batch.max", "a batch has no key of its own", "remove `batch`, or let the handler tell what it has processed"),
        ("subject", "requests to a subject are not kept, so none comes again", "remove `idempotency`"),
        ("job", "the job service itself takes each result once", "remove `idempotency`"),
    ];
    let (other, why, cure) = reasons.into_iter().find(|(other, ..)| at.is_set(other))?;
    let fault = format!("it has no effect beside {} ({}): {why}", at.path(other), at.place(other));
    Some(problem(at, "idempotency.key", fault, cure.to_owned()))
}

/// On RabbitMQ, the id of a message that its producer gave none is made of its content, so that two messages may share it.
fn id(at: &Section<'_>, root: &Section<'_>) -> Option<Problem> {
    let is_id = at.get::<String>("idempotency.key")? == "id";
    (is_id && root.get("queue.driver") == Some(Driver::RabbitMq)).then(|| {
        let fault =
            "messages of RabbitMQ may have no id of their own, and then two with the same content share one".to_owned();
        let cure = "name a place in the message, such as `$.order.id` or `attr:order-id`".to_owned();
        problem(at, "idempotency.key", fault, cure)
    })
}

/// Checks that there is a store.
fn store(at: &Section<'_>, root: &Section<'_>) -> Option<Problem> {
    let driver = root.get::<Driver>("queue.driver")?;
    let needs_url = match at.get::<RecordStore>("idempotency.store") {
        // A faulty one has been reported.
        None if at.is_set("idempotency.store") => return None,
        None if matches!(driver, Driver::Embedded | Driver::Postgres) => return None,
        None => {
            let fault = format!("queue.driver = \"{}\" keeps no records, so they need a store", driver.word());
            let cure = "set `idempotency.store` to `embedded` or `postgres`".to_owned();
            return Some(problem(at, "idempotency.key", fault, cure));
        }
        Some(RecordStore::Embedded) => false,
        Some(RecordStore::Postgres) => driver != Driver::Postgres,
    };
    // A faulty address has been reported.
    let is_given = root.is_set("queue.postgres.url") || root.is_set("queue.postgres.url_file");
    (needs_url && !is_given).then(|| {
        let fault = "it needs the address of the database".to_owned();
        let cure =
            "set `queue.postgres.url`, for example by HOSTLER_QUEUE__POSTGRES__URL, or `queue.postgres.url_file`";
        problem(at, "idempotency.store", fault, cure.to_owned())
    })
}

/// A record that is gone before its message would let a duplicate through.
fn ttl(at: &Section<'_>) -> Option<Problem> {
    let ttl: Duration = at.get("idempotency.ttl")?;
    let others = ["longest_delay", "lease", "processing_timeout"].into_iter();
    let (key, other) =
        others.filter_map(|key| Some((key, at.get::<Duration>(key)?))).find(|(_, other)| *other > ttl)?;
    let fault = format!("{} is shorter than {}", duration_text(ttl), lasting(at, key, other));
    let cure = "raise it to at least the time for which the queue keeps messages".to_owned();
    Some(problem(at, "idempotency.ttl", fault, cure))
}

fn unknown(at: &Section<'_>) -> Option<Problem> {
    let (then, dead_letter): (OnUnknown, bool) = (at.get("idempotency.on_unknown")?, at.get("dead_letter")?);
    (then == OnUnknown::DeadLetter && !dead_letter).then(|| {
        let fault = format!("there is no dead-letter queue: {}", beside(at, "dead_letter", "false"));
        let cure = "write `run`, or set `dead_letter = true`".to_owned();
        problem(at, "idempotency.on_unknown", fault, cure)
    })
}
