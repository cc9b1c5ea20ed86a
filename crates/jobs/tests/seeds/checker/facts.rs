//! Facts of a record, by jobs, items and assignments.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::{
    Answer, Assignment, Item, ItemView, Job, NewItem, Node, Operation, Outcome, Refusal, Settled, State, Time,
};
use crate::history::{Call, History, Moment};

/// The creation of something: from the first request to the first answer.
#[derive(Clone, Copy)]
pub struct Span {
    pub sent: Moment,
    pub done: Moment,
}

/// A job that was created.
pub struct JobFacts<'a> {
    pub node: &'a Node,
    pub parent: Option<Job>,
    pub root: Job,
}

/// An item that was created by a request.
pub struct ItemFacts<'a> {
    pub job: Job,
    pub new: &'a NewItem,
    pub created: Span,
    /// The position in its request.
    pub position: usize,
}

/// An assignment that a worker was told of.
pub struct Grant<'a> {
    pub assignment: Assignment,
    pub item: Item,
    pub job: Job,
    pub claim: &'a Call,
}

/// A call that proposed an end for an assignment.
pub struct Proposal<'a> {
    pub call: &'a Call,
    pub outcome: Outcome,
    pub settled: Option<Settled>,
}

impl Proposal<'_> {
    /// Returns true unless the proposal was certainly refused.
    pub fn may_count(&self) -> bool {
        self.settled.is_none_or(Settled::is_ok)
    }

    /// Returns true if the proposal was certainly accepted.
    pub fn is_accepted(&self) -> bool {
        self.settled.is_some_and(Settled::is_ok)
    }
}

