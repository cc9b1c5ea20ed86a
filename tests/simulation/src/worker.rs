//! Handler of the simulation: works and ends as its scenario plans, and reports to the judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hostler_handler::{BatchCall, BatchEnd, Call, Handler, Limit, Outcome};
use hostler_types::message::Outgoing;
use tokio::time::sleep;

use super::batches;
use super::judge::Judge;
use super::keyed::{name_of, sends_of};
use super::scenario::{Behaviour, End, Scenario};
use super::site::Line;

/// Handler of one process.
pub struct Worker {
    pub line: Line,
    pub scenario: Arc<Scenario>,
    pub judge: Arc<Judge>,
    /// Number of its calls that run.
    pub calls: AtomicUsize,
}

/// A running handler. Dropping this value reports the end of the handler.
struct Run<'a> {
    judge: &'a Judge,
    receipt: String,
    end: Option<End>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.judge.ended(&self.receipt, self.end.take());
    }
}

/// A running hook. Dropping this value reports the end of the hook.
struct Deciding<'a> {
    judge: &'a Judge,
    life: usize,
    name: String,
    attempt: u32,
    decision: Option<End>,
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.judge.decided(self.life, &self.name, self.attempt, self.decision.take());
    }
}

/// A running call. Dropping this value ends it.
struct Calling<'a>(&'a AtomicUsize);

impl<'a> Calling<'a> {
    fn begin(worker: &'a Worker) -> Self {
        let before = worker.calls.fetch_add(1, Ordering::Relaxed);
        if before >= worker.scenario.concurrency && !worker.line.is_dead() {
            worker.judge.break_promise(format!("{} calls in {} slots", before + 1, worker.scenario.concurrency));
        }
        Self(&worker.calls)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn name(call: &Call) -> String {
    name_of(&call.message)
}

impl End {
    pub(super) fn outcome(&self, name: &str) -> Outcome {
        match self {
            Self::Ack => Outcome::Ack,
            Self::Reply => Outcome::Reply(name.into()),
            Self::Retry => Outcome::Retry(None),
            Self::Delay(delay) => Outcome::Delay(*delay),
            Self::DeadLetter => Outcome::DeadLetter("as planned".into()),
            Self::Fail => Outcome::Failed("as planned".into()),
            Self::HostLimit => Outcome::HostLimit(Limit::Pool, "as planned".into()),
            Self::Trap | Self::Stuck => Outcome::Trapped("as planned".into()),
        }
    }
}

impl Worker {
    /// Sends messages with these bodies if the handler succeeds.
    fn send(&self, call: &Call, run: Option<usize>, bodies: &[String]) {
        for (run, body) in run.iter().flat_map(|run| bodies.iter().map(move |body| (*run, body))) {
            self.judge.sends(run, body);
            let message = Outgoing { body: body.clone().into_bytes(), ..Outgoing::default() };
            let sent = call.outbox.as_ref().map(|outbox| outbox.push(&"out".parse().unwrap(), message));
            if !matches!(sent, Some(Ok(_))) {
                self.judge.break_promise(format!("K: {body} cannot be sent: {sent:?}"));
            }
        }
    }
}

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, call: &Call) -> Outcome {
        if self.line.is_dead() {
            return std::future::pending().await;
        }
        let _calling = Calling::begin(self);
        let name = name(call);
        self.judge.identify(&name, &call.message.id);
        let receipt = self.judge.started(self.line.life, &name, call.attempt, self.line.shown().as_ref());
        let number = self.scenario.keyed.map(|_| self.judge.run_started(&receipt));
        let sends = number.map(sends_of).unwrap_or_default();
        let (before, after) = sends.split_at(sends.len() / 2);
        let mut run = Run { judge: &self.judge, receipt, end: None };
        self.send(call, number, before);
        let Behaviour { work, end, lingers, .. } = self.scenario.behaviour(&name, self.judge.turn(&name, call.attempt));
        sleep(work).await;
        self.send(call, number, after);
        if end == End::Stuck {
            return std::future::pending().await;
        }
        let outcome = end.outcome(&name);
        let is_limit = end == End::HostLimit;
        run.end = Some(end);
        // One limit of the host appears as a panic of tokio. No hook is called for this limit.
        if is_limit && call.attempt.is_multiple_of(2) {
            if let Some(number) = number {
                self.judge.panics(number);
            }
            std::panic::resume_unwind(Box::new("OS can't spawn worker thread: as planned".to_owned()));
        }
        if lingers {
            let _ = call.decided.set(outcome);
            return std::future::pending().await;
        }
        outcome
    }

    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        if self.line.is_dead() {
            return std::future::pending().await;
        }
        let _calling = Calling::begin(self);
        batches::handle(self, batch).await
    }

    fn decides_timeouts(&self) -> bool {
        // Hooks for single messages are not called for batches.
        self.scenario.batch.is_none()
    }

    async fn processing_timeout(&self, call: &Call, _: Duration) -> Option<Outcome> {
        let name = name(call);
        let Behaviour { hook, decision, .. } = self.scenario.behaviour(&name, self.judge.turn(&name, call.attempt));
        self.judge.deciding(self.line.life, &name, call.attempt);
        let (life, attempt) = (self.line.life, call.attempt);
        let mut deciding = Deciding { judge: &self.judge, life, name, attempt, decision: None };
        sleep(hook).await;
        deciding.decision = decision.clone();
        decision.map(|decision| decision.outcome(&deciding.name))
    }
}
