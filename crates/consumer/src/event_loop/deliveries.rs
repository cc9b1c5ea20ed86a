//! Deliveries: the event loop's handling of each delivery, from receipt to completion.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::Phase;
use super::super::breaker::{Change, End};
use super::super::delivery::{Action, Event, Machine, Replies};
use super::super::effects::Id;
use super::super::failures::Kind;
use super::super::idempotency::is_large;
use super::super::in_hand::InHand;
use super::super::policy::Disposition;
use super::EventLoop;
use hostler_config::OnProcessingTimeout;
use hostler_handler::{Bounds, Call, HOOK_TIMEOUT, Output};
use hostler_queue::{Delivery, LeaseHandle, Receipt, Report, Settlement};

/// Pending step in the event loop's handling of an event.
pub(super) enum Command {
    /// Passes an event to the state machine of a delivery, and carries out the resulting action.
    Feed(Id, Event),
    /// Handles a state change of the breaker.
    Turned(Change),
    /// Stops receiving, and gives back messages whose handlers have not started.
    Shut,
}

impl EventLoop {
    /// Adds a delivery that arrived at `time`. Returns `true` if the delivery waits for an earlier delivery of its FIFO
    /// group.
    pub(super) fn admit(&mut self, delivery: Delivery, time: SystemTime) -> bool {
        let id = self.next_id;
        self.next_id += 1;
        let Delivery { message, receipt, attempt, leased_at, not_before, job } = delivery;
        let spec = &self.consumer.spec;
        let is_taken = !self.taken_early.is_empty() && self.taken_early.remove(&receipt.lease());
        let (lease, queue) = (receipt.lease(), &self.consumer.queue);
        let duration = queue.duration_of(&lease, spec.lease);
        self.leases.enter_for(id, lease, leased_at, duration);
        // The queue delay of a message with a start time counts from that time.
        let due_for = not_before.map_or(Duration::MAX, |at| self.now.saturating_duration_since(at));
        let queue_delay = message.age(time).min(due_for);
        let wait = not_before.and_then(|at| at.checked_duration_since(self.now)).filter(|wait| !wait.is_zero());
        let late = queue_delay > spec.delay_tolerance;
        let bounds = Bounds::until(self.now.into_std() + spec.processing_timeout);
        let output = Output::new(spec.output);
        let (counted, spoilt) = self.spared.counted(&message.id, attempt);
        let outbox = self.runs.as_ref().map(|runs| runs.enter(receipt.lease(), &message));
        let call = Call::new(message, Arc::clone(&spec.channel), attempt, bounds, output);
        let replies = match &self.consumer.replies {
            _ if queue.decides_retries() => Replies::Service,
            _ if self.runs.is_some() => Replies::Record,
            Some(_) => Replies::Channel,
            None => Replies::Nowhere,
        };
        let in_hand = InHand {
            machine: Machine::new(counted, spoilt, replies, fastrand::f64()),
            call: Arc::new(Call { job, outbox, ..call }),
            receipt: Some(receipt),
            queue_delay,
            late,
            started_at: None,
            ran_for: Duration::ZERO,
            heartbeat_failed: false,
            span: None,
            membership: None,
        };
        self.occupied += 1;
        let may_start = match self.group_of(&in_hand) {
            Some(group) => self.gate.enter(&group, id),
            None => true,
        };
        self.in_hand.insert(id, Box::new(in_hand));
        // A message that must not start yet cannot be the breaker's probe.
        let is_kept = wait.is_some() || self.admission.admits(id);
        let is_over = is_taken || self.leases.deadline(id).is_some_and(|deadline| deadline <= self.now);
        if is_over {
            // The lease ended before the delivery reached the loop.
            self.leases.remove(id);
            self.lose(id);
        } else if let Some(wait) = wait {
            self.schedule.not_due();
            self.apply(id, Event::NotDue(wait));
        } else if self.phase > Phase::Running || !is_kept {
            // The delivery arrived after receiving had stopped.
            self.apply(id, Event::Drain);
        } else if may_start && !self.gathers(id) {
            self.apply(id, Event::Start);
        }
        !may_start
    }

    /// Passes an event to the state machine of a delivery, and carries out all commands that result from it.
    pub(super) fn apply(&mut self, id: Id, event: Event) {
        self.carry_out(Command::Feed(id, event));
    }

    /// Carries out a command and all commands that result from it, last in, first out. Therefore, all commands that
    /// result for one delivery are carried out before the commands that were pushed earlier.
    pub(super) fn carry_out(&mut self, command: Command) {
        self.commands.push(command);
        while let Some(command) = self.commands.pop() {
            match command {
                Command::Feed(id, event) => self.feed(id, event),
                Command::Turned(change) => self.turned(change),
                Command::Shut => self.shut(),
            }
        }
    }

