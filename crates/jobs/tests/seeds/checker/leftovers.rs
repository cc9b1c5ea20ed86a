//! Rules about the end of a run, when nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Verdict;
use super::facts::Facts;
use crate::call::{Item, ItemView, Job, Outcome, State, Status};
use crate::feed::fill;

/// Checks what is left.
pub fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    let statuses: BTreeMap<Job, &Status> =
        facts.history.end.trees.iter().flat_map(Status::all).map(|status| (status.job, status)).collect();
    jobs(facts, verdict, &statuses);
    items(facts, verdict, &statuses);
    for (job, known) in &facts.jobs {
        if known.node.feed.is_some() && !facts.is_deleted(*job) {
            feed(facts, verdict, *job);
        }
    }
    results(facts, verdict);
}

/// All jobs are there and complete, except those that were deleted.
fn jobs(facts: &Facts<'_>, verdict: &mut Verdict, statuses: &BTreeMap<Job, &Status>) {
    for job in facts.jobs.keys() {
        let status = statuses.get(job);
        if facts.is_deleted(*job) {
            verdict.require("deleted_is_gone", status.is_none(), || format!("job {job} is left"));
            continue;
        }
        let is_complete = status.is_some_and(|status| status.sealed && status.complete && status.tree_complete);
        verdict.require("all_jobs_complete", is_complete, || format!("job {job}: {status:?}"));
        let views = || facts.left.values().filter(|view| view.job == *job);
        let count = |state: State| views().filter(|view| view.state == state).count();
        let is_right = status.is_none_or(|status| {
            status.added == views().count()
                && status.succeeded == count(State::Succeeded)
                && status.failed == count(State::Failed)
                && status.pending == count(State::Pending) + count(State::Assigned)
        });
        verdict.require("numbers_are_those_of_the_items", is_right, || format!("{status:?}"));
    }
    for job in statuses.keys() {
        verdict.require("no_job_from_nowhere", facts.jobs.contains_key(job), || format!("job {job}"));
    }
}

/// All items are there, and are done or failed as their workers were told.
fn items(facts: &Facts<'_>, verdict: &mut Verdict, statuses: &BTreeMap<Job, &Status>) {
    for (item, known) in &facts.items {
        let is_there = facts.left.contains_key(item);
        let is_deleted = facts.is_deleted(known.job);
        verdict.require("nothing_is_lost", is_there != is_deleted, || format!("item {item} of job {}", known.job));
    }
    for (item, view) in &facts.left {
        let detail = || format!("{view:?}");
        verdict.require("all_items_end", matches!(view.state, State::Succeeded | State::Failed), detail);
        let Some(job) = facts.jobs.get(&view.job) else { continue };
        let is_fed = job.node.feed.is_some();
        let known = facts.items.get(item);
        verdict.require("no_item_from_nowhere", known.is_some() || is_fed, detail);
        let is_same = known.is_none_or(|known| known.new.payload == view.payload && known.job == view.job);
        verdict.require("payload_is_immutable", is_same, detail);
        verdict.require("item_of_a_job", statuses.contains_key(&view.job), detail);
        let is_failed = view.state == State::Failed;
        verdict.require("failed_means_too_many_failures", is_failed == (view.failures > job.node.max_failures), detail);
        verdict.require("failures_are_bounded", view.failures <= job.node.max_failures + 1, detail);
        result(facts, verdict, *item, view);
    }
}

/// A succeeded item has the result that was accepted.
fn result(facts: &Facts<'_>, verdict: &mut Verdict, item: Item, view: &ItemView) {
    let detail = || format!("{view:?}");
    let proposals = || facts.grants_of(item).flat_map(|grant| facts.proposals_of(grant.assignment));
    let accepted = |outcome: &Outcome| matches!(outcome, Outcome::Success(result) if *result == view.result);
    let is_success = view.state == State::Succeeded;
    let is_proposed = proposals().any(|one| one.may_count() && accepted(&one.outcome));
    verdict.require("result_is_that_of_a_worker", !is_success || is_proposed, detail);
    let is_told = proposals().any(|one| one.is_accepted() && matches!(one.outcome, Outcome::Success(_)));
    verdict.require("accepted_result_is_kept", !is_told || is_success, detail);
    let is_final = proposals().any(|one| one.settled == Some(crate::call::Settled::Failure { retry_at: None }));
    verdict.require("final_failure_is_final", !is_final || view.state == State::Failed, detail);
}

/// A job with a feed has an item for each result of its parent, and the items of requests.
fn feed(facts: &Facts<'_>, verdict: &mut Verdict, job: Job) {
    let known = &facts.jobs[&job];
    let (Some(template), Some(parent)) = (&known.node.feed, known.parent) else { return };
    let succeeded = facts.left.values().filter(|view| view.job == parent && view.state == State::Succeeded);
    let wanted = succeeded.map(|view| fill(template, &view.result, &view.payload));
    let found = facts.left.values().filter(|view| view.job == job && !facts.items.contains_key(&view.item));
    let sorted = |values: Vec<Value>| {
        let mut texts: Vec<String> = values.iter().map(Value::to_string).collect();
        texts.sort_unstable();
        texts
    };
    let (wanted, found) = (sorted(wanted.collect()), sorted(found.map(|view| view.payload.clone()).collect()));
    verdict.require("feed_exactly_once", wanted == found, || format!("job {job}: wanted {wanted:?}, found {found:?}"));
}

/// The results of a tree are those of its jobs with `final_stage`, and no others.
fn results(facts: &Facts<'_>, verdict: &mut Verdict) {
    let is_result = |view: &&&ItemView| {
        view.state == State::Succeeded && facts.jobs.get(&view.job).is_some_and(|job| job.node.final_stage)
    };
    let wanted: BTreeSet<Item> = facts.left.values().filter(is_result).map(|view| view.item).collect();
    let found: BTreeSet<Item> = facts.history.end.results.iter().copied().collect();
    verdict.require("final_stage_results", wanted == found, || format!("wanted {wanted:?}, found {found:?}"));
}
