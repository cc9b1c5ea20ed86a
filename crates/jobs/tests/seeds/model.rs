//! A reference model of the job service: maps and vectors, and a function for each rule of the service.
//!
//! | file | job |
//! |---|---|
//! | `rules.rs` | decides what is available, final, pending and complete |
//! | `ends.rs` | ends assignments, and what follows from an end |
//! | `views.rs` | answers reads |

mod ends;
mod rules;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::call::{Answer, Assigned, Assignment, Event, Item, Job, NewItem, Node, Operation, Refusal, Settled, Time};
use crate::fault::Fault;

/// A job.
#[derive(Clone, Debug)]
struct JobState {
    kind: usize,
    parent: Option<Job>,
    root: Job,
    max_failures: usize,
    final_stage: bool,
    dedupe_key: Option<usize>,
    feed: Option<Value>,
    callback: bool,
    sealed: bool,
    sealed_at: Time,
    complete: bool,
    tree_complete: bool,
}

/// An item.
#[derive(Clone, Debug)]
struct ItemState {
    job: Job,
    payload: Value,
    dedupe_key: Option<usize>,
    serialize_key: Option<usize>,
    priority: i16,
    failures: usize,
    retry_at: Option<Time>,
    result: Option<Value>,
    /// Set by faults: the item holds its key although it has ended.
    holds_key: bool,
}

/// A live assignment.
#[derive(Clone, Debug)]
struct Live {
    item: Item,
    beat_at: Time,
}

/// An assignment that has ended.
#[derive(Clone, Debug)]
struct Ended {
    item: Item,
    /// `None`: it ended by missed heartbeats, by a release or by a deletion.
    end: Option<Settled>,
}

/// A callback that is due.
#[derive(Clone, Debug)]
struct Due {
    event: Event,
    root: Job,
    not_before: Time,
}

/// The periods of the service, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    pub heartbeat: Time,
    /// The delay after the first failure, without jitter.
    pub backoff: Time,
    pub callback_lease: Time,
}

/// The service.
#[derive(Clone, Debug)]
pub struct Model {
    pub now: Time,
    periods: Periods,
    fault: Option<Fault>,
    jobs: BTreeMap<Job, JobState>,
    /// In the order of insertion.
    items: BTreeMap<Item, ItemState>,
    live: BTreeMap<Assignment, Live>,
    ended: BTreeMap<Assignment, Ended>,
    due: Vec<Due>,
    answers: BTreeMap<usize, Answer>,
    kept_keys: BTreeSet<usize>,
    last_success: BTreeMap<Job, Time>,
    /// The time of the next attempt after the next failure without `retry_in`, if the caller knows it.
    pub next_retry_at: Option<Time>,
    next: usize,
}