    fn feed(&mut self, id: Id, event: Event) {
        let Some(in_hand) = self.in_hand.get_mut(&id) else { return };
        if matches!(event, Event::Ended(_) | Event::Decided(_)) && is_large(&in_hand.call) {
            in_hand.machine.keep_slot();
        }
        let held_slot = in_hand.machine.holds_slot();
        let action = in_hand.machine.handle(event, &self.consumer.spec.policy);
        if held_slot && !in_hand.machine.holds_slot() {
            let vacated = self.batches.as_mut().map(|batches| batches.vacated(id, in_hand.membership));
            self.occupied -= vacated.unwrap_or(1);
        }
        match action {
            Action::Nothing => {}
            Action::Run => self.start(id),
            Action::AskToStop => in_hand.call.bounds.stop.ask(),
            Action::Stop => in_hand.call.bounds.stop.force(),
            // At the drain deadline, no time is left for a hook. After the end of the lease, another receiver may have
            // the message.
            Action::Decide(_) if self.phase == Phase::Deadline || !self.leases.hold(id, self.now) => {
                self.commands.push(Command::Feed(id, Event::Decided(None)));
            }
            Action::Decide(elapsed) => {
                Arc::make_mut(&mut in_hand.call).bounds = Bounds::until(self.now.into_std() + HOOK_TIMEOUT);
                self.effects.decide(id, Arc::clone(&in_hand.call), elapsed, in_hand.span.is_some());
            }
            Action::Reply(body) => self.effects.reply(id, &in_hand.call, body),
            Action::Record => {
                let lease = in_hand.receipt.as_ref().map(Receipt::lease);
                if let (Some(runs), Some(lease)) = (&self.runs, lease) {
                    self.effects.record(id, runs.record(&lease));
                }
            }
            Action::StopHeartbeat => {
                let end = End::of(in_hand.machine.outcome(), in_hand.started_at.is_some());
                let turned = self.admission.breaker.ended(id, end, self.now);
                // Push this command before the delivery's own commands, so that it runs after them. Otherwise, a later
                // message of the group could go back before this one.
                self.commands.extend(turned.map(Command::Turned));
                if self.leases.stop(id) {
                    self.commands.push(Command::Feed(id, Event::HeartbeatStopped));
                }
            }
            Action::Settle(disposition) => self.settle(id, disposition),
            Action::Finish => self.finish(id),
        }
    }

    fn start(&mut self, id: Id) {
        let Some((call, sampled)) = self.begin(id) else { return };
        self.deadlines.insert((self.now + self.consumer.spec.processing_timeout, id));
        self.effects.run(id, call, sampled);
    }

    /// Records that the handler starts on a delivery, alone or in a batch. Returns the call, and `true` if the span of the
    /// message is exported.
    pub(super) fn begin(&mut self, id: Id) -> Option<(Arc<Call>, bool)> {
        let in_hand = self.in_hand.get_mut(&id)?;
        let (now, timeout) = (self.now, self.consumer.spec.processing_timeout);
        in_hand.started_at = Some(now);
        self.running.insert((now, id));
        // The call is not shared yet, so nothing is copied, unless the message ran in a batch before.
        let call = Arc::make_mut(&mut in_hand.call);
        call.bounds.deadline = now.into_std() + timeout;
        if in_hand.membership.is_some() {
            return Some((Arc::clone(&in_hand.call), in_hand.span.is_some()));
        }
        self.summary.late += u64::from(in_hand.late);
        if let Some(metrics) = &self.consumer.metrics {
            metrics.started(in_hand.queue_delay, in_hand.late);
        }
        if let Some(spans) = &self.spans {
            let (span, trace) = spans.process(&call.message, call.attempt);
            call.trace = trace;
            in_hand.span = span.is_recording().then(|| (span, SystemTime::now()));
        }
        Some((Arc::clone(&in_hand.call), in_hand.span.is_some()))
    }

    /// Handles the end of the handler or of the processing-timeout hook.
    pub(super) fn ended(&mut self, id: Id, event: Event) {
        if let Some(in_hand) = self.in_hand.get_mut(&id)
            && let Some(started_at) = in_hand.started_at
        {
            self.running.remove(&(started_at, id));
            self.deadlines.remove(&(started_at + self.consumer.spec.processing_timeout, id));
            if matches!(event, Event::Ended(_) | Event::Unstarted(_) | Event::Again) {
                in_hand.ran_for = self.now - started_at;
            }
        }
        self.apply(id, event);
    }

