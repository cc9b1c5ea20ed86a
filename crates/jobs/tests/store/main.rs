//! Tests of the store over a real PostgreSQL: one server, a database for each test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
#[path = "../support/shapes.rs"]
mod shapes;

mod applets;
mod callbacks;
mod crash;
mod extras;
mod interleavings;
mod joined;
mod keys;
mod mends;
mod plans;
mod rules;
mod sizes;
mod speed;
mod undelivered;

use std::time::Duration;

use hostler_jobs::store::{Settlement, Store, StoreSettings};
use hostler_jobs::types::{Assigned, ItemPage, ItemQuery, SettledStatus, Success};
use hostler_postgres::{Database, Options};
use postgres::Postgres;
use serde_json::{Value, json};
pub use shapes::{item, raw, tree};

/// Connects to a database.
pub fn connect(url: &str, settings: StoreSettings) -> Store {
    let options = Options { application: "test", connections: 12, deadline: Duration::from_secs(60) };
    Store::new(Database::new(url, options).unwrap(), settings)
}

/// Makes a store over a new database, without delays after failures.
pub async fn store() -> Store {
    with(StoreSettings { backoff: Duration::ZERO, backoff_max: Duration::ZERO, ..StoreSettings::default() }).await
}

/// Makes a store over a new database.
pub async fn with(settings: StoreSettings) -> Store {
    let store = connect(&Postgres::shared().database(), settings);
    store.migrate().await.unwrap();
    store
}

/// Claims items of one type.
pub async fn claim(store: &Store, kind: &str, max: usize) -> Vec<Assigned> {
    store.claim(&[kind.to_owned()], "w", max).await.unwrap()
}

/// The payloads of assignments.
pub fn payloads(given: &[Assigned]) -> Vec<Value> {
    given.iter().map(|one| serde_json::from_str(one.item.payload.text()).unwrap()).collect()
}

/// Settles assignments by the result `true`. All have to be accepted.
pub async fn succeed_all(store: &Store, given: &[Assigned]) {
    let results = given.iter().map(|one| result_of(one, &json!(true))).collect();
    let settled = store.settle(results, Vec::new()).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
}

/// A result under an assignment.
pub fn result_of(given: &Assigned, result: &Value) -> Success {
    Success { assignment_id: given.assignment_id.clone(), result: raw(result), ..Success::default() }
}

/// The answer to a settlement, with the time of the next attempt.
pub fn accepted(settlement: Settlement) -> Option<String> {
    match settlement {
        Settlement::Ok { retry_at } => retry_at,
        Settlement::Stale => panic!("stale"),
    }
}

/// The items of a job.
pub async fn items_of(store: &Store, job: &str) -> ItemPage {
    store.items(&ItemQuery { job_id: Some(job.to_owned()), ..ItemQuery::default() }).await.unwrap()
}
