//! Rules: the items that are available, final and pending, and the jobs that are complete.

use super::{ItemState, Model};
use crate::call::{Item, Job, Refusal};
use crate::fault::Fault;

impl Model {
    /// Returns the reason that an item is not available, if there is one. Available is an item that is unassigned, that neither
    /// succeeded nor failed, whose `retry_at` is null or past, and that is without a serialize key or the head of its key.
    pub(super) fn refusal(&self, id: Item) -> Option<Refusal> {
        let item = &self.items[&id];
        if !(self.is_pending(item) || self.has(Fault::RunsAfterSuccess) && item.result.is_some()) {
            return Some(Refusal::Done);
        }
        if self.is_assigned(id) && !self.has(Fault::TwoAssignments) {
            return Some(Refusal::Assigned);
        }
        if self.is_backing_off(item) && !self.has(Fault::RetryAtIgnored) {
            return Some(Refusal::RetryAt);
        }
        (!self.is_head(id)).then_some(Refusal::SerializeKey)
    }

    /// Returns true if an item has neither a result nor a final failure.
    pub(super) fn is_pending(&self, item: &ItemState) -> bool {
        let has_result =
            item.result.as_ref().is_some_and(|result| !(self.has(Fault::NullIsNoResult) && result.is_null()));
        !has_result && !self.is_failed(item)
    }

    /// Returns true if the failures of an item exceed the limit of its job.
    pub(super) fn is_failed(&self, item: &ItemState) -> bool {
        let Some(job) = self.jobs.get(&item.job) else { return false };
        let limit = match self.fault {
            Some(Fault::OneAttemptMore) => job.max_failures + 1,
            Some(Fault::OneAttemptLess) => job.max_failures.saturating_sub(1),
            _ => job.max_failures,
        };
        item.result.is_none() && item.failures > limit
    }

    pub(super) fn is_assigned(&self, id: Item) -> bool {
        self.live.values().any(|live| live.item == id)
    }

    fn is_backing_off(&self, item: &ItemState) -> bool {
        item.retry_at.is_some_and(|at| at > self.now)
    }

    /// Returns true if an item is without a serialize key, or the oldest pending item of its key, across jobs, trees and types.
    fn is_head(&self, id: Item) -> bool {
        let item = &self.items[&id];
        let Some(key) = item.serialize_key else { return true };
        if self.has(Fault::KeyIgnored) {
            return true;
        }
        let holder =
            |(other, state): &(&Item, &ItemState)| state.serialize_key == Some(key) && self.holds(item, **other, state);
        let is_kept = self.kept_keys.contains(&key);
        let heads = self.items.iter().filter(holder);
        let head = if self.has(Fault::KeyByPriority) {
            heads.min_by_key(|(other, state)| (!self.is_assigned(**other), state.priority, **other))
        } else {
            heads.min_by_key(|(other, _)| **other)
        };
        !is_kept && head.is_none_or(|(other, _)| *other == id)
    }

    /// Returns true if another item holds its serialize key against an item.
    fn holds(&self, item: &ItemState, other: Item, state: &ItemState) -> bool {
        let (Some(job), Some(other_job)) = (self.jobs.get(&item.job), self.jobs.get(&state.job)) else { return false };
        let is_apart = match self.fault {
            Some(Fault::KeyPerJob) => item.job != state.job,
            Some(Fault::KeyPerTree) => job.root != other_job.root,
            Some(Fault::KeyPerType) => job.kind != other_job.kind,
            Some(Fault::KeyFreeInBackoff) => self.is_backing_off(state),
            Some(Fault::KeyFreeWhenAssigned) => self.is_assigned(other),
            _ => false,
        };
        !is_apart && (state.holds_key || self.is_pending(state))
    }

    /// Returns the number of pending items of a job.
    pub(super) fn pending(&self, job: Job) -> usize {
        let is_counted = |(id, item): &(&Item, &ItemState)| {
            item.job == job
                && self.is_pending(item)
                && !(self.has(Fault::CompleteEarly) && self.is_assigned(**id))
                && !(self.has(Fault::CompleteInBackoff) && item.failures > 0)
        };
        self.items.iter().filter(is_counted).count()
    }

    /// Completes all jobs that are sealed and have nothing pending, and seals the children of each.
    pub(super) fn complete_all(&mut self) {
        while let Some(job) = self.jobs.keys().copied().find(|job| self.is_to_complete(*job)) {
            if let Some(state) = self.jobs.get_mut(&job) {
                state.complete = true;
            }
            let is_deep = self.jobs[&job].parent.is_some();
            if !(self.has(Fault::ChildrenStayOpen) || self.has(Fault::ChildrenOneLevel) && is_deep) {
                self.seal_children(job);
            }
        }
        let complete: Vec<Job> = self.jobs.keys().copied().filter(|job| self.is_tree_to_complete(*job)).collect();
        for root in complete {
            self.complete_tree(root);
        }
    }

    /// Returns true if a job is sealed and nothing of it is pending: then it is complete.
    fn is_to_complete(&self, job: Job) -> bool {
        let state = &self.jobs[&job];
        let is_empty = || !self.items.values().any(|item| item.job == job);
        let is_sealed = state.sealed || self.has(Fault::CompleteUnsealed) && !is_empty();
        let is_stuck = self.has(Fault::EmptyNeverComplete) && is_empty();
        let is_missed = self.has(Fault::LastTwoTogether) && self.last_success.get(&job).is_some_and(|at| *at < 0);
        !state.complete && is_sealed && !is_stuck && !is_missed && self.pending(job) == 0
    }

    /// Seals the children of a job.
    pub(super) fn seal_children(&mut self, job: Job) {
        let now = self.now;
        for child in self.jobs.values_mut().filter(|child| child.parent == Some(job) && !child.sealed) {
            (child.sealed, child.sealed_at) = (true, now);
        }
    }

    /// Returns true if all jobs of a tree are complete: then the tree is.
    fn is_tree_to_complete(&self, root: Job) -> bool {
        let state = &self.jobs[&root];
        let is_early = self.has(Fault::CallbackEarly) && state.complete;
        let is_all = || self.below(root).iter().all(|job| self.jobs[job].complete);
        state.parent.is_none() && !state.tree_complete && (is_early || is_all())
    }
}
