//! Checks the keys of batches against each other and against the other keys of the consumer.

use std::time::Duration;

use super::{MAX_IN_FLIGHT, Section, beside, lasting, problem};
use crate::choice::{OnTrap, Reply};
use crate::error::Problem;
use crate::units::duration_text;

/// Maximum number of messages that a consumer may have in its batches. Below the 20,000 messages that may be in flight on a
/// FIFO queue of SQS.
const MAX_MESSAGES: u64 = 16_384;

/// Keys that have no effect without `batch.max`.
const OTHERS: [&str; 3] = ["batch.wait", "batch.bytes", "batch.on_trap"];

/// Checks the batches of one consumer.
pub(super) fn check(at: &Section<'_>, on_sqs: bool) -> Vec<Problem> {
    // An emptied key turns batches off, regardless of the other keys.
    if at.is_emptied("batch.max") {
        return Vec::new();
    }
    if !at.is_set("batch.max") {
        let key = OTHERS.into_iter().find(|key| at.is_set(key));
        return key.map(|key| without_max(at, key)).into_iter().collect();
    }
    [too_many(at), reply(at), in_flight(at).filter(|_| on_sqs)].into_iter().flatten().collect()
}

fn without_max(at: &Section<'_>, key: &str) -> Problem {
    let fault = format!("{} is not set, so this key has no effect", at.path("batch.max"));
    problem(at, key, fault, "set `batch.max` to a number of messages such as 100".to_owned())
}

fn too_many(at: &Section<'_>) -> Option<Problem> {
    let (max, slots): (u64, u64) = (at.get("batch.max")?, at.get("concurrency")?);
    (max * slots > MAX_MESSAGES).then(|| {
        let other = beside(at, "concurrency", &slots.to_string());
        let fault = format!("{max} messages in each call and {other} are more than {MAX_MESSAGES} messages at a time");
        problem(at, "batch.max", fault, "lower one of them".to_owned())
    })
}

/// A command answers for the messages of a batch by its standard output, each with its own reply.
fn reply(at: &Section<'_>) -> Option<Problem> {
    (at.get::<Reply>("reply")? == Reply::Stdout).then(|| {
        let fault = "in a batch, standard output has the answers for the messages, and a reply is part of its answer"
            .to_owned();
        problem(at, "reply", fault, "remove it, and answer with `\"outcome\":\"reply\"`".to_owned())
    })
}

/// A message waits for its batch, may run in it up to the timeout, and then alone up to the timeout, after all others of its batch.
fn in_flight(at: &Section<'_>) -> Option<Problem> {
    let (wait, processing): (Duration, Duration) = (at.get("batch.wait")?, at.get("processing_timeout")?);
    let (lease, max, on_trap): (Duration, u32, OnTrap) =
        (at.get("lease")?, at.get("batch.max")?, at.get("batch.on_trap")?);
    let alone = if on_trap == OnTrap::Singly { max } else { 0 };
    let runs = processing.saturating_mul(alone.saturating_add(1));
    (wait.saturating_add(runs).saturating_add(lease) > MAX_IN_FLIGHT).then(|| {
        let after = if alone == 0 { String::new() } else { format!(", the same for each of {max} messages alone") };
        let fault = format!(
            "{} in a batch{after}, and {} and {} are more than the 12 h that SQS keeps a message in flight",
            duration_text(processing),
            lasting(at, "batch.wait", wait),
            lasting(at, "lease", lease)
        );
        let cure = if alone == 0 { "lower it" } else { "lower it or `batch.max`, or set `batch.on_trap` to `fail`" };
        problem(at, "processing_timeout", fault, cure.to_owned())
    })
}
