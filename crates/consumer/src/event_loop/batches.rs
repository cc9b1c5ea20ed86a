//! Batches: starts handler calls with several messages, and handles their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::Phase;
use super::super::batch::{Batch, Cause, Verdict};
use super::super::delivery::{Action, Event};
use super::super::effects::Id;
use super::super::gather::Gather;
use super::super::in_hand::{BatchId, Membership};
use super::EventLoop;
use hostler_config as config;
use hostler_handler::{BatchEnd, Bounds, Stop};
use hostler_types::message::Message;

/// A batch with a slot.
struct InSlot {
    machine: Batch<Id>,
    /// Handle that stops the guest.
    stop: Stop,
    /// Time at which the guest reaches the processing timeout.
    deadline: Instant,
}

/// The batches of one consumer, and the messages that wait for one.
pub(super) struct Batches {
    settings: config::Batch,
    gather: Gather<Id>,
    in_slots: BTreeMap<BatchId, InSlot>,
    /// Batches whose guests run, ordered by the time at which they reach the processing timeout.
    deadlines: BTreeSet<(Instant, BatchId)>,
    next_id: BatchId,
}

impl Batches {
    pub(super) fn new(settings: config::Batch) -> Self {
        let (in_slots, deadlines) = (BTreeMap::new(), BTreeSet::new());
        Self { settings, gather: Gather::new(settings), in_slots, deadlines, next_id: 0 }
    }

    /// Returns `true` if no batch has a slot.
    pub(super) fn is_empty(&self) -> bool {
        self.in_slots.is_empty()
    }

    /// Returns the next time at which a batch is due to start, or to be stopped. `slots`: number of slots.
    pub(super) fn next_at(&self, slots: usize) -> Option<Instant> {
        let start = self.gather.due_at().filter(|_| self.in_slots.len() < slots);
        let stop = self.deadlines.first().map(|(at, _)| *at);
        start.into_iter().chain(stop).min()
    }

    /// Records that the delivery `id` holds a slot no longer. Returns the number of messages for which there is room now.
    pub(super) fn vacated(&mut self, id: Id, membership: Option<Membership>) -> usize {
        let Some(membership) = membership else {
            self.gather.remove(id);
            return 1;
        };
        if let Some(in_slot) = self.in_slots.get_mut(&membership.batch) {
            in_slot.machine.released(id);
        }
        self.close(membership.batch)
    }

    /// Frees the slot of a batch that is over. Returns the number of messages for which there is room now.
    fn close(&mut self, batch: BatchId) -> usize {
        let is_over = self.in_slots.get(&batch).is_some_and(|in_slot| in_slot.machine.is_over());
        if !is_over {
            return 0;
        }
        self.in_slots.remove(&batch);
        self.settings.max
    }

    /// Records that a delivery of a batch has its outcome.
    pub(super) fn answered(&mut self, batch: BatchId, id: Id) {
        self.stop_if(batch, |machine| machine.answered(id));
    }

    /// Records that the lease of a delivery of a batch is lost. Returns `true` if the guest runs on for others, or is being
    /// stopped, and no longer has to do with this delivery.
    pub(super) fn lost(&mut self, batch: BatchId, id: Id) -> bool {
        let is_open = self.in_slots.get(&batch).is_some_and(|in_slot| in_slot.machine.is_open(id));
        self.stop_if(batch, |machine| machine.lost(id));
        is_open
    }

    /// Stops the guest of a batch, because an operator has cancelled one of its deliveries.
    pub(super) fn cancelled(&mut self, batch: BatchId) {
        self.stop_if(batch, |machine| machine.stop(Cause::Cancelled));
    }

    fn stop_if(&mut self, batch: BatchId, stops: impl FnOnce(&mut Batch<Id>) -> bool) {
        if let Some(in_slot) = self.in_slots.get_mut(&batch)
            && stops(&mut in_slot.machine)
        {
            in_slot.stop.force();
        }
    }

    /// Asks the guests to finish early, or stops them at the drain deadline.
    pub(super) fn enter(&mut self, phase: Phase) {
        for in_slot in self.in_slots.values_mut() {
            in_slot.stop.ask();
            if phase == Phase::Deadline && in_slot.machine.stop(Cause::Shutdown) {
                in_slot.stop.force();
            }
        }
    }

    /// Stops the guests that have reached the processing timeout. `timeout`: its length.
    fn stop_late(&mut self, now: Instant, timeout: Duration) {
        while let Some((at, batch)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.stop_if(batch, |machine| machine.stop(Cause::Timeout(timeout)));
        }
    }
}

impl EventLoop {
    /// Returns the number of messages that hold a slot or a place in a batch. No more are received while the waiting messages
    /// fill the bytes of all batches that may start.
    pub(super) fn occupied(&self) -> usize {
        let Some(batches) = &self.batches else { return self.occupied };
        let free = self.consumer.spec.concurrency.saturating_sub(batches.in_slots.len());
        if batches.gather.fills(free) { self.consumer.spec.capacity() } else { self.occupied }
    }

    /// Adds a delivery that may start to those that wait for a batch. Returns `false` if the consumer has no batches.
    pub(super) fn gathers(&mut self, id: Id) -> bool {
        let (Some(batches), Some(in_hand)) = (&mut self.batches, self.in_hand.get(&id)) else { return false };
        batches.gather.push(id, size(&in_hand.call.message), self.now);
        true
    }

