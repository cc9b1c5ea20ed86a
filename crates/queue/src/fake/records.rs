//! The fake's store of idempotency records.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use super::MAX_MESSAGE;
use crate::{Begin, Begun, Done, Finish, Hold, LeaseError, QueueError, RecordId, Records, RunEnd};

/// Time that stands for a period which is too long for the clock: 30 years.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// An in-memory store of idempotency records for tests. Its times follow tokio's clock, which a test can control. Clones
/// share the records. A test can block calls, and make them fail before or after their change.
#[derive(Debug, Clone, Default)]
pub struct FakeRecords(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    is_held: watch::Sender<bool>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { store: Mutex::default(), is_held: watch::Sender::new(false) }
    }
}

#[derive(Debug, Default)]
struct Store {
    records: HashMap<RecordId, FakeRecord>,
    failures: VecDeque<Failure>,
}

#[derive(Debug, Clone)]
enum Failure {
    Before(QueueError),
    After(QueueError),
}

/// A record as the fake keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeRecord {
    /// The scope and the key, as the last run named them.
    pub label: String,
    /// Digest of the message's body.
    pub body: [u8; 32],
    /// Token of the run that holds the record, or that has finished.
    pub token: i64,
    /// Set if the key was processed.
    pub is_done: bool,
    /// End of the run's lease, by tokio's clock.
    pub leased_until: Instant,
    /// Time from which the record does not exist, by tokio's clock.
    pub expires_at: Instant,
    /// Reply of the handler.
    pub reply: Option<Vec<u8>>,
    /// The messages that are still to be sent.
    pub unsent: Option<Vec<u8>>,
}

impl FakeRecords {
    /// Makes the next `count` calls of any kind fail with `error` before they change a record. Failures that were requested
    /// earlier come first.
    pub fn fail_next(&self, count: usize, error: &QueueError) {
        self.lock().failures.extend(vec![Failure::Before(error.clone()); count]);
    }

    /// Makes the next `count` calls of any kind fail with `error` after their changes, as if the answers were lost. Failures that
    /// were requested earlier come first.
    pub fn fail_after(&self, count: usize, error: &QueueError) {
        self.lock().failures.extend(vec![Failure::After(error.clone()); count]);
    }

    /// Blocks all calls while `held` is `true`. A blocked call has changed nothing.
    pub fn hold(&self, held: bool) {
        self.0.is_held.send_replace(held);
    }

    /// Returns the record with this id. `None`: there is none, or its `ttl` has passed.
    pub fn state_of(&self, record: RecordId) -> Option<FakeRecord> {
        self.lock().live(record, Instant::now()).cloned()
    }

    /// Records a success at `now`, as a part of an ack's transaction.
    pub(super) fn commit(&self, finish: &Finish, now: Instant) -> Result<(), LeaseError> {
        self.lock().finish(finish, now)
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change once calls are not blocked, unless a failure was requested.
    async fn call<T>(&self, change: impl FnOnce(&mut Store, Instant) -> T) -> Result<T, QueueError> {
        let mut is_held = self.0.is_held.subscribe();
        // The sender cannot be dropped during the call.
        let _ = is_held.wait_for(|is_held| !is_held).await;
        let mut store = self.lock();
        let failure = store.failures.pop_front();
        if let Some(Failure::Before(error)) = failure {
            return Err(error);
        }
        let answer = change(&mut store, Instant::now());
        match failure {
            Some(Failure::After(error)) => Err(error),
            _ => Ok(answer),
        }
    }
}

#[async_trait]
impl Records for FakeRecords {
    fn max_size(&self) -> usize {
        MAX_MESSAGE
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        self.call(|_, _| ()).await
    }

    async fn inspect(&self) -> Result<(), QueueError> {
        self.call(|_, _| ()).await
    }

    async fn begin(&self, begin: Begin) -> Result<Begun, QueueError> {
        self.call(move |store, now| store.begin(begin, now)).await
    }

    async fn extend(&self, holds: &[Hold], by: Duration) -> Vec<Result<(), LeaseError>> {
        let extend = |store: &mut Store, now| holds.iter().map(|hold| store.extend(*hold, by, now)).collect();
        self.call(extend).await.unwrap_or_else(|error| vec![Err(refusal(error)); holds.len()])
    }

