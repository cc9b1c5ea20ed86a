//! The handler of the simulation: works and ends as its scenario says, and tells the judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hostler::handler::{Call, Handler, Limit, Outcome};
use tokio::time::sleep;

use super::judge::Judge;
use super::scenario::{End, Scenario};

/// The handler of one process.
pub struct Worker {
    pub life: usize,
    pub scenario: Arc<Scenario>,
    pub judge: Arc<Judge>,
    /// Whether the process was killed.
    pub dead: Arc<AtomicBool>,
}

/// A handler that runs; it is over when this is dropped.
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

fn name(call: &Call) -> String {
    String::from_utf8_lossy(&call.message.body).into_owned()
}

impl End {
    fn outcome(&self, name: &str) -> Outcome {
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

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, call: &Call) -> Outcome {
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let name = name(call);
        let receipt = self.judge.started(self.life, &name, call.attempt);
        let mut run = Run { judge: &self.judge, receipt, end: None };
        let (work, end, _) = self.scenario.behaviour(&name, call.attempt);
        sleep(work).await;
        if end == End::Stuck {
            return std::future::pending().await;
        }
        let outcome = end.outcome(&name);
        run.end = Some(end);
        outcome
    }

    fn decides_timeouts(&self) -> bool {
        true
    }

    async fn processing_timeout(&self, call: &Call, _: Duration) -> Option<Outcome> {
        let name = name(call);
        let (_, _, decided) = self.scenario.behaviour(&name, call.attempt);
        let decided = decided?;
        self.judge.decided(self.life, &name, call.attempt, &decided);
        Some(decided.outcome(&name))
    }
}
