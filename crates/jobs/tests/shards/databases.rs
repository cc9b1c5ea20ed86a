//! Several databases of one server, and shorthands.

use std::time::Duration;

use hostler_jobs::shards::Shards;
use hostler_jobs::store::{Store, StoreSettings};
use hostler_jobs::types::{Assigned, SettledStatus, Success};
use hostler_postgres::{Database, Options};
use serde_json::{Value, json};

use crate::postgres::Postgres;
pub use crate::shapes::{item, raw, tree};

/// Connects to a database, without delays after failures.
pub fn connect(url: &str) -> Store {
    let options = Options { application: "test", connections: 8, deadline: Duration::from_secs(20) };
    let settings = StoreSettings { backoff: Duration::ZERO, backoff_max: Duration::ZERO, ..StoreSettings::default() };
    Store::new(Database::new(url, options).unwrap(), settings)
}

/// New databases of the shared server.
pub fn urls(count: usize) -> Vec<String> {
    (0..count).map(|_| Postgres::shared().database()).collect()
}

/// Joins databases. Does not migrate.
pub fn joined(urls: &[String]) -> Shards {
    Shards::new(urls.iter().map(|url| connect(url)).collect()).unwrap()
}

/// Makes several new databases, ready to be used.
pub async fn shards(count: usize) -> Shards {
    let shards = joined(&urls(count));
    shards.migrate().await.unwrap();
    shards
}

/// Executes SQL in a database.
pub async fn sql(store: &Store, text: &str) {
    store.database().client().await.unwrap().batch(text).await.unwrap();
}

/// The number that a query returns.
pub async fn count(store: &Store, text: &str) -> i64 {
    store.database().client().await.unwrap().query(text, &[]).await.unwrap()[0].get(0)
}

/// Claims items of one type from all databases.
pub async fn claim(shards: &Shards, kind: &str, max: usize) -> Vec<Assigned> {
    shards.claim(&[kind.to_owned()], "w", max).await.unwrap()
}

/// The payload of an assignment.
pub fn payload(given: &Assigned) -> Value {
    serde_json::from_str(given.item.payload.text()).unwrap()
}

/// A result under an assignment.
pub fn success(given: &Assigned) -> Success {
    Success { assignment_id: given.assignment_id.clone(), result: raw(&json!(true)), ..Success::default() }
}

/// Settles assignments by a result. All have to be accepted.
pub async fn succeed_all(shards: &Shards, given: &[Assigned]) {
    let settled = shards.settle(given.iter().map(success).collect(), Vec::new()).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
}
