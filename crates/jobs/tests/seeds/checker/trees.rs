//! Rules about jobs and trees: seals, completion, deletion, callbacks.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::facts::Facts;
use crate::call::{Answer, Event, Job, Operation, Refusal, Status};
use crate::history::Call;

/// Checks all jobs.
pub fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut complete: BTreeMap<Job, &Call> = BTreeMap::new();
    for call in &facts.history.calls {
        match (&call.operation, &call.answer) {
            (_, Some(Answer::Status(status))) => {
                for one in status.all() {
                    numbers(facts, verdict, one, call);
                    seals(facts, verdict, one, call);
                    if let Some(before) = complete.get(&one.job).filter(|before| before.is_before(call)) {
                        let detail = || format!("job {} at {} and {}", one.job, before.sent.order, call.sent.order);
                        verdict.require("complete_for_ever", one.complete, detail);
                    } else if one.complete {
                        complete.entry(one.job).or_insert(call);
                    }
                    let is_deleted = facts.deletions_of(one.job).any(|deletion| deletion.is_before(call));
                    verdict.require("deleted_is_gone", !is_deleted, || format!("status of job {}", one.job));
                }
            }
            (Operation::Status { job }, Some(Answer::Refused(_))) => {
                let is_deleted = facts.deletions_of(*job).any(|deletion| deletion.may_precede(call));
                verdict.require("job_is_there", is_deleted, || format!("job {job}"));
            }
            (Operation::Add { job, .. }, Some(answer)) => additions(facts, verdict, *job, call, answer),
            _ => {}
        }
    }
    callbacks(facts, verdict);
}

/// A job is complete when it is sealed and nothing is pending; a tree is complete when all its jobs are.
fn numbers(facts: &Facts<'_>, verdict: &mut Verdict, one: &Status, call: &Call) {
    let detail = || format!("{one:?}");
    let is_done = one.sealed && one.pending == 0;
    verdict.require("complete_means_sealed_and_nothing_pending", !one.complete || is_done, detail);
    verdict.require(
        "sealed_and_nothing_pending_means_complete",
        one.complete || !is_done || !facts.history.is_strict,
        detail,
    );
    verdict.require("numbers_add_up", one.added == one.succeeded + one.failed + one.pending, detail);
    verdict.require("assigned_is_pending", one.assigned <= one.pending || !facts.history.is_strict, detail);
    verdict.require(
        "tree_complete_means_all_complete",
        !one.tree_complete || one.all().iter().all(|job| job.complete),
        detail,
    );
    let is_root = facts.jobs.get(&one.job).is_some_and(|job| job.parent.is_none());
    let is_all = is_root && one.all().iter().all(|job| job.complete);
    verdict.require(
        "all_complete_means_tree_complete",
        one.tree_complete || !is_all || !facts.history.is_strict,
        detail,
    );
    if one.complete {
        open_items(facts, verdict, one.job, call, "complete_after_the_last_item");
    }
}

/// No item of a job is open when it is reported as complete.
fn open_items(facts: &Facts<'_>, verdict: &mut Verdict, job: Job, call: &Call, rule: &'static str) {
    for (item, known) in facts.items.iter().filter(|(_, known)| known.job == job) {
        let is_created = known.created.done.order < call.sent.order;
        let holds = !is_created || facts.may_have_ended(*item, job, call);
        verdict.require(rule, holds, || format!("item {item} of job {job} at {}", call.sent.order));
    }
}

/// A job is sealed at its creation, by a request, or once its parent is complete.
fn seals(facts: &Facts<'_>, verdict: &mut Verdict, one: &Status, call: &Call) {
    for child in &one.children {
        let detail = || format!("parent {}: {}, child {}: {}", one.job, one.complete, child.job, child.sealed);
        let is_later = !facts.history.is_strict;
        verdict.require("children_of_a_complete_job_are_sealed", !one.complete || child.sealed || is_later, detail);
        let is_free = one.complete || may_be_sealed(facts, child.job, call);
        verdict.require("children_are_sealed_after_their_parent", !child.sealed || is_free, detail);
    }
    let is_root = facts.jobs.get(&one.job).is_some_and(|job| job.parent.is_none());
    let is_free = !is_root || may_be_sealed(facts, one.job, call);
    verdict.require("seal_needs_a_request", !one.sealed || is_free, || format!("job {}", one.job));
}

