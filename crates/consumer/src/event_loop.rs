//! Event loop of one consumer: turns signals and deadlines into events, events into commands, and commands into
//! effects.

mod batches;
mod deliveries;
mod groups;
mod pause;
mod report;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use self::batches::Batches;
use self::deliveries::Command;
use super::admission::Admission;
use super::delivery::Event;
use super::effects::{DECIDED_AFTER, Effects, Id, Signal};
use super::failures::{Failures, Kind};
use super::fifo::Gate;
use super::idempotency::{self, Runs, never_started};
use super::in_hand::InHand;
use super::leases::{Change, Leases};
use super::poll_schedule::{Load, Next, PollSchedule};
use super::requests::Open;
use super::settle::Batcher;
use super::signals::Signals;
use super::spans::Spans;
use super::spared::Spared;
use super::{Consumer, Phase, Summary};
use hostler_handler::Outcome;
use hostler_queue::{Delivery, LeaseError, LeaseHandle, Limits, QueueError, Unsettled};
use hostler_types::State;

/// Maximum time to sleep when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Reason why the event loop woke up.
enum Woken {
    /// The phase has changed. `false`: the sender was dropped, so the phase cannot change any more.
    Phase(bool),
    /// The operator's pause has changed. `false`: the sender was dropped.
    Pause(bool),
    Signals,
    Time,
}

pub(super) struct EventLoop {
    consumer: Consumer,
    limits: Limits,
    effects: Effects,
    spans: Option<Spans>,
    signals: Arc<Signals<Signal>>,
    phase: Phase,
    /// Unfinished deliveries, in the order of receipt. Boxed because a `BTreeMap` moves its values.
    in_hand: BTreeMap<Id, Box<InHand>>,
    next_id: Id,
    /// Number of deliveries that hold a slot: see [`Machine::holds_slot`](super::delivery::Machine::holds_slot). With batches,
    /// the number of deliveries that wait for one, and as many for each batch with a slot as a batch may have.
    occupied: usize,
    /// Deliveries whose guest is running, ordered by start time.
    running: BTreeSet<(Instant, Id)>,
    /// Deliveries that run alone, ordered by the time at which they reach the processing timeout.
    deadlines: BTreeSet<(Instant, Id)>,
    leases: Leases<Id>,
    /// Leases that the service took away, and whose deliveries a receive call may still bring.
    taken_early: HashSet<LeaseHandle>,
    batcher: Batcher<Id>,
    schedule: PollSchedule,
    admission: Admission<Id>,
    /// `None`: the handler gets one message at a time.
    batches: Option<Batches>,
    gate: Gate<Id>,
    spared: Spared,
    /// Makes the runs of deliveries. `None`: the consumer has no idempotency.
    runs: Option<Runs>,
    /// Commands still to be carried out for the current event. The last element is carried out first.
    commands: Vec<Command>,
    /// Time of the current event. The clock is read once each time the loop wakes.
    now: Instant,
    failures: Failures,
    summary: Summary,
    /// Keeps the channel for operator requests open.
    open: Open,
}

impl EventLoop {
    pub(super) fn new(consumer: Consumer) -> Self {
        let (consumer, runs) = idempotency::guard(consumer);
        let signals = consumer.requests.signals();
        let limits = consumer.queue.limits();
        let spec = &consumer.spec;
        let spans = |traces| Spans::new(traces, &spec.name, &spec.channel, &*consumer.queue);
        let spans = consumer.traces.clone().map(spans);
        let now = Instant::now();
        Self {
            limits,
            effects: Effects::new(&consumer, spans.clone(), Arc::clone(&signals)),
            spans,
            signals,
            phase: Phase::Running,
            in_hand: BTreeMap::new(),
            next_id: 0,
            occupied: 0,
            running: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            leases: Leases::new(spec.lease, limits.max_lease),
            taken_early: HashSet::new(),
            batcher: Batcher::new(limits, spec.ordered),
            schedule: PollSchedule::new(spec, limits, now),
            admission: Admission::new(spec.breaker, now),
            batches: spec.batch.map(Batches::new),
            gate: Gate::default(),
            spared: Spared::default(),
            runs,
            commands: Vec::new(),
            now,
            failures: Failures::new(spec),
            summary: Summary::default(),
            open: consumer.requests.open(),
            consumer,
        }
    }

