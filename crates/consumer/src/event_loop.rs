//! The loop of one consumer: the world becomes events, events become actions, actions become effects.

mod groups;
mod pausing;
mod telling;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use super::admission::Admission;
use super::delivery::{Action, Event, Machine};
use super::effects::{DECIDED_AFTER, Effects, Id, Signal};
use super::failures::{Failures, Kind};
use super::fifo::Gate;
use super::ledger::{Change, Ledger};
use super::log::Place;
use super::mailbox::Mailbox;
use super::policy::Disposition;
use super::poll_schedule::{Failed, Load, Next, PollSchedule};
use super::settle::Batcher;
use super::spans::{Settled, Spans};
use super::spared::Spared;
use super::{Consumer, Phase, Summary};
use hostler_config::OnProcessingTimeout;
use hostler_handler::{Bounds, Call, Outcome, Output, Stop};
use hostler_queue::{Delivery, LeaseError, Limits, QueueError, Receipt, Settlement, Unsettled};
use hostler_telemetry::traces::Span;
use hostler_types::State;
use hostler_types::message::Message;

/// How long to sleep when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// A delivery in hand.
struct InHand {
    machine: Machine,
    message: Arc<Message>,
    attempt: u32,
    /// Taken when it is settled, so that it is settled once.
    receipt: Option<Receipt>,
    queue_delay: Duration,
    late: bool,
    started_at: Option<Instant>,
    ran_for: Duration,
    /// Its last heartbeat failed: if its lease ends, it ends for that.
    heartbeat_failed: bool,
    call: Arc<Call>,
    /// The span of its processing, if that is sampled, and when it began.
    span: Option<(Span, SystemTime)>,
}

impl InHand {
    /// Where in its trace the lines about it belong.
    fn place(&self) -> Place<'_> {
        Place { trace: self.call.trace.as_deref(), own: self.span.is_some() }
    }
}

pub(super) struct EventLoop {
    consumer: Consumer,
    limits: Limits,
    effects: Effects,
    spans: Option<Spans>,
    signals: Arc<Mailbox<Signal>>,
    phase: Phase,
    /// In the order of their receives; boxed, as a tree moves what it holds.
    in_hand: BTreeMap<Id, Box<InHand>>,
    next_id: Id,
    /// Deliveries that wait for their turn or run.
    occupied: usize,
    /// Deliveries whose guest runs, by when it started.
    running: BTreeSet<(Instant, Id)>,
    /// When their processing timeouts end.
    deadlines: BTreeSet<(Instant, Id)>,
    ledger: Ledger<Id>,
    batcher: Batcher<Id>,
    schedule: PollSchedule,
    admission: Admission<Id>,
    gate: Gate<Id>,
    spared: Spared,
    /// When what is dealt with now happened: the clock is read once for each event.
    now: Instant,
    failures: Failures,
    summary: Summary,
}

