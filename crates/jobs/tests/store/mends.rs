//! Deleted, retried and abandoned work in unusual orders: each test is about one fault that was found by review.

use std::time::Duration;

use hostler_jobs::store::{Store, StoreSettings};
use hostler_postgres::{Database, Options};
use serde_json::json;

use crate::postgres::Postgres;
use crate::rules::{store_count, store_sql};
use crate::{claim, payloads, store, tree};

/// Makes a store whose statements have to end within a deadline.
async fn hasty(deadline: Duration) -> Store {
    let options = Options { application: "test", connections: 4, deadline };
    let settings = StoreSettings { backoff: Duration::ZERO, backoff_max: Duration::ZERO, ..StoreSettings::default() };
    let store = Store::new(Database::new(&Postgres::shared().database(), options).unwrap(), settings);
    store.migrate().await.unwrap();
    store
}

#[tokio::test]
async fn items_of_deleted_jobs_do_not_block_their_type() {
    let store = hasty(Duration::from_secs(3)).await;
    store.create(tree(&json!({"type": "a", "items": [{"payload": 1, "priority": 9}]})), None).await.unwrap();
    let dead = "INSERT INTO hostler_jobs.ready (type, priority, seq, day, job) \
        SELECT (SELECT id FROM hostler_jobs.job_type), 0, n, 1, 999 FROM generate_series(1000, 20999) n";
    store_sql(&store, dead).await;
    assert_eq!(payloads(&claim(&store, "a", 1).await), [json!(1)]);
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.ready").await, 0);
}
