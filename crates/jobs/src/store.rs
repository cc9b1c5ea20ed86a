//! The store: every change of jobs and items is one transaction on PostgreSQL.

mod error;

use std::time::Duration;

use hostler_postgres::Database;

pub use crate::store::error::StoreError;
use crate::types::{
    Assigned, Created, Failure, ItemPage, ItemQuery, JobPage, JobQuery, NewItem, NewJob, Settled, Status, Success,
};
use crate::json::RawJson;

/// The periods of the store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The period of heartbeats: 1 s to 10 min. Three missed ones end an assignment.
    pub heartbeat: Duration,
    /// The time for which complete trees are kept.
    pub retention: Duration,
    /// The delay after the first failure.
    pub backoff: Duration,
    /// The longest delay after a failure.
    pub backoff_max: Duration,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings {
            heartbeat: Duration::from_secs(60),
            retention: Duration::from_secs(7 * 24 * 3600),
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(15 * 60),
        }
    }
}

/// A client's key for a request that it may repeat, and a digest of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key, 200 bytes at most. The caller adds the role or the route if keys are to be separate.
    pub key: String,
    /// A digest of the route and the body. Another request under the key is a fault of the field `Idempotency-Key`.
    pub hash: String,
}

/// The end of a single assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The result or failure was accepted, now or before.
    Ok {
        /// The time of the next attempt, RFC 3339. `None`: there is none.
        retry_at: Option<String>,
    },
    /// The assignment had ended in another way.
    Stale,
}

/// A callback that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct DueCallback {
    /// The id of the event: the same for each attempt.
    pub id: String,
    /// The root whose tree is complete.
    pub root_id: String,
    /// The receiver.
    pub callback: crate::types::Callback,
    /// Attempts before this one.
    pub attempts: u32,
}

/// The end of an attempt to deliver a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver accepted it.
    Delivered,
    /// It is tried again after a back-off, for 24 h in all.
    Failed,
    /// The receiver will never accept it: it is kept as dead.
    Refused,
}

/// Counts for metrics. None of them counts finished items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items that are ready, by type.
    pub ready: Vec<(String, u64)>,
    /// Items that wait for the time of their next attempt, by type.
    pub later: Vec<(String, u64)>,
    /// Items that a worker has, by type.
    pub assigned: Vec<(String, u64)>,
    /// Items that wait for the one before them of their serialize key.
    pub waiting: u64,
    /// Trees that are not complete.
    pub open_trees: u64,
    /// Callbacks that are to be delivered.
    pub callbacks: u64,
    /// Callbacks that were given up.
    pub dead_callbacks: u64,
    /// The age of the oldest ready item, in seconds.
    pub oldest_ready_seconds: f64,
}

/// The store. Clones share the connections.
#[derive(Clone)]
pub struct Store {
    db: Database,
    settings: StoreSettings,
}
impl Store {
    /// Makes a store; connects to nothing yet.
    pub fn new(db: Database, settings: StoreSettings) -> Store { Store { db, settings } }
    /// Brings the schema up to date, and makes the partitions of the next days.
    pub async fn migrate(&self) -> Result<(), StoreError> { todo!() }
    /// The settings.
    pub fn settings(&self) -> &StoreSettings { &self.settings }
    /// Creates a tree of jobs with its items.
    pub async fn create(&self, job: NewJob, idempotency: Option<IdempotencyKey>) -> Result<Created, StoreError> { todo!() }
    /// Adds items to a job. Returns their ids, in order.
    pub async fn add_items(&self, job: &str, items: Vec<NewItem>, idempotency: Option<IdempotencyKey>) -> Result<Vec<String>, StoreError> { todo!() }
    /// Seals a job. Sealing again changes nothing.
    pub async fn seal(&self, job: &str) -> Result<(), StoreError> { todo!() }
    /// Deletes a job and the tree below it.
    pub async fn delete(&self, job: &str) -> Result<(), StoreError> { todo!() }
    /// Assigns up to `max` available items of the types to a worker.
    pub async fn claim(&self, types: &[String], worker: &str, max: usize) -> Result<Vec<Assigned>, StoreError> { todo!() }
    /// Assigns an item to a worker.
    pub async fn assign(&self, item: &str, worker: &str) -> Result<Assigned, StoreError> { todo!() }
    /// Ends assignments by results and failures, in one transaction.
    pub async fn settle(&self, results: Vec<Success>, failures: Vec<Failure>) -> Result<Vec<Settled>, StoreError> { todo!() }
    /// Ends an assignment by a result.
    pub async fn succeed(&self, assignment: &str, result: RawJson) -> Result<Settlement, StoreError> { todo!() }
    /// Ends an assignment by a failure.
    pub async fn fail(&self, assignment: &str, error: RawJson, retry_in: Option<Duration>) -> Result<Settlement, StoreError> { todo!() }
    /// Extends assignments. Returns those that have ended.
    pub async fn heartbeat(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> { todo!() }
    /// Gives items back without a failure. Returns the assignments that had ended.
    pub async fn release(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> { todo!() }
    /// The progress of a job and of those below it.
    pub async fn status(&self, job: &str) -> Result<Status, StoreError> { todo!() }
    /// A page of jobs.
    pub async fn jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> { todo!() }
    /// A page of items.
    pub async fn items(&self, query: &ItemQuery) -> Result<ItemPage, StoreError> { todo!() }
    /// Makes the failed items of a job pending again. Returns their number.
    pub async fn retry(&self, job: &str) -> Result<u64, StoreError> { todo!() }
    /// Counts for metrics.
    pub async fn counts(&self) -> Result<Counts, StoreError> { todo!() }
    /// Leases up to `max` callbacks that are due.
    pub async fn claim_callbacks(&self, max: usize, lease: Duration) -> Result<Vec<DueCallback>, StoreError> { todo!() }
    /// Ends an attempt to deliver a callback.
    pub async fn settle_callback(&self, id: &str, delivery: Delivery) -> Result<(), StoreError> { todo!() }
    /// A secret for the signatures of callbacks, the same for all servers of the database.
    pub async fn callback_secret(&self) -> Result<String, StoreError> { todo!() }
    /// Checks that the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> { todo!() }
}
