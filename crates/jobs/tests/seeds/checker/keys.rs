//! Rules about serialize keys and dedupe keys.

use std::collections::BTreeMap;

use super::Verdict;
use super::facts::{Facts, ItemFacts};
use crate::call::{Answer, Item, Job, Operation, Refusal};

/// Checks all keys.
pub fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut by_key: BTreeMap<usize, Vec<(Item, &ItemFacts<'_>)>> = BTreeMap::new();
    for (item, known) in &facts.items {
        if let Some(key) = known.new.serialize_key {
            by_key.entry(key).or_default().push((*item, known));
        }
    }
    for items in by_key.values() {
        for (item, known) in items {
            for (other, other_known) in items.iter().filter(|(other, _)| other != item) {
                order(facts, verdict, (*item, known), (*other, other_known));
            }
        }
    }
    dedupe_keys_of_items(facts, verdict);
    dedupe_keys_of_jobs(facts, verdict);
}

/// Returns true if an item was certainly inserted before another.
fn is_older(one: &ItemFacts<'_>, other: &ItemFacts<'_>) -> bool {
    let is_same_request = one.created.sent == other.created.sent;
    if is_same_request { one.position < other.position } else { one.created.done.order < other.created.sent.order }
}

/// Items with the same key run one at a time, in the order of their insertion.
fn order(
    facts: &Facts<'_>,
    verdict: &mut Verdict,
    (item, known): (Item, &ItemFacts<'_>),
    (other, later): (Item, &ItemFacts<'_>),
) {
    let detail = || format!("items {item} and {other} of key {:?}", known.new.serialize_key);
    for grant in facts.grants_of(other) {
        let is_first = is_older(known, later);
        let may_follow = || facts.may_have_ended(item, known.job, grant.claim);
        verdict.require("serialize_key_in_order", !is_first || may_follow(), detail);
        let is_alone = facts.grants_of(item).all(|one| !facts.is_live_during(one, grant.claim));
        verdict.require("serialize_key_one_at_a_time", is_alone, detail);
    }
}

/// A dedupe key is unique within its job: a second item with it is the first one.
fn dedupe_keys_of_items(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut seen: BTreeMap<(Job, usize), Item> = BTreeMap::new();
    let news = facts.history.calls.iter().filter_map(|call| match (&call.operation, &call.answer) {
        (Operation::Create { node, .. }, Some(Answer::Created { jobs, items })) => {
            let jobs = node.all().into_iter().zip(jobs);
            let of_jobs = jobs.flat_map(|(node, job)| node.items.iter().map(|new| (*job, new)));
            Some(of_jobs.zip(items.iter().copied()).collect::<Vec<_>>())
        }
        (Operation::Add { job, items: news, .. }, Some(Answer::Added(items))) => {
            Some(news.iter().map(|new| (*job, new)).zip(items.iter().copied()).collect())
        }
        _ => None,
    });
    for ((job, new), item) in news.flatten() {
        let Some(key) = new.dedupe_key else {
            let known = &facts.items[&item];
            verdict.require("items_are_distinct", known.new == new && known.job == job, || format!("item {item}"));
            continue;
        };
        let first = *seen.entry((job, key)).or_insert(item);
        verdict
            .require("item_dedupe_key", first == item, || format!("items {first} and {item} of job {job}, key {key}"));
        verdict.require("item_dedupe_key_per_job", facts.items[&item].job == job, || format!("item {item} for {job}"));
    }
}

/// A dedupe key is unique among the jobs of a type.
fn dedupe_keys_of_jobs(facts: &Facts<'_>, verdict: &mut Verdict) {
    let keyed = || facts.jobs.iter().filter(|(_, job)| job.node.dedupe_key.is_some());
    for (job, known) in keyed() {
        for (other, later) in keyed().filter(|(other, _)| *other > job) {
            let is_same = known.node.kind == later.node.kind && known.node.dedupe_key == later.node.dedupe_key;
            let is_free = facts.is_deleted(*job) || facts.is_deleted(*other);
            verdict.require("job_dedupe_key", !is_same || is_free, || format!("jobs {job} and {other}"));
        }
    }
    for call in &facts.history.calls {
        let (Operation::Create { node, .. }, Some(Answer::Refused(Refusal::Duplicate(job)))) =
            (&call.operation, &call.answer)
        else {
            continue;
        };
        let taken = facts.jobs.get(job).map(|known| (known.node.kind, known.node.dedupe_key));
        let is_in_tree =
            |twice: &(usize, Option<usize>)| node.all().iter().any(|new| (new.kind, new.dedupe_key) == *twice);
        verdict.require("duplicate_names_the_job", taken.as_ref().is_none_or(is_in_tree), || format!("job {job}"));
    }
}
