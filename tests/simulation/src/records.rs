//! Store of idempotency records as one process sees it: calls take time, fail before or after their change, and have no effect once
//! the process is dead. Reports each call to the judge.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use hostler_queue::{Begin, Begun, Finish, Hold, LeaseError, QueueError, Records, RunEnd};
use tokio::time::{Instant, sleep, sleep_until};

use super::judge::Judge;
use super::scenario::Scenario;
use super::site::Line;

/// Maximum duration of a call that hangs, each way.
const HANG: f64 = 12.0;

/// The store of one process. Clones share it.
#[derive(Clone)]
pub struct WatchedRecords {
    pub line: Line,
    pub scenario: Arc<Scenario>,
    pub judge: Arc<Judge>,
    pub inner: Arc<dyn Records>,
    /// Reports changes of the store to the judge.
    pub look: Arc<dyn Fn() + Send + Sync>,
    pub started_at: Instant,
    pub rng: Arc<Mutex<Rng>>,
}

/// The start of a run. When dropped, reports the answer to the judge, because the caller may give up at any time.
struct Beginning {
    line: Line,
    judge: Arc<Judge>,
    hold: Hold,
    body: [u8; 32],
    answer: Option<Begun>,
    applied_at: Instant,
}

impl Drop for Beginning {
    fn drop(&mut self) {
        if !self.line.is_dead() {
            self.judge.begun(self.line.life, self.hold, self.body, self.answer.as_ref(), self.applied_at);
        }
    }
}

/// An extension of records. When dropped, reports the answer to the judge.
struct Extending {
    line: Line,
    judge: Arc<Judge>,
    holds: Vec<Hold>,
    answer: Vec<Result<(), LeaseError>>,
}

impl Drop for Extending {
    fn drop(&mut self) {
        if self.line.is_dead() {
            return;
        }
        for (hold, result) in self.holds.iter().zip(&self.answer) {
            self.judge.extended(*hold, result.as_ref().err());
        }
    }
}

impl WatchedRecords {
    fn random(&self) -> f64 {
        self.rng.lock().unwrap().f64()
    }

    fn is_struck(&self, rate: f64) -> bool {
        self.started_at.elapsed() < self.scenario.calm_at && rate > 0.0 && self.random() < rate
    }

    fn latency(&self) -> Duration {
        let hangs = self.scenario.keyed.is_some_and(|keyed| self.is_struck(keyed.hangs));
        Duration::from_secs_f64(self.random() * if hangs { HANG } else { 0.02 })
    }

    /// Makes a call, even if its caller no longer waits. `None`: it failed, before or after its change.
    async fn call<T: Send + 'static>(&self, act: impl Future<Output = T> + Send + 'static) -> Option<T> {
        if self.line.is_dead() {
            return pending().await;
        }
        let (there, back, this) = (self.latency(), self.latency(), self.clone());
        let fails = self.scenario.keyed.is_some_and(|keyed| self.is_struck(keyed.failures));
        let is_before = fails && self.random() < 0.5;
        let done = tokio::spawn(async move {
            sleep(there).await;
            if is_before || (this.line.is_dead() && this.random() < 0.5) {
                return None;
            }
            let answer = act.await;
            (this.look)();
            Some(answer)
        });
        let answer = done.await.ok().flatten();
        sleep(back).await;
        if self.line.is_dead() {
            return pending().await;
        }
        answer.filter(|_| !fails)
    }
}

fn planned() -> LeaseError {
    LeaseError::Retry("as planned".to_owned())
}

#[async_trait]
impl Records for WatchedRecords {
    fn max_size(&self) -> usize {
        self.inner.max_size()
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        self.inner.prepare().await
    }

    async fn begin(&self, begin: Begin) -> Result<Begun, QueueError> {
        let (line, judge, inner) = (self.line.clone(), Arc::clone(&self.judge), Arc::clone(&self.inner));
        let (hold, body) = (begin.hold, begin.body);
        let (asked_at, patience) = (Instant::now(), self.scenario.patience());
        let mut beginning = Beginning { line, judge, hold, body, answer: None, applied_at: asked_at };
        let mut calling = pin!(self.call(async move { (inner.begin(begin).await, Instant::now()) }));
        let answer = tokio::select! {
            biased;
            answer = &mut calling => answer,
            // The consumer no longer waits, and ends what begins later.
            () = sleep_until(asked_at + patience) => {
                if !self.line.is_dead() {
                    self.judge.begun(self.line.life, hold, body, None, asked_at);
                }
                calling.await
            }
        };
        let (begun, applied_at) =
            answer.unwrap_or_else(|| (Err(QueueError::Unavailable("as planned".to_owned())), Instant::now()));
        (beginning.answer, beginning.applied_at) = (begun.as_ref().ok().cloned(), applied_at);
        begun
    }

    async fn extend(&self, holds: &[Hold], by: Duration) -> Vec<Result<(), LeaseError>> {
        let (inner, asked) = (Arc::clone(&self.inner), holds.to_vec());
        self.judge.extending(holds);
        let (line, judge) = (self.line.clone(), Arc::clone(&self.judge));
        let mut extending = Extending { line, judge, holds: holds.to_vec(), answer: vec![Err(planned()); holds.len()] };
        if let Some(answer) = self.call(async move { inner.extend(&asked, by).await }).await {
            extending.answer = answer;
        }
        extending.answer.clone()
    }

    async fn finish(&self, batch: Vec<Finish>) -> Vec<Result<(), LeaseError>> {
        let holds: Vec<Hold> = batch.iter().map(|finish| finish.hold).collect();
        let (inner, judge, asked) = (Arc::clone(&self.inner), Arc::clone(&self.judge), holds.clone());
        let finished = self.call(async move {
            let finished = inner.finish(batch).await;
            let done = asked.iter().zip(&finished).filter(|(_, result)| result.is_ok());
            done.for_each(|(hold, _)| judge.recorded(*hold));
            finished
        });
        let finished = finished.await.unwrap_or_else(|| vec![Err(planned()); holds.len()]);
        for (hold, result) in holds.iter().zip(&finished) {
            self.judge.finished(*hold, result.as_ref().err());
        }
        finished
    }

    async fn sent(&self, holds: &[Hold]) -> Result<(), QueueError> {
        let (inner, asked) = (Arc::clone(&self.inner), holds.to_vec());
        let sent = self.call(async move { inner.sent(&asked).await }).await;
        sent.unwrap_or_else(|| Err(QueueError::Unavailable("as planned".to_owned())))
    }

    async fn end(&self, ends: &[(Hold, RunEnd)]) -> Result<(), QueueError> {
        let (inner, asked) = (Arc::clone(&self.inner), ends.to_vec());
        ends.iter().for_each(|(hold, end)| self.judge.ending(*hold, *end));
        let ended = self.call(async move { inner.end(&asked).await }).await;
        ended.unwrap_or_else(|| Err(QueueError::Unavailable("as planned".to_owned())))
    }
}