/// All facts.
pub struct Facts<'a> {
    pub history: &'a History,
    pub jobs: BTreeMap<Job, JobFacts<'a>>,
    pub items: BTreeMap<Item, ItemFacts<'a>>,
    pub grants: Vec<Grant<'a>>,
    pub by_item: BTreeMap<Item, Vec<usize>>,
    pub proposals: BTreeMap<Assignment, Vec<Proposal<'a>>>,
    /// Heartbeats and releases: the call, and true if the assignment was reported as stale.
    pub beats: BTreeMap<Assignment, Vec<(&'a Call, Option<bool>)>>,
    pub releases: BTreeMap<Assignment, Vec<(&'a Call, Option<bool>)>>,
    /// Deletions that were or may have been carried out.
    pub deletions: Vec<(Job, &'a Call)>,
    pub left: BTreeMap<Item, &'a ItemView>,
}

impl<'a> Facts<'a> {
    /// Sorts a record.
    pub fn of(history: &'a History) -> Self {
        let left = history.end.items.iter().map(|view| (view.item, view)).collect();
        let mut facts = Self {
            history,
            jobs: BTreeMap::new(),
            items: BTreeMap::new(),
            grants: Vec::new(),
            by_item: BTreeMap::new(),
            proposals: BTreeMap::new(),
            beats: BTreeMap::new(),
            releases: BTreeMap::new(),
            deletions: Vec::new(),
            left,
        };
        let mut first: BTreeMap<usize, Moment> = BTreeMap::new();
        for call in &history.calls {
            if let Operation::Create { token, .. } | Operation::Add { token, .. } = &call.operation {
                first.entry(*token).or_insert(call.sent);
            }
        }
        for call in &history.calls {
            facts.enter_creation(call, &first);
            facts.enter(call);
        }
        for (index, grant) in facts.grants.iter().enumerate() {
            facts.by_item.entry(grant.item).or_default().push(index);
        }
        facts
    }

    fn enter_creation(&mut self, call: &'a Call, first: &BTreeMap<usize, Moment>) {
        match (&call.operation, &call.answer) {
            (Operation::Create { node, token }, Some(Answer::Created { jobs, items })) => {
                let created = Span { sent: first[token], done: call.done };
                let nodes = node.all();
                for ((new, parent), job) in nodes.iter().copied().zip(node.parents()).zip(jobs) {
                    let parent = parent.map(|index: usize| jobs[index]);
                    let facts = JobFacts { node: new, parent, root: jobs[0] };
                    self.jobs.entry(*job).or_insert(facts);
                }
                let of_jobs =
                    nodes.iter().zip(jobs).flat_map(|(new, job)| new.items.iter().map(move |item| (*job, item)));
                for (position, ((job, new), item)) in of_jobs.zip(items).enumerate() {
                    self.items.entry(*item).or_insert(ItemFacts { job, new, created, position });
                }
            }
            (Operation::Add { job, items: news, token }, Some(Answer::Added(items))) => {
                let created = Span { sent: first[token], done: call.done };
                for (position, (new, item)) in news.iter().zip(items).enumerate() {
                    self.items.entry(*item).or_insert(ItemFacts { job: *job, new, created, position });
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, call: &'a Call) {
        match (&call.operation, &call.answer) {
            (_, Some(Answer::Assigned(granted))) => {
                self.grants.extend(granted.iter().map(|one| Grant {
                    assignment: one.assignment,
                    item: one.item,
                    job: one.job,
                    claim: call,
                }));
            }
            (Operation::Heartbeat { assignments, .. }, answer) => {
                enter_beats(&mut self.beats, call, assignments, answer)
            }
            (Operation::Release { assignments }, answer) => enter_beats(&mut self.releases, call, assignments, answer),
            (Operation::Delete { job }, None | Some(Answer::Done | Answer::Refused(Refusal::Missing))) => {
                self.deletions.push((*job, call));
            }
            (operation, answer) => {
                let settled = |index: usize| match answer {
                    Some(Answer::Settled(settled)) => settled.get(index).copied(),
                    _ => None,
                };
                for (index, (assignment, outcome)) in operation.outcomes().into_iter().enumerate() {
                    let proposal = Proposal { call, outcome, settled: settled(index) };
                    self.proposals.entry(assignment).or_default().push(proposal);
                }
            }
        }
    }

    /// Returns a job and all jobs above it.
    pub fn above(&self, job: Job) -> Vec<Job> {
        let up = |job: &Job| self.jobs.get(job).and_then(|facts| facts.parent);
        std::iter::successors(Some(job), up).collect()
    }

    /// Returns the deletions that take a job away.
    pub fn deletions_of(&self, job: Job) -> impl Iterator<Item = &'a Call> {
        let above: BTreeSet<Job> = self.above(job).into_iter().collect();
        self.deletions.iter().filter(move |(deleted, _)| above.contains(deleted)).map(|(_, call)| *call)
    }

    /// Returns true if a job may have been deleted.
    pub fn is_deleted(&self, job: Job) -> bool {
        self.deletions_of(job).next().is_some()
    }

    /// Returns the proposals for an assignment.
    pub fn proposals_of(&self, assignment: Assignment) -> &[Proposal<'a>] {
        self.proposals.get(&assignment).map_or(&[], Vec::as_slice)
    }

    /// Returns the grants of an item.
    pub fn grants_of(&self, item: Item) -> impl Iterator<Item = &Grant<'a>> {
        self.by_item.get(&item).into_iter().flatten().map(|index| &self.grants[*index])
    }

    /// Returns the earliest time at which missed heartbeats may have ended an assignment.
    pub fn may_expire(&self, grant: &Grant<'_>) -> Time {
        let patience = 3 * self.history.heartbeat - self.history.slack;
        let mut beat = grant.claim.sent.time;
        for (call, stale) in self.beats.get(&grant.assignment).into_iter().flatten() {
            if *stale == Some(false) && call.done.time < beat + patience {
                beat = beat.max(call.sent.time);
            }
        }
        beat + patience
    }

    /// Returns true if an assignment was certainly live while a call was carried out.
    pub fn is_live_during(&self, grant: &Grant<'_>, call: &Call) -> bool {
        let proposals = self.proposals_of(grant.assignment).iter().filter(|one| one.may_count()).map(|one| one.call);
        let releases = self.releases.get(&grant.assignment).into_iter().flatten();
        let releases = releases.filter(|(_, stale)| *stale != Some(true)).map(|(call, _)| *call);
        let mut ends = proposals.chain(releases).chain(self.deletions_of(grant.job));
        grant.claim.is_before(call)
            && ends.all(|end| std::ptr::eq(end, call) || !end.may_precede(call))
            && call.done.time < self.may_expire(grant)
    }

    /// Returns true if an item may have ended before a call was carried out.
    pub fn may_have_ended(&self, item: Item, job: Job, call: &Call) -> bool {
        if self.deletions_of(job).any(|deletion| deletion.may_precede(call)) {
            return true;
        }
        let Some(left) = self.left.get(&item) else { return true };
        let proposals = || self.grants_of(item).flat_map(|grant| self.proposals_of(grant.assignment));
        let counts = |one: &&Proposal<'_>| one.may_count() && one.call.may_precede(call);
        match left.state {
            State::Succeeded => proposals().filter(counts).any(|one| matches!(one.outcome, Outcome::Success(_))),
            State::Failed => self.failures_before(item, call) >= left.failures,
            State::Pending | State::Assigned => false,
        }
    }

    /// Returns the largest number of failures that an item may have had before a call.
    pub fn failures_before(&self, item: Item, call: &Call) -> usize {
        let may_fail = |grant: &&Grant<'_>| {
            let mut proposals = self.proposals_of(grant.assignment).iter();
            let is_failure = |one: &Proposal<'_>| {
                one.may_count() && matches!(one.outcome, Outcome::Failure(_)) && one.call.may_precede(call)
            };
            self.may_expire(grant) <= call.done.time || proposals.any(is_failure)
        };
        let told = self.grants_of(item).filter(may_fail).count();
        told + self.untold_grants(item, call)
    }

    /// Returns the number of lost answers that may have assigned an item before a call.
    pub fn untold_grants(&self, item: Item, call: &Call) -> usize {
        let may_assign = |lost: &&Call| match &lost.operation {
            Operation::Claim { .. } => true,
            Operation::Assign { item: asked, .. } => *asked == item,
            _ => false,
        };
        let lost = self.history.calls.iter().filter(|lost| lost.answer.is_none() && lost.may_precede(call));
        lost.filter(may_assign).count()
    }
}

fn enter_beats<'a>(
    beats: &mut BTreeMap<Assignment, Vec<(&'a Call, Option<bool>)>>,
    call: &'a Call,
    assignments: &[Assignment],
    answer: &Option<Answer>,
) {
    for assignment in assignments {
        let stale = if let Some(Answer::Stale(stale)) = answer { Some(stale.contains(assignment)) } else { None };
        beats.entry(*assignment).or_default().push((call, stale));
    }
}
