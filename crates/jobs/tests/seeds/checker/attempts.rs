//! Rules about failures: their number, and the time of the next attempt.

use std::collections::BTreeMap;

use super::Verdict;
use super::facts::{Facts, Grant, Proposal};
use crate::call::{Assignment, Item, Outcome, Settled, State};

/// Checks the attempts of all items.
pub fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for item in facts.by_item.keys() {
        number_of_attempts(facts, verdict, *item);
        for grant in facts.grants_of(*item) {
            for one in facts.proposals_of(grant.assignment) {
                if let (Some(Settled::Failure { retry_at: Some(at) }), Outcome::Failure(retry_in)) =
                    (one.settled, &one.outcome)
                {
                    retry_at(facts, verdict, grant, one, (at, *retry_in));
                }
            }
        }
    }
    times_do_not_change(facts, verdict);
}

fn may_be_released(facts: &Facts<'_>, assignment: Assignment) -> bool {
    let releases = facts.releases.get(&assignment).into_iter().flatten();
    releases.into_iter().any(|(_, stale)| *stale != Some(true))
}

/// An item has max + 1 attempts. Each attempt that ended without a result is a failure.
fn number_of_attempts(facts: &Facts<'_>, verdict: &mut Verdict, item: Item) {
    let Some(grant) = facts.grants_of(item).next() else { return };
    let Some(job) = facts.jobs.get(&grant.job) else { return };
    let attempts = facts.grants_of(item).filter(|grant| !may_be_released(facts, grant.assignment)).count();
    let most = job.node.max_failures + 1;
    verdict.require("attempts", attempts <= most, || format!("item {item} had {attempts} attempts of {most}"));
    let Some(left) = facts.left.get(&item).filter(|_| !facts.is_deleted(grant.job)) else { return };
    let is_succeeded = usize::from(left.state == State::Succeeded);
    let detail = || format!("item {item}: {attempts} attempts, {} failures, {:?}", left.failures, left.state);
    let is_done = matches!(left.state, State::Succeeded | State::Failed);
    verdict.require("every_attempt_counts", !is_done || left.failures + is_succeeded >= attempts, detail);
    let calls = &facts.history.calls;
    let told = facts.grants_of(item).count();
    let untold = calls.last().map_or(0, |last| facts.untold_grants(item, last));
    verdict.require("failures_need_attempts", left.failures + is_succeeded <= told + untold, detail);
    let released = facts.grants_of(item).filter(|grant| is_only_released(facts, grant)).count();
    verdict.require("release_is_no_failure", left.failures + is_succeeded + released <= told + untold, detail);
}

/// Returns true if an assignment was certainly released before it could end in another way.
fn is_only_released(facts: &Facts<'_>, grant: &Grant<'_>) -> bool {
    let releases = facts.releases.get(&grant.assignment).into_iter().flatten();
    let first = releases.into_iter().find(|(_, stale)| *stale == Some(false));
    first.is_some_and(|(call, _)| {
        let mut proposals = facts.proposals_of(grant.assignment).iter();
        call.done.time < facts.may_expire(grant) && proposals.all(|one| !one.call.may_precede(call) || !one.may_count())
    })
}

/// The next attempt comes at `retry_at`, by the clock of the service, and not before.
fn retry_at(
    facts: &Facts<'_>,
    verdict: &mut Verdict,
    grant: &Grant<'_>,
    one: &Proposal<'_>,
    (at, retry_in): (i64, Option<i64>),
) {
    let slack = facts.history.slack;
    let detail = || format!("item {} under {}: retry at {at}", grant.item, grant.assignment);
    let proposals = facts.proposals_of(grant.assignment);
    let first = proposals.iter().map(|one| one.call.sent.time).min().unwrap_or(one.call.sent.time);
    let asked = proposals
        .iter()
        .filter_map(|one| if let Outcome::Failure(retry_in) = one.outcome { Some(retry_in) } else { None });
    let is_same = asked.into_iter().all(|other| other == retry_in);
    let (shortest, longest) = retry_in.map_or((0, facts.history.longest_backoff), |retry_in| (retry_in, retry_in));
    let is_in_time = at >= first + shortest - slack && at <= one.call.done.time + longest + slack;
    verdict.require("retry_at_by_the_clock_of_the_service", !is_same || is_in_time, detail);
    for next in facts.grants_of(grant.item).filter(|next| grant.claim.is_before(next.claim)) {
        verdict.require("no_attempt_before_retry_at", next.claim.done.time >= at - slack, detail);
    }
}

/// A repeated failure is answered with the same time.
fn times_do_not_change(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut seen: BTreeMap<Assignment, Settled> = BTreeMap::new();
    for (assignment, proposals) in &facts.proposals {
        for settled in proposals.iter().filter_map(|one| one.settled) {
            if matches!(settled, Settled::Failure { .. }) {
                let first = *seen.entry(*assignment).or_insert(settled);
                verdict.require("repetition_is_answered_alike", first == settled, || format!("{first:?}, {settled:?}"));
            }
        }
    }
}