    fn settle(&mut self, id: Id, disposition: Disposition) {
        let Some(in_hand) = self.in_hand.get_mut(&id) else { return };
        let Some(receipt) = in_hand.receipt.take() else { return };
        let (is_ack, delay) = (disposition == Disposition::Ack, disposition.delay().unwrap_or_default());
        let settlement = match disposition {
            Disposition::Ack => Settlement::Ack(match in_hand.machine.take_result() {
                Some(result) => receipt.with_report(Report::Result(result)),
                None => receipt,
            }),
            Disposition::Fail { reason, retry_in } => {
                Settlement::Release(receipt.with_report(Report::Failure { reason, retry_in }), delay)
            }
            Disposition::Release(delay) => Settlement::Release(receipt, delay),
            Disposition::GiveBack(delay) => Settlement::GiveBack(receipt, delay),
            Disposition::DeadLetter(reason) => {
                Settlement::DeadLetter { receipt, message: Arc::clone(&in_hand.call.message), reason }
            }
            Disposition::None => return self.finish(id),
        };
        let settlement = settlement.within(self.limits.max_release);
        self.batcher.push(id, settlement, self.now, self.leases.deadline(id));
        // Push the followers' commands after the settlement of their head, so that the head becomes visible before
        // them.
        if let Some(group) = self.in_hand.get(&id).filter(|_| !is_ack).and_then(|in_hand| self.group_of(in_hand)) {
            self.send_back_followers(id, &group, delay);
        }
    }

    /// Releases a message whose move to the dead-letter queue has failed. `copy`: the failed settlement.
    pub(super) fn give_up_copy(&mut self, id: Id, copy: Settlement) {
        let Some(release) = in_place_of(copy) else { return };
        self.summary.abandoned += 1;
        self.apply(id, Event::CopyGivenUp);
        self.batcher.push(id, release, self.now, self.leases.deadline(id));
    }

    /// Handles leases that the service has taken away. Other receivers can have the messages, so the handlers stop. The
    /// signal may overtake the one of the receive call, which then brings deliveries without a lease.
    pub(super) fn taken_back(&mut self, leases: Vec<LeaseHandle>) {
        for lease in leases {
            if let Some(id) = self.leases.owner(&lease) {
                self.leases.remove(id);
                self.lose(id);
            } else if self.schedule.under_way() > 0 {
                self.taken_early.insert(lease);
            }
        }
    }

    /// Handles the loss of a lease. If a settlement was already sent, keeps waiting for its result, because the
    /// settlement may have reached the queue in time.
    pub(super) fn lose(&mut self, id: Id) {
        let Some(in_hand) = self.in_hand.get(&id) else { return };
        if in_hand.machine.is_settling() && !self.batcher.withdraw(id) {
            return;
        }
        tracing::warn!(consumer = &*self.consumer.spec.name, message_id = in_hand.message_id(), "lease lost");
        if in_hand.heartbeat_failed {
            self.failures.failed(Kind::Extension, self.now);
        }
        if let Some(metrics) = &self.consumer.metrics {
            metrics.lease_lost();
        }
        let membership = in_hand.membership;
        self.apply(id, Event::LeaseLost);
        // The guest of a batch is told, and no answer for the message is waited for.
        if let (Some(membership), Some(batches)) = (membership, &mut self.batches)
            && batches.lost(membership.batch, id)
        {
            self.note(id, None);
            self.ended(id, Event::Ended(None));
        }
    }

    fn finish(&mut self, id: Id) {
        let Some(mut in_hand) = self.in_hand.remove(&id) else { return };
        self.leases.remove(id);
        self.over(&mut in_hand);
        self.admission.breaker.forget(id);
        let exits = self.consumer.spec.policy.on_processing_timeout == OnProcessingTimeout::Exit;
        if exits && in_hand.machine.timed_out_undecided() {
            self.consumer.exit.cancel();
        }
        if let Some(group) = self.group_of(&in_hand) {
            self.leave(id, &group, in_hand.machine.disposition());
        }
    }
}

/// Returns the release of a message that cannot be moved to the dead-letter queue. A service that decides on retries records the
/// failure.
pub(super) fn in_place_of(copy: Settlement) -> Option<Settlement> {
    let Settlement::DeadLetter { receipt, reason, .. } = copy else { return None };
    let receipt = receipt.with_report(Report::Failure { reason, retry_in: None });
    Some(Settlement::Release(receipt, Duration::ZERO))
}