    pub(super) async fn run(mut self, mut phase: watch::Receiver<Phase>) -> Summary {
        self.effects.state_changed(Some((State::Initializing, State::Initialized)));
        if self.consumer.handler.decides_timeouts() {
            self.consumer.status.update(self.now, |status| status.hook_takes = DECIDED_AFTER);
        }
        let mut pause = self.consumer.pause.clone();
        let mut can_pause = true;
        let mut came = VecDeque::new();
        self.pause(*pause.borrow_and_update());
        loop {
            let poll_at = self.advance();
            self.show();
            if self.phase > Phase::Running && self.is_done() {
                break;
            }
            let wake_at = self.next_at(poll_at).unwrap_or(self.now + IDLE);
            // A fixed order makes the handling of simultaneous events deterministic.
            let woken = tokio::select! {
                biased;
                changed = phase.changed(), if self.phase < Phase::Deadline => Woken::Phase(changed.is_ok()),
                changed = pause.changed(), if can_pause => Woken::Pause(changed.is_ok()),
                () = self.signals.recv(&mut came) => Woken::Signals,
                () = sleep_until(wake_at) => Woken::Time,
            };
            self.now = Instant::now();
            match woken {
                Woken::Phase(true) => self.enter(*phase.borrow_and_update()),
                Woken::Phase(false) => self.enter(Phase::Deadline),
                Woken::Pause(is_open) => {
                    can_pause = is_open;
                    self.pause(*pause.borrow_and_update());
                }
                Woken::Signals => self.take_all(&mut came),
                Woken::Time => {}
            }
        }
        // From here on, no signals are read. Dropping `open` ends pending requests without an answer, so that they do
        // not wait for the queue or for the `state-changed` hook.
        drop(self.open);
        let last = async {
            self.effects.rested().await;
            self.effects.all_told().await;
        };
        tokio::select! {
            () = last => {}
            _ = phase.wait_for(|phase| *phase == Phase::Deadline) => {}
        }
        self.summary
    }

    /// Returns `true` if nothing is in hand: no delivery, no receive call, and no guest of a batch.
    fn is_done(&self) -> bool {
        self.in_hand.is_empty() && self.schedule.under_way() == 0 && self.batches.as_ref().is_none_or(Batches::is_empty)
    }

