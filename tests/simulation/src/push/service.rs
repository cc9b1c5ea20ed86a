//! A model of a push broker. It sends up to a window of messages ahead. It takes all messages of a connection back when the
//! connection is lost, and sends them again at once; or it keeps leases over a lost connection, and loses the answer alone. For a while,
//! it may accept no messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use hostler_queue::{Delivery, LeaseError, Receipt, Receive, Settlement};
use hostler_types::message::Message;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::judge::Judge;
use super::super::scenario::{Planned, Scenario};
use super::super::site::until;
use super::errors::{blocked, lost, unheard};

/// Place of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// In the queue. May be sent from this time on.
    Queued(Instant),
    /// Sent ahead, and not received.
    Ahead,
    /// Received. `early`: before its time, so the receive is no attempt.
    Leased { receipt: String, until: Instant, early: bool },
    /// Acked, or moved to the dead-letter queue.
    Gone,
}

#[derive(Debug)]
struct Stored {
    message: Arc<Message>,
    name: String,
    not_before: Option<Instant>,
    attempts: u32,
    place: Place,
    /// Number of the last listening for which it was sent ahead.
    sent_for: u32,
}

/// The connection of the current process.
#[derive(Debug, Default)]
struct Connection {
    life: usize,
    /// Number of times that it was lost.
    generation: u32,
    /// True while the service sends messages: from a receive to a rest.
    listens: bool,
    /// Number of the present listening, or of the last one.
    listening: u32,
    /// True from a rest until the whole window is open.
    has_rested: bool,
    /// True while the service sends one message ahead at most: the first receive after a rest asked for one.
    is_narrow: bool,
    /// Receive calls in progress, with their stops.
    receives: BTreeMap<u32, CancellationToken>,
    /// Number of rest calls in progress.
    rests: usize,
    /// Receipts of leases that were taken back, until the process is told.
    lost: Vec<String>,
}

impl Connection {
    /// Returns true if a receive call is in progress that nobody has stopped.
    fn receives(&self) -> bool {
        self.receives.values().any(|stop| !stop.is_cancelled())
    }
}

#[derive(Debug)]
struct State {
    rng: Rng,
    stored: Vec<Stored>,
    connection: Connection,
    /// Number of receipts and receive calls up to now.
    count: u32,
    /// Time until which there is no connection.
    down_until: Instant,
    /// Time until which the service accepts no messages.
    blocked_until: Instant,
    /// Receipts of messages that were removed by a settlement whose answer was lost.
    unheard: BTreeSet<String>,
}

/// The queue, its dead-letter queue, and the connection of the process that runs.
#[derive(Debug)]
pub struct Service {
    pub scenario: Arc<Scenario>,
    pub judge: Arc<Judge>,
    started_at: Instant,
    state: Mutex<State>,
    pub changed: Notify,
}

/// A receive call in progress.
pub struct Open<'a> {
    service: &'a Service,
    life: usize,
    number: u32,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = self.service.lock();
        if state.connection.life == self.life {
            state.connection.receives.remove(&self.number);
        }
    }
}

