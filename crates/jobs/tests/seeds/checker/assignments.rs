//! Rules about assignments and their ends.

use super::Verdict;
use super::facts::{Facts, Grant, Proposal};
use crate::call::{Answer, Outcome, Settled};

/// Checks all assignments.
pub fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for grants in facts.by_item.values() {
        for grant in grants.iter().map(|index| &facts.grants[*index]) {
            one_live_assignment(facts, verdict, grant);
            ends(facts, verdict, grant);
            heartbeats(facts, verdict, grant);
        }
    }
    payload_is_immutable(facts, verdict);
}

/// An item has at most one assignment, and none after its success or its final failure.
fn one_live_assignment(facts: &Facts<'_>, verdict: &mut Verdict, grant: &Grant<'_>) {
    for other in facts.grants_of(grant.item).filter(|other| other.assignment != grant.assignment) {
        let detail = || format!("item {} as {} and {}", grant.item, grant.assignment, other.assignment);
        verdict.require("one_live_assignment", !facts.is_live_during(grant, other.claim), detail);
        for one in facts.proposals_of(grant.assignment).iter().filter(|one| one.call.is_before(other.claim)) {
            let is_success = matches!(one.outcome, Outcome::Success(_)) && one.is_accepted();
            verdict.require("no_run_after_success", !is_success, detail);
            let is_final = one.settled == Some(Settled::Failure { retry_at: None });
            verdict.require("no_run_after_final_failure", !is_final, detail);
        }
    }
}

/// Results and failures are accepted only under the live assignment. A repetition is accepted as well.
fn ends(facts: &Facts<'_>, verdict: &mut Verdict, grant: &Grant<'_>) {
    let proposals = facts.proposals_of(grant.assignment);
    let same_kind = |one: &Proposal<'_>, other: &Proposal<'_>| {
        matches!(one.outcome, Outcome::Success(_)) == matches!(other.outcome, Outcome::Success(_))
    };
    let accepted = |one: &&Proposal<'_>| one.is_accepted();
    for one in proposals.iter().filter(accepted) {
        let detail = || format!("item {}: {:?} under {}", grant.item, one.outcome, grant.assignment);
        let is_repeated = |before: &Proposal<'_>| same_kind(one, before) && before.may_count();
        let is_first =
            !proposals.iter().any(|before| is_repeated(before) && before.call.sent.order < one.call.sent.order);
        let successors = || facts.grants_of(grant.item).filter(|next| grant.claim.is_before(next.claim));
        verdict.require("one_end_only", proposals.iter().filter(accepted).all(|other| same_kind(one, other)), detail);
        let is_succeeded_by = is_first && successors().any(|next| next.claim.is_before(one.call));
        verdict.require("result_only_under_live_assignment", !is_succeeded_by, detail);
        let is_success = matches!(one.outcome, Outcome::Success(_));
        verdict.require("success_is_the_last_attempt", !(is_success && successors().next().is_some()), detail);
        let is_deleted = facts.deletions_of(grant.job).any(|deletion| deletion.is_before(one.call));
        verdict.require("deleted_is_gone", !is_deleted, detail);
        let releases = facts.releases.get(&grant.assignment).into_iter().flatten();
        let is_released = releases.filter(|(_, stale)| *stale == Some(false)).any(|(call, _)| call.is_before(one.call));
        verdict.require("released_is_gone", !is_released, detail);
    }
    for one in proposals.iter().filter(|one| one.settled == Some(Settled::Stale)) {
        let detail = || format!("item {}: {:?} under {}", grant.item, one.outcome, grant.assignment);
        verdict.require("live_assignment_is_accepted", !facts.is_live_during(grant, one.call), detail);
        let is_repeated = |before: &&Proposal<'_>| same_kind(one, before) && before.is_accepted();
        let is_repetition = proposals.iter().filter(is_repeated).any(|before| before.call.is_before(one.call));
        let is_deleted = facts.deletions_of(grant.job).any(|deletion| deletion.may_precede(one.call));
        verdict.require("repetition_is_accepted", !is_repetition || is_deleted, detail);
    }
}

/// Heartbeats are refused once an assignment has ended, and accepted before.
fn heartbeats(facts: &Facts<'_>, verdict: &mut Verdict, grant: &Grant<'_>) {
    for (call, stale) in facts.beats.get(&grant.assignment).into_iter().flatten() {
        let detail = || format!("item {}: heartbeat of {}, stale: {stale:?}", grant.item, grant.assignment);
        if *stale == Some(true) {
            verdict.require("live_heartbeat_is_accepted", !facts.is_live_during(grant, call), detail);
        }
        if *stale == Some(false) {
            let mut proposals = facts.proposals_of(grant.assignment).iter();
            let is_settled = proposals.any(|one| one.is_accepted() && one.call.is_before(call));
            let is_replaced =
                facts.grants_of(grant.item).any(|next| grant.claim.is_before(next.claim) && next.claim.is_before(call));
            verdict.require("ended_heartbeat_is_stale", !is_settled && !is_replaced, detail);
            let is_deleted = facts.deletions_of(grant.job).any(|deletion| deletion.is_before(call));
            verdict.require("deleted_is_gone", !is_deleted, detail);
        }
    }
}

/// Workers get the payload that the item was created with.
fn payload_is_immutable(facts: &Facts<'_>, verdict: &mut Verdict) {
    for call in &facts.history.calls {
        let Some(Answer::Assigned(granted)) = &call.answer else { continue };
        for one in granted {
            let Some(item) = facts.items.get(&one.item) else { continue };
            let is_same = item.new.payload == one.payload && item.job == one.job;
            verdict.require("payload_is_immutable", is_same, || format!("item {}: {}", one.item, one.payload));
        }
    }
}
