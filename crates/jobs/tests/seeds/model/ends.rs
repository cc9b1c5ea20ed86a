//! Ends of assignments: results, failures, missed heartbeats, releases; and callbacks.

use serde_json::Value;

use super::{Due, Ended, Model};
use crate::call::{Answer, Assignment, Event, Item, Job, NewItem, Operation, Outcome, Settled, Time};
use crate::fault::Fault;
use crate::feed::fill;

impl Model {
    /// Removes a live assignment, and keeps its end. Returns its item.
    pub(super) fn end(&mut self, assignment: Assignment, end: Option<Settled>) -> Option<Item> {
        let live = self.live.remove(&assignment)?;
        self.ended.insert(assignment, Ended { item: live.item, end });
        Some(live.item)
    }

    /// Ends assignments by results and failures. Both are accepted only under a live assignment.
    pub(super) fn settle(&mut self, operation: &Operation) -> Answer {
        let clock = if let Operation::Fail { worker_clock, .. } = operation { *worker_clock } else { 0 };
        let is_batch = matches!(operation, Operation::Settle { .. });
        let settle_one = |(assignment, outcome)| match outcome {
            Outcome::Success(result) => self.succeed(assignment, result),
            Outcome::Failure(retry_in) => self.fail(assignment, retry_in, clock),
        };
        let settled = operation.outcomes().into_iter().map(settle_one);
        let terse = |one: Settled| if is_batch && one.is_ok() { Settled::Ok } else { one };
        Answer::Settled(settled.map(terse).collect())
    }

    /// Accepts a result under a live assignment. A repeated result is accepted again and changes nothing.
    fn succeed(&mut self, assignment: Assignment, result: Value) -> Settled {
        if let Some(live) = self.live.get(&assignment) {
            let item = live.item;
            if self.has(Fault::LiveResultRefused) && self.items[&item].failures > 0 {
                return Settled::Stale;
            }
            self.end(assignment, Some(Settled::Success));
            self.succeed_item(item, result);
            return Settled::Success;
        }
        let Some(ended) = self.ended.get(&assignment).cloned() else { return Settled::Stale };
        let is_there = self.items.contains_key(&ended.item);
        if ended.end == Some(Settled::Success) && is_there && !self.has(Fault::RepeatRefused) {
            if self.has(Fault::FeedTwice) {
                self.feed_children(ended.item, &result);
            }
            return Settled::Success;
        }
        if self.has(Fault::FeedStale) && ended.end.is_none() && is_there {
            self.feed_children(ended.item, &result);
        }
        if self.has(Fault::StaleResult) && is_there && self.is_pending(&self.items[&ended.item]) {
            self.succeed_item(ended.item, result);
            return Settled::Success;
        }
        Settled::Stale
    }

    fn succeed_item(&mut self, item: Item, result: Value) {
        let is_kept = self.has(Fault::KeyKeptBySuccess);
        let Some(state) = self.items.get_mut(&item) else { return };
        state.result = Some(result.clone());
        state.holds_key = is_kept;
        let job = state.job;
        self.feed_children(item, &result);
        self.note_success(job);
    }

    /// Records, for [`Fault::LastTwoTogether`], that two successes of a job overlapped. A negative time stands for that.
    fn note_success(&mut self, job: Job) {
        let overlaps = |at: &Time| *at >= 0 && self.now < *at + self.periods.heartbeat / 100;
        let is_together = self.last_success.get(&job).is_some_and(overlaps);
        self.last_success.insert(job, if is_together { -1 } else { self.now });
    }

    /// Adds an item made of a result to each child that has a feed.
    fn feed_children(&mut self, item: Item, result: &Value) {
        let (job, payload) = (self.items[&item].job, self.items[&item].payload.clone());
        let children = self.jobs.iter().filter(|(_, child)| child.parent == Some(job));
        let fed = children.filter_map(|(id, child)| child.feed.clone().map(|feed| (*id, feed)));
        let count = if self.has(Fault::FeedFirstOnly) { 1 } else { usize::MAX };
        for (child, feed) in fed.take(count).collect::<Vec<_>>() {
            let part = if self.has(Fault::FeedWrongPart) { &payload } else { result };
            let payload = fill(&feed, part, &payload);
            self.insert(child, &NewItem { payload, ..NewItem::default() });
        }
    }

    /// Accepts a failure under a live assignment. A repeated failure is accepted again and changes nothing.
    fn fail(&mut self, assignment: Assignment, retry_in: Option<Time>, clock: Time) -> Settled {
        if let Some(item) = self.live.get(&assignment).map(|live| live.item) {
            let settled = self.fail_item(item, retry_in, clock);
            self.end(assignment, Some(settled));
            return settled;
        }
        let Some(ended) = self.ended.get(&assignment).cloned() else { return Settled::Stale };
        let is_there = self.items.contains_key(&ended.item);
        match ended.end {
            Some(settled @ Settled::Failure { .. }) if is_there => settled,
            Some(Settled::Success) if is_there && self.has(Fault::SecondEnd) => Settled::Failure { retry_at: None },
            _ if is_there && self.has(Fault::StaleFailure) => self.fail_item(ended.item, retry_in, clock),
            _ => Settled::Stale,
        }
    }