impl Service {
    pub fn new(scenario: Arc<Scenario>, judge: Arc<Judge>) -> Self {
        let now = Instant::now();
        let state = State {
            rng: Rng::with_seed(!scenario.key.seed),
            stored: Vec::new(),
            connection: Connection::default(),
            count: 0,
            down_until: now,
            blocked_until: now,
            unheard: BTreeSet::new(),
        };
        Self { scenario, judge, started_at: now, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns true at random, with this probability. Always false after the faults have ended.
    pub fn is_struck(&self, rate: f64) -> bool {
        self.started_at.elapsed() < self.scenario.calm_at && rate > 0.0 && self.lock().rng.f64() < rate
    }

    /// Returns a random index below this number.
    pub fn pick(&self, count: usize) -> usize {
        self.lock().rng.usize(0..count)
    }

    /// Returns a random latency: usually milliseconds, sometimes seconds.
    pub fn latency(&self) -> Duration {
        let most = if self.is_struck(self.scenario.rates.latency) { 8.0 } else { 0.02 };
        Duration::from_secs_f64(self.lock().rng.f64() * most)
    }

    /// Accepts a message.
    pub fn put(&self, planned: &Planned) {
        let Planned { name, group, not_before, .. } = planned.clone();
        let not_before = not_before.map(|after| self.started_at + after);
        self.judge.sent(&name, group.as_deref(), not_before);
        let message = Message { group, ..Message::new(format!("id-{name}"), name.clone()) };
        let place = Place::Queued(Instant::now());
        let stored = Stored { message: Arc::new(message), name, not_before, attempts: 0, place, sent_for: 0 };
        self.lock().stored.push(stored);
        self.changed.notify_waiters();
    }

    /// Returns when `count` messages have been sent and none is left.
    pub async fn until_empty(&self, count: usize) {
        let is_empty = || {
            let stored = &self.lock().stored;
            stored.len() >= count && stored.iter().all(|one| one.place == Place::Gone)
        };
        until(&self.changed, is_empty).await;
    }

    /// Connects a process. The connection of the process before it ends. What it was sent ahead comes again when the service has waited
    /// for it.
    pub fn connect(&self, life: usize) {
        let mut state = self.lock();
        self.lose(&mut state);
        let again = Instant::now() + self.scenario.lease;
        for one in state.stored.iter_mut().filter(|one| one.place == Place::Ahead) {
            one.place = Place::Queued(again);
        }
        state.connection = Connection { life, ..Connection::default() };
    }

    /// Loses the connection, which the process then opens again.
    pub fn cut(&self) {
        self.lose(&mut self.lock());
    }

    /// Loses the connection for this duration.
    pub fn fail_for(&self, outage: Duration) {
        let mut state = self.lock();
        state.down_until = Instant::now() + outage;
        self.lose(&mut state);
    }

    /// Accepts no messages for this duration.
    pub fn block(&self, duration: Duration) {
        self.lock().blocked_until = Instant::now() + duration;
    }

    /// Returns true while the service accepts no messages, or cannot be reached.
    pub fn is_deaf(&self) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        now < state.blocked_until.max(state.down_until)
    }

    /// Returns the time until which there is no connection, if there is none.
    pub fn down_until(&self) -> Option<Instant> {
        Some(self.lock().down_until).filter(|until| *until > Instant::now())
    }

    /// Ends the connection, and takes all of its messages back unless leases outlive it.
    fn lose(&self, state: &mut State) {
        let now = Instant::now();
        let mut lost = Vec::new();
        for one in state.stored.iter_mut().filter(|_| !self.scenario.keeps_leases()) {
            match &one.place {
                Place::Leased { receipt, until, .. } if *until > now => lost.push(receipt.clone()),
                Place::Leased { .. } | Place::Ahead => {}
                Place::Queued(_) | Place::Gone => continue,
            }
            one.place = Place::Queued(now);
        }
        if !lost.is_empty() {
            self.judge.taken_back(&lost);
        }
        state.connection.lost.extend(lost);
        state.connection.generation += 1;
        state.connection.listens = false;
        self.changed.notify_waiters();
    }

    /// Returns the leases that were taken from a process since the last call.
    pub fn lost(&self, life: usize) -> Vec<String> {
        let mut state = self.lock();
        if state.connection.life == life { std::mem::take(&mut state.connection.lost) } else { Vec::new() }
    }

    /// Begins a receive call.
    pub fn opens(&self, life: usize, stop: &CancellationToken) -> Open<'_> {
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        if state.connection.rests > 0 {
            self.judge.break_promise(format!("process {life} receives before its rest has begun"));
        }
        state.connection.receives.insert(number, stop.clone());
        Open { service: self, life, number }
    }

    /// Lets the service send messages for a receive of `max`, and returns the number of the connection.
    pub fn listen(&self, life: usize, max: usize) -> u32 {
        let mut state = self.lock();
        if state.connection.life == life && !state.connection.listens {
            state.count += 1;
            let (listening, connection) = (state.count, &mut state.connection);
            connection.listens = true;
            connection.listening = listening;
            connection.is_narrow = connection.has_rested && max == 1;
            connection.has_rested = connection.is_narrow;
        }
        state.connection.generation
    }

    /// Opens the whole window if a receive of `max` messages needs it.
    fn widen(state: &mut State, max: usize) {
        let State { stored, connection, .. } = state;
        let is_busy = |one: &&Stored| one.sent_for == connection.listening && matches!(one.place, Place::Leased { .. });
        if connection.is_narrow && stored.iter().filter(is_busy).count() + max > 1 {
            (connection.is_narrow, connection.has_rested) = (false, false);
        }
    }

