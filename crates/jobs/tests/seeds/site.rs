//! A place where clients call a service, with a record of all calls.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};

use crate::call::{Answer, Item, Job, Operation, Time};
use crate::history::{Call, Moment};

/// A way to the service.
pub trait Port: Send + Sync {
    /// Carries out a call. `None`: the answer was lost.
    fn carry_out(&self, operation: &Operation) -> impl Future<Output = Option<Answer>> + Send;
}

/// The service as its clients see it.
pub struct Site<P> {
    pub port: P,
    /// Milliseconds.
    pub heartbeat: Time,
    start: Instant,
    orders: AtomicUsize,
    tokens: AtomicUsize,
    is_chaotic: AtomicBool,
    is_over: AtomicBool,
    losses: Mutex<Rng>,
    calls: Mutex<Vec<Call>>,
    pub items: Mutex<Vec<Item>>,
    pub roots: Mutex<BTreeSet<Job>>,
}

impl<P: Port> Site<P> {
    /// Makes a site. Its clock starts now.
    pub fn new(port: P, heartbeat: Time, seed: u64) -> Self {
        Self {
            port,
            heartbeat,
            start: Instant::now(),
            orders: AtomicUsize::new(0),
            tokens: AtomicUsize::new(0),
            is_chaotic: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            losses: Mutex::new(Rng::with_seed(seed ^ 0x10_55)),
            calls: Mutex::new(Vec::new()),
            items: Mutex::new(Vec::new()),
            roots: Mutex::new(BTreeSet::new()),
        }
    }

    /// Returns true as long as clients misbehave.
    pub fn is_chaotic(&self) -> bool {
        self.is_chaotic.load(Ordering::Relaxed)
    }

    /// Returns true once clients have to stop.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the misbehaviour.
    pub fn calm(&self) {
        self.is_chaotic.store(false, Ordering::Relaxed);
    }

    /// Stops all clients.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns an idempotency key.
    pub fn token(&self) -> usize {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for hundredths of a heartbeat.
    pub async fn rest(&self, hundredths: u64) {
        sleep(Duration::from_millis(hundredths * self.heartbeat.unsigned_abs() / 100)).await;
    }

    /// Returns milliseconds since the start.
    pub fn now(&self) -> Time {
        self.start.elapsed().as_millis().try_into().unwrap()
    }

    fn moment(&self) -> Moment {
        Moment { order: self.orders.fetch_add(1, Ordering::SeqCst), time: self.now() }
    }

    /// Carries out a call and records it. Some answers are thrown away.
    pub async fn call(&self, operation: Operation) -> Option<Answer> {
        let sent = self.moment();
        let answer = self.port.carry_out(&operation).await;
        let is_lost = self.is_chaotic() && self.losses.lock().unwrap().u32(..100) < 4;
        let answer = answer.filter(|_| !is_lost);
        let done = self.moment();
        let is_empty = matches!(&answer, Some(Answer::Assigned(none)) if none.is_empty());
        if !is_empty && operation != Operation::Sweep {
            self.calls.lock().unwrap().push(Call { operation, answer: answer.clone(), sent, done });
        }
        answer
    }

    /// Repeats a call until it is answered.
    pub async fn insist(&self, operation: Operation) -> Answer {
        loop {
            if let Some(answer) = self.call(operation.clone()).await {
                return answer;
            }
            self.rest(3).await;
        }
    }

    /// Returns the record, in the order of sending.
    pub fn record(&self) -> Vec<Call> {
        let mut calls = std::mem::take(&mut *self.calls.lock().unwrap());
        calls.sort_by_key(|call| call.sent.order);
        calls
    }
}