    /// Appends a failure. It is final if the failures exceed the limit; otherwise the item is tried again after a delay.
    fn fail_item(&mut self, item: Item, retry_in: Option<Time>, clock: Time) -> Settled {
        let wished = retry_in.filter(|_| !self.has(Fault::RetryInIgnored)).map(|delay| self.now + delay);
        let known = self.next_retry_at.take();
        let (changes, overwrites) = (self.has(Fault::PayloadChanges), self.has(Fault::FailuresOverwritten));
        let by_worker = if self.has(Fault::RetryByWorkersClock) { clock } else { 0 };
        let kept = self.has(Fault::KeyKeptByFailure);
        let (now, backoff) = (self.now, self.periods.backoff);
        let Some(state) = self.items.get_mut(&item) else { return Settled::Stale };
        state.failures = if overwrites { 1 } else { state.failures + 1 };
        if changes {
            state.payload = Value::Null;
        }
        let delayed = now + (backoff << (state.failures - 1).min(10));
        state.retry_at = Some(wished.or(known).unwrap_or(delayed) + by_worker);
        let retry_at = state.retry_at;
        let (state, job) = (state.clone(), state.job);
        if !self.is_failed(&state) {
            return Settled::Failure { retry_at };
        }
        if let Some(state) = self.items.get_mut(&item) {
            (state.retry_at, state.holds_key) = (None, kept);
        }
        if self.has(Fault::FeedOnFailure) {
            self.feed_children(item, &Value::Null);
        }
        self.note_success(job);
        Settled::Failure { retry_at: None }
    }

    /// Records a sign of life for live assignments. Returns those that have ended.
    pub(super) fn heartbeat(&mut self, assignments: &[Assignment], clock: Time) -> Answer {
        let by_worker = if self.has(Fault::HeartbeatByWorkersClock) { clock } else { 0 };
        let (now, is_forgotten) = (self.now, self.has(Fault::HeartbeatForgotten));
        for assignment in assignments {
            if let Some(live) = self.live.get_mut(assignment).filter(|_| !is_forgotten) {
                live.beat_at = now + by_worker;
            }
        }
        Answer::Stale(self.stale(assignments))
    }

    fn stale(&self, assignments: &[Assignment]) -> Vec<Assignment> {
        let stale = assignments.iter().copied().filter(|one| !self.live.contains_key(one));
        stale.filter(|_| !self.has(Fault::StaleHeartbeat)).collect()
    }

    /// Gives items back without a failure. Returns the assignments that had ended.
    pub(super) fn release(&mut self, assignments: &[Assignment]) -> Answer {
        let stale = self.stale(assignments);
        for assignment in assignments {
            let Some(item) = self.end(*assignment, None) else { continue };
            if self.has(Fault::ReleaseCounts) {
                self.fail_item(item, Some(0), 0);
            }
        }
        Answer::Stale(stale)
    }

    /// Ends assignments that missed three heartbeats. Each end counts as a failure.
    pub(super) fn sweep(&mut self) -> Answer {
        let missed = if self.has(Fault::ExpiryEarly) { 1 } else { 3 };
        let deadline = self.now - missed * self.periods.heartbeat;
        let is_dead = |beat_at: Time| beat_at < deadline && !self.has(Fault::ExpiryNever);
        let dead: Vec<Assignment> =
            self.live.iter().filter(|(_, live)| is_dead(live.beat_at)).map(|(id, _)| *id).collect();
        for assignment in dead {
            let Some(item) = self.end(assignment, None) else { continue };
            if !self.has(Fault::ExpiryForgiven) {
                self.fail_item(item, None, 0);
            }
        }
        Answer::Done
    }

    /// Makes the callback of a complete tree due, once.
    pub(super) fn complete_tree(&mut self, root: Job) {
        let event = self.draw();
        let now = self.now;
        let Some(state) = self.jobs.get_mut(&root) else { return };
        state.tree_complete = true;
        if state.callback {
            self.due.push(Due { event, root, not_before: now });
        }
    }

    /// Leases the callbacks that are due. One that is not delivered in time is due again, as the same event.
    pub(super) fn lease_callbacks(&mut self) -> Answer {
        let (now, lease, is_twice) = (self.now, self.periods.callback_lease, self.has(Fault::CallbackTwice));
        let mut next = self.next;
        let mut leased = Vec::new();
        for due in self.due.iter_mut().filter(|due| due.not_before <= now) {
            leased.push((due.event, due.root));
            due.not_before = now + lease;
            if is_twice {
                next += 1;
                due.event = next;
            }
        }
        self.next = next;
        if self.has(Fault::CallbackLost) {
            self.due.clear();
        }
        Answer::Callbacks(leased)
    }

    /// Ends a callback that was delivered. One that is gone changes nothing.
    pub(super) fn delivered(&mut self, event: Event) -> Answer {
        self.due.retain(|due| due.event != event);
        Answer::Done
    }
}