impl Model {
    /// Returns an empty service.
    pub fn new(periods: Periods, fault: Option<Fault>) -> Self {
        Self {
            now: 0,
            periods,
            fault,
            jobs: BTreeMap::new(),
            items: BTreeMap::new(),
            live: BTreeMap::new(),
            ended: BTreeMap::new(),
            due: Vec::new(),
            answers: BTreeMap::new(),
            kept_keys: BTreeSet::new(),
            last_success: BTreeMap::new(),
            next_retry_at: None,
            next: 0,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn draw(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Carries out a call at the current time.
    pub fn apply(&mut self, operation: &Operation) -> Answer {
        let answer = match operation {
            Operation::Create { node, token } => self.once(*token, |model| model.create(node)),
            Operation::Add { job, items, token } => self.once(*token, |model| model.add(*job, items)),
            Operation::Seal { job } => self.seal(*job),
            Operation::Delete { job } => self.delete(*job),
            Operation::Claim { kinds, max, .. } => self.claim(kinds, *max),
            Operation::Assign { item, .. } => self.assign(*item),
            Operation::Succeed { .. } | Operation::Fail { .. } | Operation::Settle { .. } => self.settle(operation),
            Operation::Heartbeat { assignments, worker_clock } => self.heartbeat(assignments, *worker_clock),
            Operation::Release { assignments } => self.release(assignments),
            Operation::Status { job } => self.status(*job),
            Operation::Callbacks => self.lease_callbacks(),
            Operation::Delivered { event } => self.delivered(*event),
            Operation::Sweep => self.sweep(),
        };
        self.complete_all();
        answer
    }

    /// Answers a repeated request as before.
    fn once(&mut self, token: usize, carry_out: impl FnOnce(&mut Self) -> Answer) -> Answer {
        if let Some(answer) = self.answers.get(&token).filter(|_| !self.has(Fault::RepeatedRequest)) {
            return answer.clone();
        }
        let answer = carry_out(self);
        self.answers.insert(token, answer.clone());
        answer
    }

    /// Creates a whole tree. A dedupe key is unique per type.
    fn create(&mut self, node: &Node) -> Answer {
        for new in node.all() {
            let is_same = |job: &&JobState| job.kind == new.kind && job.dedupe_key == new.dedupe_key;
            let taken = self.jobs.iter().find(|(_, job)| new.dedupe_key.is_some() && is_same(job));
            if let Some((job, _)) = taken.filter(|_| !self.has(Fault::JobDedupeIgnored)) {
                return Answer::Refused(Refusal::Duplicate(*job));
            }
        }
        let (mut jobs, mut items) = (Vec::new(), Vec::new());
        for (new, parent) in node.all().into_iter().zip(node.parents()) {
            let job = self.draw();
            let parent = parent.map(|index: usize| jobs[index]);
            let root = jobs.first().copied().unwrap_or(job);
            let (sealed, sealed_at) = (new.sealed, self.now);
            let state = JobState {
                kind: new.kind,
                parent,
                root,
                max_failures: new.max_failures,
                final_stage: new.final_stage,
                dedupe_key: new.dedupe_key,
                feed: new.feed.clone(),
                callback: new.callback,
                sealed,
                sealed_at,
                complete: false,
                tree_complete: false,
            };
            self.jobs.insert(job, state);
            jobs.push(job);
        }
        for (new, job) in node.all().into_iter().zip(&jobs) {
            items.extend(new.items.iter().map(|item| self.insert(*job, item)));
        }
        Answer::Created { jobs, items }
    }

    /// Adds an item. Its dedupe key is unique per job.
    fn insert(&mut self, job: Job, new: &NewItem) -> Item {
        let across = self.has(Fault::ItemDedupeAcrossJobs);
        let is_same = |item: &ItemState| (across || item.job == job) && item.dedupe_key == new.dedupe_key;
        if new.dedupe_key.is_some()
            && !self.has(Fault::ItemDedupeIgnored)
            && let Some((item, _)) = self.items.iter().find(|(_, item)| is_same(item))
        {
            return *item;
        }
        let item = self.draw();
        let state = ItemState {
            job,
            payload: new.payload.clone(),
            dedupe_key: new.dedupe_key,
            serialize_key: new.serialize_key,
            priority: new.priority,
            failures: 0,
            retry_at: None,
            result: None,
            holds_key: false,
        };
        self.items.insert(item, state);
        item
    }

    /// Adds items to a job that is not sealed.
    fn add(&mut self, job: Job, items: &[NewItem]) -> Answer {
        let Some(state) = self.jobs.get(&job) else { return Answer::Refused(Refusal::Missing) };
        let is_race = self.has(Fault::SealRace) && self.now < state.sealed_at + self.periods.heartbeat / 100;
        if state.sealed && !self.has(Fault::SealLetsIn) && !is_race {
            return Answer::Refused(Refusal::Sealed);
        }
        let ids: Vec<Item> = items.iter().map(|item| self.insert(job, item)).collect();
        let of_job = self.items.values().filter(|item| item.job == job).count();
        if self.has(Fault::ItemLost) && of_job > 3 {
            self.items.remove(&ids[0]);
        }
        Answer::Added(ids)
    }

    /// Seals a job: no more items. Sealing again changes nothing.
    fn seal(&mut self, job: Job) -> Answer {
        let now = self.now;
        let Some(state) = self.jobs.get_mut(&job) else { return Answer::Refused(Refusal::Missing) };
        if !state.sealed {
            (state.sealed, state.sealed_at) = (true, now);
        }
        if self.has(Fault::ChildrenSealedEarly) {
            self.seal_children(job);
        }
        Answer::Done
    }

    /// Deletes a job and the tree below it. Its assignments end.
    fn delete(&mut self, job: Job) -> Answer {
        if !self.jobs.contains_key(&job) {
            return Answer::Refused(Refusal::Missing);
        }
        let mut gone = self.below(job);
        if self.has(Fault::DeleteKeepsTree) {
            gone.retain(|one| *one == job);
            self.jobs.values_mut().filter(|other| other.parent == Some(job)).for_each(|other| other.parent = None);
        }
        if self.has(Fault::DeleteKeepsAssignments) {
            self.jobs.retain(|job, _| !gone.contains(job));
            return Answer::Done;
        }
        let items = |model: &Self, item: Item| gone.contains(&model.items[&item].job);
        let ends: Vec<Assignment> =
            self.live.iter().filter(|(_, one)| items(self, one.item)).map(|(id, _)| *id).collect();
        for assignment in ends {
            self.end(assignment, None);
        }
        if self.has(Fault::KeyKeptByDelete) {
            self.kept_keys.extend(
                self.items.values().filter(|item| gone.contains(&item.job)).filter_map(|item| item.serialize_key),
            );
        }
        self.items.retain(|_, item| !gone.contains(&item.job));
        self.jobs.retain(|job, _| !gone.contains(job));
        self.due.retain(|due| !gone.contains(&due.root));
        Answer::Done
    }

    /// Returns a job and all jobs below it.
    fn below(&self, job: Job) -> Vec<Job> {
        let mut found = vec![job];
        for (id, state) in &self.jobs {
            if state.parent.is_some_and(|parent| found.contains(&parent)) {
                found.push(*id);
            }
        }
        found
    }

    /// Assigns the available items of some types: lower priority numbers first, then in the order of insertion.
    fn claim(&mut self, kinds: &[usize], max: usize) -> Answer {
        let is_of_kind = |item: &ItemState| self.jobs.get(&item.job).is_some_and(|job| kinds.contains(&job.kind));
        let candidates = self.items.iter().filter(|(_, item)| is_of_kind(item));
        let mut in_line: Vec<(i16, Item)> = candidates.map(|(id, item)| (item.priority, *id)).collect();
        in_line.sort_unstable();
        let mut assigned = Vec::new();
        for (_, item) in in_line {
            if assigned.len() < max && self.refusal(item).is_none() {
                assigned.push(self.start(item));
            }
        }
        Answer::Assigned(assigned)
    }

    /// Assigns an item, if it is available.
    fn assign(&mut self, item: Item) -> Answer {
        if !self.items.contains_key(&item) {
            return Answer::Refused(Refusal::Missing);
        }
        match self.refusal(item) {
            Some(refusal) => Answer::Refused(refusal),
            None => Answer::Assigned(vec![self.start(item)]),
        }
    }

    fn start(&mut self, item: Item) -> Assigned {
        let assignment = self.draw();
        self.live.insert(assignment, Live { item, beat_at: self.now });
        let state = &self.items[&item];
        Assigned { assignment, item, job: state.job, payload: state.payload.clone() }
    }
}
