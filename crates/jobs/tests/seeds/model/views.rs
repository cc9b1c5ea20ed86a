//! Reads: the status of a tree, the list of its items, and the results of a tree.

use serde_json::Value;

use super::Model;
use crate::call::{Answer, Assignment, Item, ItemView, Job, Refusal, Snapshot, State, Status, Time};
use crate::fault::Fault;

impl Model {
    /// Returns the status of a job and of all below it.
    pub(super) fn status(&self, job: Job) -> Answer {
        if self.jobs.contains_key(&job) {
            Answer::Status(self.progress(job))
        } else {
            Answer::Refused(Refusal::Missing)
        }
    }

    fn progress(&self, job: Job) -> Status {
        let state = &self.jobs[&job];
        let items: Vec<_> = self.items.iter().filter(|(_, item)| item.job == job).collect();
        let children = self.jobs.iter().filter(|(_, child)| child.parent == Some(job));
        Status {
            job,
            sealed: state.sealed,
            complete: state.complete,
            final_stage: state.final_stage,
            added: items.len(),
            succeeded: items.iter().filter(|(_, item)| item.result.is_some() && !self.is_pending(item)).count(),
            failed: items.iter().filter(|(_, item)| self.is_failed(item)).count(),
            pending: self.pending(job),
            assigned: items.iter().filter(|(id, _)| self.is_assigned(**id)).count(),
            tree_complete: self.jobs.get(&state.root).is_some_and(|root| root.tree_complete),
            children: children.map(|(child, _)| self.progress(*child)).collect(),
        }
    }

    /// Returns all that is left.
    pub fn snapshot(&self) -> Snapshot {
        let roots: Vec<Job> = self.jobs.iter().filter(|(_, job)| job.parent.is_none()).map(|(id, _)| *id).collect();
        let items = self.items.keys().filter(|item| self.jobs.contains_key(&self.items[item].job));
        Snapshot {
            trees: roots.iter().map(|root| self.progress(*root)).collect(),
            items: items.map(|item| self.view(*item)).collect(),
            results: self.items.keys().copied().filter(|item| self.is_result(*item)).collect(),
        }
    }

    /// Returns true for a result of a tree: the job has `final_stage`, and the item succeeded.
    fn is_result(&self, item: Item) -> bool {
        let state = &self.items[&item];
        let Some(job) = self.jobs.get(&state.job) else { return false };
        let is_of_stage = match self.fault {
            Some(Fault::FinalStageIgnored) => true,
            Some(Fault::FinalStageRootOnly) => job.final_stage && job.parent.is_none(),
            _ => job.final_stage,
        };
        is_of_stage && state.result.is_some()
    }

    /// Returns an item as it is listed.
    pub fn view(&self, item: Item) -> ItemView {
        let state = &self.items[&item];
        let ended = if self.is_failed(state) { State::Failed } else { State::Succeeded };
        let open = if self.is_assigned(item) { State::Assigned } else { State::Pending };
        ItemView {
            item,
            job: state.job,
            payload: state.payload.clone(),
            state: if self.is_pending(state) { open } else { ended },
            result: state.result.clone().unwrap_or(Value::Null),
            failures: state.failures,
            dedupe_key: state.dedupe_key,
            serialize_key: state.serialize_key,
        }
    }

    /// Returns the live assignments, each with its item.
    pub fn live(&self) -> Vec<(Assignment, Item)> {
        self.live.iter().map(|(id, live)| (*id, live.item)).collect()
    }

    /// Returns the time of the next attempt of an item.
    pub fn retry_at(&self, item: Item) -> Option<Time> {
        self.items.get(&item).and_then(|state| state.retry_at)
    }

    /// Takes over the time of the next attempt that the service under test chose.
    pub fn set_retry_at(&mut self, item: Item, at: Option<Time>) {
        if let Some(state) = self.items.get_mut(&item) {
            state.retry_at = at;
        }
    }

    /// Returns the times at which something becomes due by itself.
    pub fn timers(&self) -> Vec<Time> {
        let deadlines = self.live.values().map(|live| live.beat_at + 3 * self.periods.heartbeat);
        let retries = self.items.values().filter(|item| self.is_pending(item)).filter_map(|item| item.retry_at);
        deadlines.chain(retries).collect()
    }
}
