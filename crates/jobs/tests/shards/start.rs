//! The start while a database is away, and its admission once it answers.

use std::time::{Duration, Instant};

use hostler_jobs::shards::Shards;
use hostler_jobs::shards::route::home;
use hostler_jobs::store::{IdempotencyKey, StoreError};
use hostler_jobs::types::Created;
use serde_json::json;

use crate::databases::{claim, count, joined, sql, tree};
use crate::log::Lines;
use crate::postgres::Postgres;
use crate::server::Server;

const DEADLINE: Duration = Duration::from_secs(60);

/// Creates a tree in one of two databases.
async fn create_at(shards: &Shards, number: usize) -> Result<Created, StoreError> {
    let key = (0..).map(|n| format!("k{n}")).find(|key| home(key, 2) == number).unwrap();
    let root = tree(&json!({"type": "a", "items": [{"payload": number}]}));
    shards.create(root, Some(IdempotencyKey { key, hash: "h".to_owned() })).await
}

/// Waits until all databases are taken up.
async fn all_there(shards: &Shards) {
    let deadline = Instant::now() + DEADLINE;
    while !shards.away().is_empty() {
        assert!(Instant::now() < deadline, "{:?} is back", shards.away());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_service_starts_without_one_of_its_databases_and_takes_it_up_later() {
    let mut other = Postgres::start();
    let shards = joined(&[other.database(), Postgres::shared().database()]);
    let place = shards.stores()[0].place().to_owned();
    other.stop();
    shards.start().await.unwrap();
    assert_eq!(shards.away(), [place.as_str()]);
    let server = Server::start(shards.clone()).await;
    assert_eq!(server.ready().await, (200, json!({"status": "degraded", "databases_away": [place]})));
    create_at(&shards, 1).await.unwrap();
    assert!(matches!(create_at(&shards, 0).await, Err(StoreError::Database(_))));
    assert_eq!(claim(&shards, "a", 9).await.len(), 1);
    other.restart();
    all_there(&shards).await;
    create_at(&shards, 0).await.unwrap();
    assert_eq!(claim(&shards, "a", 9).await.len(), 1);
    let deadline = Instant::now() + DEADLINE;
    while server.ready().await.1 != json!({"status": "ok"}) {
        assert!(Instant::now() < deadline, "{:?}", server.ready().await);
    }
    let [first, second] = [0, 1].map(|number| shards.stores()[number].clone());
    assert_eq!(first.callback_secret().await.unwrap(), second.callback_secret().await.unwrap());
    assert_eq!(count(&first, "SELECT count(*) FROM hostler_shards.place WHERE number = 0 AND count = 2").await, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_database_that_comes_with_another_schema_is_left_alone() {
    let lines = Lines::collect();
    let mut other = Postgres::start();
    let urls = [Postgres::shared().database(), other.database()];
    let first = joined(&urls);
    first.migrate().await.unwrap();
    sql(
        &first.stores()[1],
        "INSERT INTO hostler_jobs.migration (version, name, compatible_from) VALUES (999, 'x', 999)",
    )
    .await;
    other.stop();
    let shards = joined(&urls);
    shards.start().await.unwrap();
    let server = Server::start(shards.clone()).await;
    other.restart();
    let deadline = Instant::now() + DEADLINE;
    while lines.of("answers, but is not used").is_empty() {
        assert!(Instant::now() < deadline, "the schema is refused");
        tokio::task::yield_now().await;
    }
    let store = &shards.stores()[1];
    for _ in 0..3 {
        assert!(matches!(create_at(&shards, 1).await, Err(StoreError::Database(_))));
        assert!(matches!(store.create(tree(&json!({"type": "a"})), None).await, Err(StoreError::Database(_))));
        assert!(matches!(store.fold().await, Err(StoreError::Database(_))));
    }
    assert_eq!(shards.away(), [store.place()]);
    assert_eq!(count(store, "SELECT count(*) FROM hostler_jobs.job_type").await, 0);
    sql(store, "DELETE FROM hostler_jobs.migration WHERE version = 999").await;
    all_there(&shards).await;
    create_at(&shards, 1).await.unwrap();
    assert_eq!(lines.of("answers, but is not used").len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_service_does_not_start_without_any_database() {
    let away = |name: &str| format!("postgres://me:hunter2@127.0.0.1:9/{name}");
    let refused = joined(&[away("one"), away("two")]).start().await.unwrap_err();
    assert!(matches!(refused.error, StoreError::Database(_)) && !refused.to_string().contains("hunter2"));
}
