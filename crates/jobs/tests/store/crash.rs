//! The server is killed in the middle of settlements: what was acknowledged is there, what was not is whole or absent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostler_jobs::ids::{AssignmentRef, ItemRef};
use hostler_jobs::store::{Store, StoreSettings};
use hostler_jobs::types::{SettledStatus, Success};
use serde_json::json;

use crate::postgres::Postgres;
use crate::rules::store_count;
use crate::{connect, result_of, tree};

const KINDS: [&str; 1] = ["a"];

/// The answers that workers got, by assignment.
type Acknowledged = Arc<Mutex<HashMap<String, SettledStatus>>>;

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
    let known = Acknowledged::default();
    let workers: Vec<_> = (0..4).map(|_| tokio::spawn(work(store.clone(), known.clone()))).collect();
    for _ in 0..3 {
        let before = store_count(&store, "SELECT count(*) FROM hostler_jobs.done").await;
        let begun = Instant::now();
        while store_count(&store, "SELECT count(*) FROM hostler_jobs.done").await < before + 200 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            let _ = store.expire().await;
            let _ = store.promote().await;
        }
        server.kill();
        let acknowledged = known.lock().unwrap().clone();
        server.restart();
        while store.ping().await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(120));
        }
        check(&store, &acknowledged).await;
    }
    let begun = Instant::now();
    let mut left = i64::MAX;
    while left > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{left} left");
        store.expire().await.unwrap();
        store.promote().await.unwrap();
        left = 3_000 - store_count(&store, "SELECT count(*) FROM hostler_jobs.done d JOIN hostler_jobs.job j ON j.num = d.job WHERE j.parent IS NULL").await;
    }
    for worker in workers {
        worker.abort();
        let _ = worker.await;
    }
    let known = known.lock().unwrap().clone();
    assert!(known.len() > 500, "{} acknowledged", known.len());
    check(&store, &known).await;
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.succeeded, status.failed, status.complete), (3_000, 0, true));
    assert_eq!(status.children[0].added, 3_000, "each result fed once");
    assert_eq!(store_count(&store, "SELECT count(DISTINCT payload::text) FROM hostler_jobs.item i JOIN hostler_jobs.job j ON j.num = i.job WHERE j.parent IS NOT NULL").await, 3_000);
}

/// Checks that the results that were acknowledged are there, each under its assignment, that those that were stale are not, and
/// that no item has ended twice or under an assignment that had failed.
async fn check(store: &Store, known: &HashMap<String, SettledStatus>) {
    let client = store.database().client().await.unwrap();
    let sql = "SELECT d.day, d.seq, d.token, d.result ->> 'of' FROM hostler_jobs.done d JOIN hostler_jobs.job j ON j.num = d.job \
        WHERE d.ok AND j.parent IS NULL";
    let rows = client.query(sql, &[]).await.unwrap();
    let mut done: HashMap<(i32, i64), i64> = HashMap::new();
    for row in rows {
        let item = ItemRef { day: row.get(0), seq: row.get(1) };
        assert_eq!(row.get::<_, String>(3), item.to_string(), "the result of another item");
        assert_eq!(done.insert((item.day, item.seq), row.get(2)), None, "{item} has ended twice");
    }
    for (id, status) in known {
        let place = AssignmentRef::parse(id).unwrap();
        let is_there = done.get(&(place.item.day, place.item.seq)) == Some(&place.token);
        assert_eq!(is_there, *status == SettledStatus::Ok, "{id} was acknowledged as {status:?}");
    }
    let both = "SELECT count(*) FROM hostler_jobs.done d JOIN hostler_jobs.failure f ON f.day = d.day AND f.seq = d.seq \
        AND f.token = d.token WHERE d.ok";
    assert_eq!(store_count(store, both).await, 0, "an attempt has failed and succeeded");
}

/// Claims and settles until aborted, and notes the answers. Repeats settlements whose fate is unknown, which then have to be
/// accepted or stale.
async fn work(store: Store, known: Acknowledged) {
    loop {
        let Ok(given) = store.claim(&KINDS.map(str::to_owned), "w", 20).await else { continue };
        let results: Vec<Success> = given.iter().map(|one| result_of(one, &json!({"of": one.item.id}))).collect();
        let settled = loop {
            match store.settle(results.clone(), Vec::new()).await {
                Ok(settled) => break settled,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::task::yield_now().await;
        };
        known.lock().unwrap().extend(settled.into_iter().map(|one| (one.assignment_id, one.status)));
        tokio::task::yield_now().await;
    }
}