    async fn finish(&self, batch: Vec<Finish>) -> Vec<Result<(), LeaseError>> {
        let finish = |store: &mut Store, now| batch.iter().map(|finish| store.finish(finish, now)).collect();
        self.call(finish).await.unwrap_or_else(|error| vec![Err(refusal(error)); batch.len()])
    }

    async fn sent(&self, holds: &[Hold]) -> Result<(), QueueError> {
        self.call(|store, now| holds.iter().for_each(|hold| store.sent(*hold, now))).await
    }

    async fn end(&self, ends: &[(Hold, RunEnd)]) -> Result<(), QueueError> {
        self.call(|store, now| ends.iter().for_each(|(hold, end)| store.end(*hold, *end, now))).await
    }
}

impl Store {
    fn live(&self, record: RecordId, now: Instant) -> Option<&FakeRecord> {
        self.records.get(&record).filter(|record| record.expires_at > now)
    }

    /// Returns the record of the run that holds it or has finished it.
    fn held(&mut self, hold: Hold, now: Instant) -> Option<&mut FakeRecord> {
        self.records.get_mut(&hold.record).filter(|record| record.expires_at > now && record.token == hold.token)
    }

    fn running(&mut self, hold: Hold, now: Instant) -> Result<&mut FakeRecord, LeaseError> {
        self.held(hold, now).filter(|record| !record.is_done).ok_or_else(lost)
    }

    fn begin(&mut self, begin: Begin, now: Instant) -> Begun {
        self.records.retain(|_, record| record.expires_at > now);
        let Begin { hold, label, body, lease, ttl, takes_over } = begin;
        let mut begun = Begun::Started;
        if let Some(record) = self.records.get(&hold.record) {
            if record.body != body {
                return Begun::OtherBody;
            }
            if record.is_done {
                let hold = Hold { record: hold.record, token: record.token };
                return Begun::Done(Done { hold, reply: record.reply.clone(), unsent: record.unsent.clone() });
            }
            let rest = record.leased_until.saturating_duration_since(now);
            if record.token != hold.token {
                if !rest.is_zero() {
                    return Begun::Busy(rest);
                }
                if !takes_over {
                    return Begun::Unknown;
                }
                begun = Begun::TakenOver;
            }
        }
        let record = FakeRecord {
            label,
            body,
            token: hold.token,
            is_done: false,
            leased_until: after(now, lease),
            expires_at: after(now, ttl.max(lease)),
            reply: None,
            unsent: None,
        };
        self.records.insert(hold.record, record);
        begun
    }

    fn extend(&mut self, hold: Hold, by: Duration, now: Instant) -> Result<(), LeaseError> {
        let record = self.running(hold, now)?;
        record.leased_until = after(now, by);
        record.expires_at = record.expires_at.max(record.leased_until);
        Ok(())
    }

    fn finish(&mut self, finish: &Finish, now: Instant) -> Result<(), LeaseError> {
        let size = [&finish.reply, &finish.unsent].into_iter().flatten().map(Vec::len).sum::<usize>();
        if size > MAX_MESSAGE {
            return Err(LeaseError::Unfit(format!("the record would have {size} bytes; at most {MAX_MESSAGE} fit")));
        }
        let record = self.held(finish.hold, now).ok_or_else(lost)?;
        if !record.is_done {
            record.is_done = true;
            record.expires_at = after(now, finish.ttl);
            record.reply.clone_from(&finish.reply);
            record.unsent.clone_from(&finish.unsent);
        }
        Ok(())
    }

    fn sent(&mut self, hold: Hold, now: Instant) {
        if let Some(record) = self.held(hold, now).filter(|record| record.is_done) {
            record.unsent = None;
        }
    }

    fn end(&mut self, hold: Hold, end: RunEnd, now: Instant) {
        let Ok(record) = self.running(hold, now) else { return };
        match end {
            RunEnd::Forget => drop(self.records.remove(&hold.record)),
            RunEnd::Lapse => record.leased_until = record.leased_until.min(now),
        }
    }
}

fn after(now: Instant, period: Duration) -> Instant {
    now + period.min(FOREVER)
}

fn lost() -> LeaseError {
    LeaseError::Lost("another run has taken over, or the record is gone".to_owned())
}

/// Converts the error of a whole call to the error of each entry.
fn refusal(error: QueueError) -> LeaseError {
    match error {
        QueueError::Unavailable(text) => LeaseError::Retry(text),
        QueueError::Refused(text) => LeaseError::Refused(text),
    }
}

#[cfg(test)]
mod tests;
