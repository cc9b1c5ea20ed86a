//! Serialize keys: items of a key run one after another, in the order of their creation.

use std::time::Duration;

use hostler_jobs::store::StoreError;
use serde_json::json;

use crate::rules::{store_count, store_sql};
use crate::{accepted, claim, item, payloads, raw, store, succeed_all, tree};

#[tokio::test]
async fn keys_hold_across_jobs_trees_and_types() {
    let store = store().await;
    let keyed = |n: u32| json!({"payload": n, "serialize_key": "k", "priority": -(n as i16)});
    store
        .create(
            tree(
                &json!({"type": "a", "items": [keyed(1), keyed(2)], "children": [{"type": "b", "items": [keyed(3)]}]}),
            ),
            None,
        )
        .await
        .unwrap();
    let other = store.create(tree(&json!({"type": "b", "items": [keyed(4), {"payload": 9}]})), None).await.unwrap();
    store.add_items(&other.id, vec![item(&keyed(5))], None).await.unwrap();
    assert_eq!(payloads(&claim(&store, "b", 9).await), [json!(9)]);
    for (kind, n) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("b", 5)] {
        let other = if kind == "a" { "b" } else { "a" };
        assert!(claim(&store, other, 9).await.is_empty());
        let given = claim(&store, kind, 9).await;
        assert_eq!(payloads(&given), [json!(n)]);
        assert!(claim(&store, kind, 9).await.is_empty());
        succeed_all(&store, &given).await;
    }
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.serial_key").await, 0);
}

#[tokio::test]
async fn a_head_in_backoff_or_failed_holds_or_passes_its_key() {
    let store = store().await;
    let keyed = |n: u32| json!({"payload": n, "serialize_key": "k"});
    let root = json!({"type": "a", "max_failures_per_item": 1, "items": [keyed(1), keyed(2)]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 9).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!(1)), Some(Duration::from_secs(99))).await.unwrap());
    assert!(claim(&store, "a", 9).await.is_empty());
    let second = &created.item_ids[1];
    assert!(matches!(store.assign(second, "w").await, Err(StoreError::Conflict { reason: "serialize_key", .. })));
    store_sql(&store, "UPDATE hostler_jobs.later SET due = now()").await;
    let again = store.assign(&created.item_ids[0], "w").await.unwrap();
    assert!(accepted(store.fail(&again.assignment_id, raw(&json!(1)), None).await.unwrap()).is_none());
    assert_eq!(payloads(&claim(&store, "a", 9).await), [json!(2)]);
    // The operator's retry puts the older one behind the one that runs.
    assert_eq!(store.retry(&created.id).await.unwrap(), 1);
    assert!(claim(&store, "a", 9).await.is_empty());
}

#[tokio::test]
async fn a_retried_item_comes_before_a_later_one_that_no_worker_has() {
    let store = store().await;
    let keyed = |n: u32| json!({"payload": n, "serialize_key": "k"});
    let created =
        store.create(tree(&json!({"type": "a", "items": [keyed(1), keyed(2), keyed(3)]})), None).await.unwrap();
    let given = claim(&store, "a", 9).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!(1)), None).await.unwrap());
    assert_eq!(store.retry(&created.id).await.unwrap(), 1);
    for n in 1..=3 {
        let given = claim(&store, "a", 9).await;
        assert_eq!(payloads(&given), [json!(n)]);
        succeed_all(&store, &given).await;
    }
}

#[tokio::test]
async fn deletion_passes_keys_on() {
    for state in ["ready", "assigned", "later"] {
        let store = store().await;
        let keyed = |n: u32| json!({"payload": n, "serialize_key": "k"});
        let first = store
            .create(tree(&json!({"type": "a", "max_failures_per_item": 9, "items": [keyed(1), keyed(2)]})), None)
            .await
            .unwrap();
        store.create(tree(&json!({"type": "a", "items": [keyed(3)]})), None).await.unwrap();
        if state != "ready" {
            let given = claim(&store, "a", 9).await.remove(0);
            if state == "later" {
                accepted(
                    store.fail(&given.assignment_id, raw(&json!(1)), Some(Duration::from_secs(99))).await.unwrap(),
                );
            }
        }
        store.delete(&first.id).await.unwrap();
        assert_eq!(payloads(&claim(&store, "a", 9).await), [json!(3)], "{state}");
    }
}

#[tokio::test]
async fn items_behind_another_of_their_key_are_counted_as_waiting() {
    let store = store().await;
    let items = ["k", "k", "k", "l", "m", "m"].map(|key| json!({"payload": 1, "serialize_key": key}));
    store.create(tree(&json!({"type": "a", "items": items})), None).await.unwrap();
    assert_eq!(store.counts().await.unwrap().waiting, 3);
    // A first one that a worker has is the first all the same.
    let given = claim(&store, "a", 9).await;
    assert_eq!((given.len(), store.counts().await.unwrap().waiting), (3, 3));
    succeed_all(&store, &given).await;
    assert_eq!(store.counts().await.unwrap().waiting, 1);
}