    /// Stops guests that are late, and starts what may start: single runs, and batches in free slots.
    pub(super) fn advance_batches(&mut self) {
        let (now, timeout) = (self.now, self.consumer.spec.processing_timeout);
        let Some(batches) = &mut self.batches else { return };
        batches.stop_late(now, timeout);
        let singles = batches.in_slots.values_mut().filter_map(|in_slot| in_slot.machine.next_single());
        for id in singles.collect::<Vec<_>>() {
            self.apply(id, Event::Start);
        }
        loop {
            // The breaker's probe is alone, so it waits for no other message. Nor can any come while there is no room for more.
            let at_once = self.admission.breaker.has_probe() || self.occupied >= self.consumer.spec.capacity();
            let Some(batches) = &mut self.batches else { return };
            if batches.in_slots.len() >= self.consumer.spec.concurrency {
                return;
            }
            let Some(members) = batches.gather.next(at_once, now) else { return };
            self.start_batch(&members);
        }
    }

    fn start_batch(&mut self, members: &[Id]) {
        let Some(batches) = &mut self.batches else { return };
        let (batch, settings) = (batches.next_id, batches.settings);
        batches.next_id += 1;
        let mut calls = Vec::new();
        for id in members {
            // Each of them waits, because the gatherer has no others.
            let run = self.in_hand.get_mut(id).map(|one| one.machine.handle(Event::Start, &self.consumer.spec.policy));
            if run == Some(Action::Run)
                && let Some((call, _)) = self.begin(*id)
            {
                calls.push((*id, call));
            }
        }
        if let Some(metrics) = &self.consumer.metrics {
            metrics.batch_started(calls.len());
        }
        let membership = Membership { batch, size: calls.len() };
        for (id, _) in &calls {
            if let Some(in_hand) = self.in_hand.get_mut(id) {
                in_hand.membership = Some(membership);
            }
        }
        self.occupied = self.occupied.saturating_sub(calls.len()) + settings.max;
        let deadline = self.now + self.consumer.spec.processing_timeout;
        let bounds = Bounds::until(deadline.into_std());
        let ids = calls.iter().map(|(id, _)| *id).collect();
        let in_slot = InSlot { machine: Batch::new(ids, settings.on_trap), stop: bounds.stop.clone(), deadline };
        if let Some(batches) = &mut self.batches {
            batches.in_slots.insert(batch, in_slot);
            batches.deadlines.insert((deadline, batch));
        }
        self.effects.run_batch(batch, calls, bounds, self.consumer.spec.output);
    }

    /// Handles the end of a batch's guest. `ids`: the deliveries that the handler got, in order. `end`: `None` if the guest was
    /// stopped.
    pub(super) fn batch_ended(&mut self, batch: BatchId, ids: &[Id], end: Option<BatchEnd>) {
        let Some(batches) = &mut self.batches else { return };
        let Some(in_slot) = batches.in_slots.get_mut(&batch) else { return };
        batches.deadlines.remove(&(in_slot.deadline, batch));
        let reason = match &end {
            Some(BatchEnd::Trapped(reason)) => reason.clone(),
            _ => "it was stopped".to_owned(),
        };
        let verdicts = in_slot.machine.ended(ids, end);
        let (size, unanswered) = (in_slot.machine.size(), verdicts.len());
        if verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Again) {
            let consumer = &*self.consumer.spec.name;
            tracing::warn!(
                consumer,
                batch = size,
                unanswered,
                reason,
                "batch failed: its unanswered messages run alone"
            );
        }
        for (id, verdict) in verdicts {
            match verdict {
                Verdict::Outcome(outcome) => self.concluded(id, Some(outcome)),
                Verdict::Stopped => self.concluded(id, None),
                Verdict::Again => self.run_again(id, batch),
            }
        }
        let vacated = self.batches.as_mut().map_or(0, |batches| batches.close(batch));
        self.occupied -= vacated;
    }

    /// Prepares the single run of a delivery whose batch has ended without an answer for it. Gives the message back if it may
    /// not start any more.
    fn run_again(&mut self, id: Id, batch: BatchId) {
        self.ended(id, Event::Again);
        let Some(in_hand) = self.in_hand.get_mut(&id).filter(|in_hand| in_hand.machine.is_waiting()) else { return };
        in_hand.started_at = None;
        let call = Arc::make_mut(&mut in_hand.call);
        call.bounds = Bounds::until(self.now.into_std());
        call.decided = Arc::default();
        if self.phase > Phase::Running || !self.admission.may_start(id) {
            self.apply(id, Event::Drain);
        } else if let Some(in_slot) = self.batches.as_mut().and_then(|batches| batches.in_slots.get_mut(&batch)) {
            in_slot.machine.queue_single(id);
        }
    }
}

/// Returns the size of a message as it counts for a batch, in bytes: its body and its attributes. A body that is stored outside
/// the queue has the size that its producer reports.
fn size(message: &Message) -> u64 {
    let attributes = message.attributes.iter().map(|(name, value)| name.len() + value.len());
    let own = (message.body.len() + attributes.sum::<usize>()) as u64;
    own.saturating_add(message.claim.as_ref().and_then(|claim| claim.size).unwrap_or(0))
}

#[cfg(test)]
mod tests;
