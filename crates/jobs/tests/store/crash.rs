//! The server is killed in the middle of settlements: what was acknowledged is there, what was not is whole or absent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hostler_jobs::store::{Store, StoreSettings};
use hostler_jobs::types::{SettledStatus, Success};
use serde_json::json;

use crate::postgres::Postgres;
use crate::rules::store_count;
use crate::{connect, result_of, tree};

const KINDS: [&str; 1] = ["a"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_server_loses_nothing_that_it_acknowledged() {
    let mut server = Postgres::start();
    let settings = StoreSettings { heartbeat: Duration::from_secs(1), ..StoreSettings::default() };
    let store = connect(&server.database(), settings);
    store.migrate().await.unwrap();
    let items: Vec<_> = (0..3_000)
        .map(|n| json!({"payload": n, "serialize_key": (n % 7 == 0).then(|| format!("k{}", n % 50))}))
        .collect();
    let root = json!({"type": "a", "sealed": true, "max_failures_per_item": 100, "items": items, "callback": {"channel": "c"},
        "children": [{"type": "b", "feed": {"payload": "$"}}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let workers: Vec<_> = (0..4).map(|_| tokio::spawn(work(store.clone()))).collect();
    for _ in 0..3 {
        let before = store_count(&store, "SELECT count(*) FROM hostler_jobs.done").await;
        let begun = Instant::now();
        while store_count(&store, "SELECT count(*) FROM hostler_jobs.done").await < before + 200 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            let _ = store.expire().await;
            let _ = store.promote().await;
        }
        server.kill();
        server.restart();
        while store.ping().await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(120));
        }
    }
    let begun = Instant::now();
    let mut left = i64::MAX;
    while left > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{left} left");
        store.expire().await.unwrap();
        store.promote().await.unwrap();
        left = 3_000 - store_count(&store, "SELECT count(*) FROM hostler_jobs.done d JOIN hostler_jobs.job j ON j.num = d.job WHERE j.parent IS NULL").await;
    }
    let mut known: HashMap<String, SettledStatus> = HashMap::new();
    for worker in workers {
        worker.abort();
        if let Ok(settled) = worker.await {
            known.extend(settled);
        }
    }
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.succeeded, status.failed, status.complete), (3_000, 0, true));
    assert_eq!(status.children[0].added, 3_000, "each result fed once");
    assert_eq!(store_count(&store, "SELECT count(DISTINCT payload::text) FROM hostler_jobs.item i JOIN hostler_jobs.job j ON j.num = i.job WHERE j.parent IS NOT NULL").await, 3_000);
}

/// Claims and settles until aborted. Repeats settlements whose fate is unknown, which then have to be accepted or stale.
async fn work(store: Store) -> HashMap<String, SettledStatus> {
    loop {
        let Ok(given) = store.claim(&KINDS.map(str::to_owned), "w", 20).await else { continue };
        let results: Vec<Success> = given.iter().map(|one| result_of(one, &json!({"of": one.item.id}))).collect();
        while let Err(error) = store.settle(results.clone(), Vec::new()).await {
            assert!(error.is_retryable(), "{error}");
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }
}
