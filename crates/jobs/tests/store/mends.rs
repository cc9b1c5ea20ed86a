//! Deleted, retried and abandoned work in unusual orders: each test is about one fault that was found by review.

use std::time::Duration;

use hostler_jobs::store::{Settlement, Store, StoreSettings};
use hostler_jobs::types::{SettledStatus, Success};
use hostler_postgres::{Database, Options};
use serde_json::json;

use crate::extras::adding;
use crate::postgres::Postgres;
use crate::rules::{store_count, store_sql};
use crate::{accepted, claim, payloads, raw, store, succeed_all, tree};

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

#[tokio::test]
async fn an_assignment_id_with_another_day_is_stale() {
    let store = store().await;
    let root = json!({"type": "a", "items": [{"payload": 1}], "children": [{"type": "b", "feed": {"payload": "$"}}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let (day, rest) = given.assignment_id.strip_prefix("a-").unwrap().split_once('-').unwrap();
    let day = i64::from_str_radix(day, 16).unwrap();
    for other in [day - 1, day + 1, 7] {
        let id = format!("a-{other:x}-{rest}");
        assert_eq!(store.succeed(&id, raw(&json!(1))).await.unwrap(), Settlement::Stale, "{other}");
        let more = Success { assignment_id: id, ..adding(&given, &json!([{"target": "b", "items": [{"payload": 1}]}]), &[]) };
        assert_eq!(store.settle(vec![more], Vec::new()).await.unwrap()[0].status, SettledStatus::Stale, "{other}");
    }
    assert_eq!(store.status(&created.id).await.unwrap().children[0].added, 0);
    accepted(store.succeed(&given.assignment_id, raw(&json!(1))).await.unwrap());
    assert_eq!(payloads(&claim(&store, "b", 9).await), [json!(1)]);
}

#[tokio::test]
async fn a_retried_item_may_add_items_to_jobs_that_its_completion_sealed() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "items": [{"payload": 1}], "children": [
        {"type": "b", "children": [{"type": "c"}]}, {"type": "d", "sealed": true}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!("no")), None).await.unwrap());
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    assert_eq!(store.retry(&created.id).await.unwrap(), 1);
    let status = store.status(&created.id).await.unwrap();
    assert!(status.sealed && !status.complete && !status.tree_complete);
    let (below, other) = (&status.children[0], &status.children[1]);
    assert!(!below.sealed && !below.complete && !below.children[0].sealed && !below.children[0].complete);
    assert!(other.sealed && other.complete, "sealed by the client");
    let given = claim(&store, "a", 1).await.remove(0);
    let added = json!([{"target": "b", "items": [{"payload": 2}]}]);
    let settled = store.settle(vec![adding(&given, &added, &[])], Vec::new()).await.unwrap();
    assert_eq!(settled[0].status, SettledStatus::Ok);
    let status = store.status(&created.id).await.unwrap();
    assert!(status.complete && status.succeeded == 1 && !status.tree_complete);
    succeed_all(&store, &claim(&store, "b", 9).await).await;
    let status = store.status(&created.id).await.unwrap();
    assert!(status.tree_complete && status.children[0].children[0].complete);
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.job WHERE open_jobs <> 0 OR NOT complete").await, 0);
}