fn may_be_sealed(facts: &Facts<'_>, job: Job, call: &Call) -> bool {
    let is_request = |other: &&Call| other.operation == Operation::Seal { job } && other.may_precede(call);
    let is_created_sealed = facts.jobs.get(&job).is_none_or(|job| job.node.sealed);
    is_created_sealed || facts.history.calls.iter().any(|other| is_request(&other))
}

/// A sealed job takes no items. A job that is open does.
fn additions(facts: &Facts<'_>, verdict: &mut Verdict, job: Job, call: &Call, answer: &Answer) {
    let Operation::Add { token, .. } = &call.operation else { return };
    let same = facts
        .history
        .calls
        .iter()
        .filter(|other| matches!(&other.operation, Operation::Add { token: other, .. } if other == token));
    let first = same.min_by_key(|call| call.sent.order).unwrap_or(call);
    let is_seal = |other: &&Call| match (&other.operation, &other.answer) {
        (Operation::Seal { job: sealed }, Some(Answer::Done)) => *sealed == job,
        (_, Some(Answer::Status(status))) => status.all().iter().any(|one| one.job == job && one.sealed),
        _ => false,
    };
    let is_sealed = || facts.history.calls.iter().filter(is_seal).any(|seal| seal.is_before(first));
    let is_created_sealed = facts.jobs.get(&job).is_some_and(|known| known.node.sealed);
    let is_root = facts.jobs.get(&job).is_some_and(|known| known.parent.is_none());
    match answer {
        Answer::Added(_) => {
            verdict.require("sealed_takes_no_items", !is_created_sealed && !is_sealed(), || format!("job {job}"));
        }
        Answer::Refused(Refusal::Sealed) if is_root => {
            verdict.require("open_takes_items", may_be_sealed(facts, job, call), || format!("job {job}"));
        }
        _ => {}
    }
}

/// A callback comes once for each complete tree that asks for one, and not before.
fn callbacks(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut events: BTreeMap<Job, BTreeSet<Event>> = BTreeMap::new();
    let mut delivered: BTreeMap<Event, &Call> = BTreeMap::new();
    for call in &facts.history.calls {
        if let (Operation::Delivered { event }, Some(Answer::Done)) = (&call.operation, &call.answer) {
            delivered.insert(*event, call);
        }
    }
    for call in &facts.history.calls {
        let Some(Answer::Callbacks(due)) = &call.answer else { continue };
        for (event, root) in due {
            events.entry(*root).or_default().insert(*event);
            let is_again = delivered.get(event).is_some_and(|delivery| delivery.is_before(call));
            verdict.require("callback_ends_with_its_delivery", !is_again, || format!("event {event}"));
            for job in facts.jobs.iter().filter(|(_, job)| job.root == *root).map(|(id, _)| *id) {
                open_items(facts, verdict, job, call, "callback_after_the_last_item");
            }
            let is_wanted = facts.jobs.get(root).is_some_and(|job| job.node.callback && job.parent.is_none());
            verdict.require("callback_is_wanted", is_wanted, || format!("job {root}"));
        }
    }
    for (root, job) in facts.jobs.iter().filter(|(_, job)| job.parent.is_none()) {
        let count = events.get(root).map_or(0, BTreeSet::len);
        let is_due = job.node.callback && !facts.is_deleted(*root);
        let holds = if is_due { count == 1 } else { count <= 1 };
        verdict.require("callback_exactly_once", holds, || format!("job {root}: {count} events"));
        let may_be_delivered = |event: &Event| {
            let is_delivery = |call: &&Call| call.operation == Operation::Delivered { event: *event };
            let mut deliveries = facts.history.calls.iter().filter(is_delivery);
            deliveries.any(|call| matches!(call.answer, None | Some(Answer::Done)))
        };
        let is_delivered = events.get(root).into_iter().flatten().all(may_be_delivered);
        verdict.require("callback_is_delivered", !is_due || is_delivered, || format!("job {root}"));
    }
}