    /// Begins the announcement of a rest. No other may be under way, and no receive call.
    pub fn rest_begins(&self, life: usize) {
        let mut state = self.lock();
        if state.connection.life != life {
            return;
        }
        self.judge.note(|| format!("process {life} is about to rest"));
        if state.connection.rests > 0 {
            self.judge.break_promise(format!("process {life} has two rests at once"));
        }
        if state.connection.receives() {
            self.judge.break_promise(format!("process {life} rests while it receives"));
        }
        state.connection.rests += 1;
    }

    /// Ends the announcement of a rest: what was sent ahead goes back.
    pub fn rest_ends(&self, life: usize) {
        let mut state = self.lock();
        if state.connection.life != life {
            return;
        }
        let now = Instant::now();
        state.connection.rests -= 1;
        state.connection.listens = false;
        state.connection.has_rested = true;
        for one in state.stored.iter_mut().filter(|one| one.place == Place::Ahead) {
            one.place = Place::Queued(now);
        }
        self.judge.note(|| format!("process {life} rests"));
        if state.connection.receives() {
            self.judge.break_promise(format!("process {life} rests while it receives"));
        }
        self.changed.notify_waiters();
    }

    /// Returns the number of messages that are sent ahead. `None`: a call in progress may change it.
    pub fn sent_ahead(&self, life: usize) -> Option<usize> {
        let mut state = self.lock();
        let connection = &state.connection;
        if connection.life != life || connection.rests > 0 || !connection.receives.is_empty() {
            return None;
        }
        self.send(&mut state);
        Some(state.stored.iter().filter(|one| one.place == Place::Ahead).count())
    }

    /// Does what is due: leases end, messages that were received too often go to the dead-letter queue, others are sent ahead.
    fn send(&self, state: &mut State) {
        let now = Instant::now();
        let is_blocked = now < state.blocked_until;
        for one in &mut state.stored {
            if let Place::Leased { until, .. } = one.place
                && until <= now
            {
                one.place = Place::Queued(until);
            }
            let is_due = matches!(one.place, Place::Queued(at) if at <= now);
            if is_due && one.attempts >= self.scenario.max_receives && !is_blocked {
                one.place = Place::Gone;
                self.judge.copied(&one.name);
                self.judge.removed(&one.name);
                self.changed.notify_waiters();
            }
        }
        if !state.connection.listens || now < state.down_until {
            return;
        }
        let Connection { listening, is_narrow, .. } = state.connection;
        // What was sent before the last rest takes no room from a probe.
        let is_out = |one: &&Stored| {
            matches!(one.place, Place::Ahead | Place::Leased { .. }) && (!is_narrow || one.sent_for == listening)
        };
        let window = if is_narrow { 1 } else { self.scenario.window };
        let room = window.saturating_sub(state.stored.iter().filter(is_out).count());
        let mut groups = BTreeSet::new();
        let mut ready = Vec::new();
        for (index, one) in state.stored.iter().enumerate().filter(|(_, one)| one.place != Place::Gone) {
            // Of a group, only its first message.
            let is_head = one.message.group.as_ref().is_none_or(|group| groups.insert(group));
            let may_come = one.attempts < self.scenario.max_receives;
            if is_head && may_come && matches!(one.place, Place::Queued(at) if at <= now) {
                ready.push(index);
            }
        }
        state.rng.shuffle(&mut ready);
        for index in ready.into_iter().take(room) {
            state.stored[index].place = Place::Ahead;
            state.stored[index].sent_for = listening;
        }
    }