    /// Handles everything that is due now: the end of the breaker's pause, expired leases, processing timeouts,
    /// heartbeats, settlements and receive calls. Returns the time at which to query the poll schedule again.
    fn advance(&mut self) -> Option<Instant> {
        let now = self.now;
        if let Some(change) = self.admission.breaker.tick(now) {
            self.carry_out(Command::Turned(change));
        }
        for id in self.leases.expire(now) {
            self.lose(id);
        }
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.apply(id, Event::Deadline(self.consumer.spec.processing_timeout));
        }
        self.advance_batches();
        for heartbeat in self.leases.heartbeats(now, self.limits.settle_batch) {
            self.effects.extend(heartbeat, now);
        }
        while let Some(batch) = self.batcher.next(now, !self.running.is_empty() && self.phase == Phase::Running) {
            let span = self.spans.as_ref().and_then(|spans| {
                let about = batch.iter().filter_map(|(id, _)| self.in_hand.get(id));
                spans.settle(&about.map(|in_hand| &*in_hand.call).collect::<Vec<_>>())
            });
            self.effects.settle(batch, span);
        }
        if self.phase == Phase::Running { self.poll() } else { None }
    }

    /// Starts all receive calls that the schedule allows. Returns the time at which to query the schedule again.
    /// `None`: after the next event.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            let load = Load { occupied: self.occupied(), running: self.running.len(), in_hand: self.in_hand.len() };
            match self.schedule.next(load, &self.admission, self.now) {
                Next::Receive(request) => self.effects.receive(request),
                Next::At(at) => return Some(at),
                Next::Event => return None,
                Next::Rest(at) => {
                    self.effects.rest();
                    return at;
                }
            }
        }
    }

    /// Returns the next time at which something is due. `poll_at`: time at which to query the poll schedule again.
    fn next_at(&self, poll_at: Option<Instant>) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let batches = self.batches.as_ref().and_then(|batches| batches.next_at(self.consumer.spec.concurrency));
        [self.leases.next_at(), self.batcher.next_at(), deadline, batches, poll_at].into_iter().flatten().min()
    }

    fn enter(&mut self, phase: Phase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.effects.stop_polling.cancel();
        self.effects.rest();
        // A message stays while an earlier message of its group is being settled, and goes back afterwards. At the
        // deadline, no time is left to wait.
        let stays = |in_hand: &InHand| {
            phase == Phase::Draining && in_hand.machine.is_waiting() && self.follows_one_that_settles(in_hand)
        };
        let told = self.in_hand.iter().filter(|(_, in_hand)| !stays(in_hand));
        for id in told.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.apply(id, if phase == Phase::Draining { Event::Drain } else { Event::DrainDeadline });
        }
        if let Some(batches) = &mut self.batches {
            batches.enter(phase);
        }
        if phase == Phase::Deadline {
            for (id, copy) in self.batcher.take_failed_copies() {
                self.give_up_copy(id, copy);
            }
        }
    }

    /// Handles signals that arrived together, so that their settlements join the same batches. Updates the status after
    /// each signal, so that no state change is missed.
    fn take_all(&mut self, came: &mut VecDeque<Signal>) {
        for (number, signal) in came.drain(..).enumerate() {
            if number > 0 {
                self.show();
            }
            self.take(signal);
        }
    }

    fn take(&mut self, signal: Signal) {
        match signal {
            Signal::Received { asked, result } => self.received(asked, result),
            Signal::Ended { id, outcome } => self.concluded(id, outcome),
            Signal::BatchEnded { batch, ids, end } => self.batch_ended(batch, &ids, end),
            Signal::Decided { id, outcome } => self.ended(id, Event::Decided(outcome)),
            Signal::Requested(request) => self.requested(request),
            Signal::TakenBack(leases) => self.taken_back(leases),
            Signal::Replied { id, result } => {
                self.note(id, result.as_ref().err());
                self.note_records(result.as_ref().err());
                self.apply(id, Event::Replied(result));
            }
            Signal::Extended { ids, by, sent_at, results } => {
                self.note_heartbeats(&ids, &results);
                for change in self.leases.answered(&ids, by, &results, sent_at, self.now) {
                    match change {
                        Change::Lost(id) => self.lose(id),
                        Change::Stopped(id) => self.apply(id, Event::HeartbeatStopped),
                    }
                }
            }
            Signal::Settled { ids, results } => {
                self.batcher.answered();
                let mut results = results.into_iter();
                for (id, kind) in ids {
                    match results.next() {
                        Some(result) => self.settled(id, kind, result),
                        // The result is unknown, and the settlement is no longer available for a
                        // retry.
                        None => {
                            self.failures.failed(kind, self.now);
                            self.apply(id, Event::Settled(false));
                        }
                    }
                }
            }
        }
    }

    /// Handles the end of a handler call for one delivery, or the handler's answer for one delivery of a batch.
    fn concluded(&mut self, id: Id, outcome: Option<Outcome>) {
        let in_hand = self.in_hand.get(&id);
        let membership = in_hand.and_then(|in_hand| in_hand.membership);
        let unstarted = in_hand.filter(|_| outcome.is_none()).and_then(|in_hand| never_started(&in_hand.call));
        let known = outcome.as_ref().or(unstarted.as_ref());
        // Sending a reply can also reach a host limit. Therefore, the attempt is recorded after the reply.
        let replies = self.consumer.replies.is_some() && matches!(known, Some(Outcome::Reply(_)));
        if !replies {
            self.note(id, known);
        }
        self.note_records(known);
        self.ended(id, unstarted.map_or_else(|| Event::Ended(outcome), Event::Unstarted));
        if let (Some(membership), Some(batches)) = (membership, &mut self.batches) {
            batches.answered(membership.batch, id);
        }
    }

    fn received(&mut self, asked: usize, result: Result<Vec<Delivery>, QueueError>) {
        match result {
            Ok(deliveries) => {
                let count = deliveries.len();
                tracing::debug!(consumer = &*self.consumer.spec.name, count, "received");
                let time = SystemTime::now();
                let followers =
                    deliveries.into_iter().filter_map(|delivery| self.admit(delivery, time).then_some(())).count();
                self.schedule.received(asked, count, followers, self.now);
            }
            Err(error) => {
                let refused = matches!(error, QueueError::Refused(_));
                let (rest, gives_up) = self.schedule.failed(asked, refused, self.now, fastrand::f64());
                let consumer = &*self.consumer.spec.name;
                let rest = humantime::format_duration(rest).to_string();
                tracing::warn!(consumer, %error, rest, "receive failed");
                if let (QueueError::Refused(text), true) = (error, gives_up) {
                    self.summary.refused = Some(format!("consumer {consumer} cannot receive: {text}"));
                    self.enter(Phase::Draining);
                }
            }
        }
        if self.schedule.under_way() == 0 {
            self.taken_early.clear();
        }
    }

    fn settled(&mut self, id: Id, kind: Kind, result: Result<(), Unsettled>) {
        match result {
            Ok(()) => {
                self.failures.succeeded(kind);
                self.batcher.succeeded(kind);
                self.apply(id, Event::Settled(true));
            }
            Err(Unsettled { settlement, error }) => {
                let (consumer, action) = (&*self.consumer.spec.name, settlement.name());
                let message_id = self.in_hand.get(&id).map(|in_hand| in_hand.message_id());
                tracing::warn!(consumer, message_id, action, %error, "settlement failed");
                let is_lost = matches!(error, LeaseError::Lost(_)) || self.leases.deadline(id).is_none();
                if let Some(metrics) = self.consumer.metrics.as_ref().filter(|_| is_lost) {
                    metrics.lease_lost();
                }
                // A lost lease also counts as a failed call. If calls hang, a lost lease is the only sign of
                // the failure. `Unfit` concerns one message only, so it does not count.
                if !matches!(error, LeaseError::Unfit(_)) {
                    self.failures.failed(kind, self.now);
                }
                // During a drain, do not wait for the lease to end: after a release, another process can receive the
                // message at once.
                let is_in_vain = self.phase == Phase::Deadline || (self.phase == Phase::Draining && error.is_final());
                if kind == Kind::Copy && is_in_vain && !is_lost {
                    self.give_up_copy(id, settlement);
                } else if error.is_final() || is_lost {
                    self.apply(id, Event::Settled(false));
                } else {
                    self.batcher.retry(id, settlement, self.now, self.leases.deadline(id));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