impl EventLoop {
    pub(super) fn new(consumer: Consumer) -> Self {
        let signals = Arc::new(Mailbox::default());
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
            ledger: Ledger::new(spec.lease, limits.max_lease),
            batcher: Batcher::new(limits, spec.ordered),
            schedule: PollSchedule::new(spec, limits, now),
            admission: Admission::new(spec.breaker, now),
            gate: Gate::default(),
            spared: Spared::default(),
            now,
            failures: Failures::new(spec),
            summary: Summary::default(),
            consumer,
        }
    }

    pub(super) async fn run(mut self, mut phase: watch::Receiver<Phase>) -> Summary {
        self.effects.state_changed(Some((State::Initializing, State::Initialized)));
        if self.consumer.handler.decides_timeouts() {
            self.consumer.status.update(|status| status.hook_takes = DECIDED_AFTER);
        }
        let mut pause = self.consumer.pause.clone();
        let mut can_pause = true;
        let mut came = VecDeque::new();
        self.pause(*pause.borrow_and_update());
        loop {
            self.now = Instant::now();
            let poll_at = self.advance(self.now);
            self.show();
            if self.phase > Phase::Running && self.in_hand.is_empty() && self.schedule.under_way() == 0 {
                break;
            }
            let wake_at = self.next_at(poll_at).unwrap_or(self.now + IDLE);
            // In this order, so that the same events are always taken in the same way.
            tokio::select! {
                biased;
                changed = phase.changed(), if self.phase < Phase::Deadline => {
                    let now = if changed.is_ok() { *phase.borrow_and_update() } else { Phase::Deadline };
                    self.enter(now);
                }
                changed = pause.changed(), if can_pause => {
                    can_pause = changed.is_ok();
                    self.pause(*pause.borrow_and_update());
                }
                () = self.signals.told() => {
                    self.signals.take(&mut came);
                    // All of them join the same batches. Each is shown, so that no state is passed over.
                    for (number, signal) in came.drain(..).enumerate() {
                        if number > 0 {
                            self.show();
                        }
                        self.take(signal);
                    }
                }
                () = sleep_until(wake_at) => {}
            }
        }
        tokio::select! {
            () = self.effects.all_told() => {}
            _ = phase.wait_for(|phase| *phase == Phase::Deadline) => {}
        }
        self.summary
    }

    /// Does all that is due; when something that could start a receive is due next.
    fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.admission.tick(now).into_iter().for_each(|change| self.turned(change));
        for id in self.ledger.expire(now) {
            self.lose(id);
        }
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.apply(id, Event::Deadline(self.consumer.spec.processing_timeout));
        }
        for heartbeat in self.ledger.heartbeats(now, self.limits.settle_batch) {
            self.effects.extend(heartbeat);
        }
        while let Some(batch) = self.batcher.next(now, !self.running.is_empty() && self.phase == Phase::Running) {
            let span = self.spans.as_ref().and_then(|spans| {
                let about = batch.iter().filter_map(|(id, _)| self.in_hand.get(id));
                spans.settle(&about.map(|one| Settled::of(&one.message, one.call.trace.as_ref())).collect::<Vec<_>>())
            });
            self.effects.settle(batch, span);
        }
        if self.phase == Phase::Running { self.poll(now) } else { None }
    }

    /// Starts the receives that the schedule wants; when to ask it again.
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let load = Load { occupied: self.occupied, running: self.running.len(), in_hand: self.in_hand.len() };
            match self.schedule.next(load, &self.admission, now) {
                Next::Receive(request) => self.effects.receive(request),
                Next::At(at) => return Some(at),
                Next::Event => return None,
            }
        }
    }

    /// When something is due next.
    fn next_at(&self, poll_at: Option<Instant>) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [self.ledger.next_at(), self.batcher.next_at(), deadline, poll_at].into_iter().flatten().min()
    }

    fn enter(&mut self, phase: Phase) {
        if phase <= self.phase {
            return;
        }
        (self.phase, self.now) = (phase, Instant::now());
        self.effects.stop_polling.cancel();
        // What waits behind a message that is being settled goes back after that one, unless there is no time left to wait.
        let stays = |in_hand: &InHand| {
            phase == Phase::Draining && in_hand.machine.is_waiting() && self.follows_one_that_parts(in_hand)
        };
        let told = self.in_hand.iter().filter(|(_, in_hand)| !stays(in_hand));
        for id in told.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.apply(id, if phase == Phase::Draining { Event::Drain } else { Event::DrainDeadline });
        }
    }

    fn take(&mut self, signal: Signal) {
        let now = Instant::now();
        self.now = now;
        match signal {
            Signal::Received { asked, result } => self.received(asked, result, now),
            Signal::Ended { id, outcome } => {
                // A reply may run into a limit yet.
                let replies = self.consumer.replies.is_some() && matches!(outcome, Some(Outcome::Reply(_)));
                if !replies {
                    self.note(id, outcome.as_ref());
                }
                self.ended(id, Event::Ended(outcome), now);
            }
            Signal::Decided { id, outcome } => self.ended(id, Event::Decided(outcome), now),
            Signal::Replied { id, result } => {
                self.note(id, result.as_ref().err());
                self.apply(id, Event::Replied(result));
            }
            Signal::Extended { ids, by, sent_at, results } => {
                self.note_heartbeats(&ids, &results);
                for change in self.ledger.answered(&ids, by, &results, sent_at, now) {
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
                        Some(result) => self.settled(id, kind, result, now),
                        // What became of it is not known, and nothing is left to try again with.
                        None => {
                            self.failures.failed(kind, now);
                            self.apply(id, Event::Settled(false));
                        }
                    }
                }
            }
        }
    }

    fn received(&mut self, asked: usize, result: Result<Vec<Delivery>, QueueError>, now: Instant) {
        match result {
            Ok(deliveries) => {
                let count = deliveries.len();
                tracing::debug!(consumer = &*self.consumer.spec.name, count, "received");
                let time = SystemTime::now();
                let followers =
                    deliveries.into_iter().filter_map(|delivery| self.admit(delivery, time).then_some(())).count();
                self.schedule.received(asked, count, followers, now);
            }
            Err(error) => {
                let refused = matches!(error, QueueError::Refused(_));
                let Failed { rest, gives_up } = self.schedule.failed(asked, refused, now, fastrand::f64());
                let consumer = &*self.consumer.spec.name;
                let rest = humantime::format_duration(rest).to_string();
                tracing::warn!(consumer, %error, rest, "receive failed");
                if let (QueueError::Refused(text), true) = (error, gives_up) {
                    self.summary.refused = Some(format!("consumer {consumer} cannot receive: {text}"));
                    self.enter(Phase::Draining);
                }
            }
        }
    }

    /// Takes a delivery in hand that came at this time; whether it waits behind another of its group.
    fn admit(&mut self, delivery: Delivery, time: SystemTime) -> bool {
        let id = self.next_id;
        self.next_id += 1;
        let Delivery { message, receipt, attempt, leased_at } = delivery;
        let spec = &self.consumer.spec;
        self.ledger.enter(id, receipt.lease(), leased_at);
        let queue_delay = message.age(time);
        let late = queue_delay > spec.delay_tolerance;
        let bounds = Bounds { deadline: self.now.into_std() + spec.processing_timeout, stop: Stop::default() };
        let output = Output::new(spec.output);
        let call = Arc::new(Call::new(Arc::clone(&message), Arc::clone(&spec.channel), attempt, bounds, output));
        let (counted, spoilt) = self.spared.counted(&message.id, attempt);
        let machine = Machine::new(counted, self.consumer.replies.is_some(), fastrand::f64()).spoilt_before(spoilt);
        let in_hand = InHand {
            machine,
            message,
            attempt,
            receipt: Some(receipt),
            queue_delay,
            late,
            started_at: None,
            ran_for: Duration::ZERO,
            heartbeat_failed: false,
            call,
            span: None,
        };
        self.occupied += 1;
        let may_start = match self.group_of(&in_hand) {
            Some(group) => self.gate.enter(&group, id),
            None => true,
        };
        self.in_hand.insert(id, Box::new(in_hand));
        let is_kept = self.admission.admits(id);
        let is_over = self.ledger.deadline(id).is_some_and(|deadline| deadline <= self.now);
        match (self.phase, may_start) {
            // It was so long on its way that its lease is over.
            _ if is_over => self.lose(id),
            (Phase::Running, true) if is_kept => self.apply(id, Event::Start),
            (Phase::Running, false) if is_kept => {}
            // It was on its way when nothing more was to come.
            (Phase::Running, _) => self.apply(id, Event::Drain),
            (Phase::Draining | Phase::Deadline, _) => self.apply(id, Event::Drain),
        }
        !may_start
    }

    /// Feeds a delivery's machine, and does what it says, until there is nothing more to do.
    fn apply(&mut self, id: Id, event: Event) {
        let (mut next, mut turned) = (Some(event), None);
        while let Some(event) = next.take() {
            let Some(in_hand) = self.in_hand.get_mut(&id) else { return };
            let held_slot = in_hand.machine.holds_slot();
            let action = in_hand.machine.handle(event, &self.consumer.spec.policy);
            let holds_slot = in_hand.machine.holds_slot();
            self.occupied -= usize::from(held_slot && !holds_slot);
            match action {
                Action::Nothing => {}
                Action::Run => self.start(id),
                Action::AskToStop => in_hand.call.bounds.stop.ask(),
                Action::Stop => in_hand.call.bounds.stop.force(),
                // Nothing waits for a hook any more.
                Action::Decide(_) if self.phase == Phase::Deadline => next = Some(Event::Decided(None)),
                Action::Decide(elapsed) => {
                    Arc::make_mut(&mut in_hand.call).bounds = Bounds::new(hostler_handler::HOOK_TIMEOUT);
                    self.effects.decide(id, Arc::clone(&in_hand.call), elapsed, in_hand.span.is_some());
                }
                Action::Reply(body) => self.effects.reply(id, &in_hand.call, body),
                Action::StopHeartbeat => {
                    let (outcome, started) = (in_hand.machine.outcome(), in_hand.started_at.is_some());
                    turned = self.admission.ended(id, outcome, started, self.now);
                    next = self.ledger.stop(id).then_some(Event::HeartbeatStopped);
                }
                Action::Settle(Disposition::Ack) => self.settle(id, Disposition::Ack),
                Action::Settle(disposition) => {
                    let group = self.in_hand.get(&id).and_then(|in_hand| self.group_of(in_hand));
                    self.settle(id, disposition.clone());
                    // After it, so that it is visible again before them.
                    group.into_iter().for_each(|group| self.send_back_followers(id, &group, &disposition));
                }
                Action::Finish => self.finish(id),
            }
        }
        // After what it says of this delivery, so that none of its group goes back before it.
        turned.into_iter().for_each(|change| self.turned(change));
    }

    fn start(&mut self, id: Id) {
        let Some(in_hand) = self.in_hand.get_mut(&id) else { return };
        let (now, timeout) = (self.now, self.consumer.spec.processing_timeout);
        in_hand.started_at = Some(now);
        // Nobody else has it yet, so that nothing is copied.
        let call = Arc::make_mut(&mut in_hand.call);
        call.bounds.deadline = now.into_std() + timeout;
        self.summary.late += u64::from(in_hand.late);
        if let Some(metrics) = &self.consumer.metrics {
            metrics.started(in_hand.queue_delay, in_hand.late);
        }
        if let Some(spans) = &self.spans {
            let (span, trace) = spans.process(&in_hand.message, in_hand.attempt);
            call.trace = trace;
            in_hand.span = span.is_recording().then(|| (span, SystemTime::now()));
        }
        self.running.insert((now, id));
        self.deadlines.insert((now + timeout, id));
        self.effects.run(id, Arc::clone(&in_hand.call), in_hand.span.is_some());
    }

    /// A guest, or the hook that decided for it, is gone.
    fn ended(&mut self, id: Id, event: Event, now: Instant) {
        if let Some(in_hand) = self.in_hand.get_mut(&id)
            && let Some(started_at) = in_hand.started_at
        {
            self.running.remove(&(started_at, id));
            self.deadlines.remove(&(started_at + self.consumer.spec.processing_timeout, id));
            if matches!(event, Event::Ended(_)) {
                in_hand.ran_for = now - started_at;
            }
        }
        self.apply(id, event);
    }

    fn settle(&mut self, id: Id, disposition: Disposition) {
        let Some(in_hand) = self.in_hand.get_mut(&id) else { return };
        let Some(receipt) = in_hand.receipt.take() else { return };
        let settlement = match disposition {
            Disposition::Ack => Settlement::Ack(receipt),
            Disposition::Release(delay) => Settlement::Release(receipt, delay),
            Disposition::GiveBack(delay) => Settlement::GiveBack(receipt, delay),
            Disposition::DeadLetter(reason) => {
                Settlement::DeadLetter { receipt, message: Arc::clone(&in_hand.message), reason }
            }
            Disposition::None => return self.finish(id),
        };
        self.batcher.push(id, settlement, self.now, self.ledger.deadline(id));
    }

    fn settled(&mut self, id: Id, kind: Kind, result: Result<(), Unsettled>, now: Instant) {
        match result {
            Ok(()) => {
                self.failures.succeeded(kind);
                self.batcher.succeeded(kind);
                self.apply(id, Event::Settled(true));
            }
            Err(Unsettled { settlement, error }) => {
                let (consumer, action) = (&*self.consumer.spec.name, settlement.name());
                let message_id = self.in_hand.get(&id).map(|in_hand| &*in_hand.message.id);
                tracing::warn!(consumer, message_id, action, %error, "not settled");
                let is_lost = matches!(error, LeaseError::Lost(_)) || self.ledger.deadline(id).is_none();
                if let Some(metrics) = self.consumer.metrics.as_ref().filter(|_| is_lost) {
                    metrics.lease_lost();
                }
                // A lost lease counts too: where calls hang, settling ends with nothing else.
                self.failures.failed(kind, now);
                match error.is_final() || is_lost {
                    true => self.apply(id, Event::Settled(false)),
                    false => self.batcher.retry(id, settlement, now, self.ledger.deadline(id)),
                }
            }
        }
    }

    /// A lease is lost. A settlement that is on its way is waited for: it may have come in time.
    fn lose(&mut self, id: Id) {
        let Some(in_hand) = self.in_hand.get(&id) else { return };
        if in_hand.machine.is_settling() && !self.batcher.withdraw(id) {
            return;
        }
        tracing::warn!(consumer = &*self.consumer.spec.name, message_id = in_hand.message.id, "lease lost");
        if in_hand.heartbeat_failed {
            self.failures.failed(Kind::Extension, self.now);
        }
        if let Some(metrics) = &self.consumer.metrics {
            metrics.lease_lost();
        }
        self.apply(id, Event::LeaseLost);
    }

    fn finish(&mut self, id: Id) {
        let Some(mut in_hand) = self.in_hand.remove(&id) else { return };
        self.ledger.remove(id);
        self.over(&mut in_hand);
        self.admission.forget(id);
        let exits = self.consumer.spec.policy.on_processing_timeout == OnProcessingTimeout::Exit;
        if exits && in_hand.machine.timed_out_undecided() {
            self.consumer.exit.cancel();
        }
        if let Some(group) = self.group_of(&in_hand) {
            self.leave(id, &group, in_hand.machine.disposition());
        }
    }
}