    /// Receives messages that were sent ahead, with their due times. Also returns the time of the next attempt.
    ///
    /// # Errors
    /// The connection is another one.
    pub fn take(&self, life: usize, generation: u32, request: Receive) -> Result<(Vec<Delivery>, Option<Instant>), ()> {
        let mut state = self.lock();
        if (state.connection.life, state.connection.generation) != (life, generation) {
            return Err(());
        }
        Self::widen(&mut state, request.max);
        self.send(&mut state);
        let now = Instant::now();
        let state = &mut *state;
        let most = state.rng.usize(1..=request.max);
        let mut taken = Vec::new();
        for one in state.stored.iter_mut().filter(|one| one.place == Place::Ahead).take(most) {
            state.count += 1;
            let receipt = format!("c{life}.{generation}:{}", state.count);
            let early = one.not_before.is_some_and(|at| at > now);
            one.attempts += u32::from(!early);
            let (attempt, until) = (one.attempts + u32::from(early), now + request.lease);
            one.place = Place::Leased { receipt: receipt.clone(), until, early };
            self.judge.leased(life, &receipt, &one.name, attempt, until);
            taken.push(Delivery {
                message: Arc::clone(&one.message),
                receipt: Receipt::new(receipt),
                attempt,
                leased_at: now,
                not_before: one.not_before,
                job: None,
            });
        }
        let next = state.stored.iter().filter_map(|one| match one.place {
            Place::Queued(at) | Place::Leased { until: at, .. } if at > now => Some(at),
            _ => None,
        });
        Ok((taken, next.chain(Some(state.blocked_until).filter(|at| *at > now)).min()))
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// The lease has ended, or is one of an earlier connection.
    pub fn extend(&self, receipt: &str, by: Duration) -> Result<(), LeaseError> {
        let mut state = self.lock();
        self.reaches(&state)?;
        let one = leased(&mut state.stored, receipt)?;
        let end = Instant::now() + by;
        if let Place::Leased { until, .. } = &mut one.place {
            *until = end;
        }
        self.judge.changed(receipt, end);
        Ok(())
    }

    /// Performs a settlement. `breaks`: the connection is lost while it is performed. If leases outlive it, the answer is lost: a removal can
    /// be repeated, and a return must not be.
    ///
    /// # Errors
    /// The lease has ended, or is one of an earlier connection; or the service accepts no messages.
    pub fn settle(&self, settlement: &Settlement, breaks: bool) -> Result<(), LeaseError> {
        let now = Instant::now();
        let mut state = self.lock();
        let is_blocked = now < state.blocked_until;
        let receipt = settlement.receipt().as_str();
        self.reaches(&state)?;
        if state.unheard.contains(receipt) {
            return Ok(());
        }
        let one = leased(&mut state.stored, receipt)?;
        let early = matches!(one.place, Place::Leased { early: true, .. });
        match settlement {
            Settlement::Ack(_) => {
                one.place = Place::Gone;
                self.judge.removed(&one.name);
            }
            Settlement::Release(_, delay) | Settlement::GiveBack(_, delay) => {
                if *delay > self.scenario.max_release {
                    self.judge.break_promise(format!("{receipt}: asked for more than {:?}", self.scenario.max_release));
                }
                if is_blocked && !delay.is_zero() && !self.scenario.keeps_leases() {
                    return Err(blocked());
                }
                one.attempts = match (settlement, early) {
                    (Settlement::GiveBack(..), false) => one.attempts - 1,
                    (Settlement::Release(..), true) => one.attempts + 1,
                    _ => one.attempts,
                };
                one.place = Place::Queued(now + *delay);
                self.judge.changed(receipt, now + *delay);
            }
            Settlement::DeadLetter { .. } if is_blocked => return Err(blocked()),
            Settlement::DeadLetter { .. } => {
                self.judge.copied(&one.name);
                if breaks {
                    // The copy is there, and the ack does not arrive.
                    self.lose(&mut state);
                    return Err(if self.scenario.keeps_leases() { unheard() } else { lost() });
                }
                one.place = Place::Gone;
                self.judge.removed(&one.name);
            }
        }
        self.changed.notify_waiters();
        if !breaks {
            return Ok(());
        }
        self.lose(&mut state);
        match settlement {
            _ if !self.scenario.keeps_leases() => Ok(()),
            Settlement::Release(..) | Settlement::GiveBack(..) => Err(lost()),
            Settlement::Ack(_) | Settlement::DeadLetter { .. } => {
                state.unheard.insert(receipt.to_owned());
                Err(unheard())
            }
        }
    }

    /// # Errors
    /// There is no connection, so nothing can be asked for the present. A service that takes leases back has done so.
    fn reaches(&self, state: &State) -> Result<(), LeaseError> {
        if self.scenario.keeps_leases() && Instant::now() < state.down_until { Err(unheard()) } else { Ok(()) }
    }
}

/// Returns the message that is leased with this receipt.
fn leased<'a>(stored: &'a mut [Stored], receipt: &str) -> Result<&'a mut Stored, LeaseError> {
    let now = Instant::now();
    let is_it = |one: &&mut Stored| matches!(&one.place, Place::Leased { receipt: own, until, .. } if own == receipt && *until > now);
    stored.iter_mut().find(is_it).ok_or_else(lost)
}
