//! Callbacks: exactly one in the outbox for each completion.

use std::time::Duration;

use hostler_jobs::store::Delivery;
use hostler_jobs::types::Callback;
use serde_json::json;

use crate::rules::{store_count, store_sql};
use crate::{claim, store, succeed_all, tree};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_completion_has_one_callback() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "callback": {"url": "http://x/y"}, "items": [{"payload": 1}], "children": [{"type": "b"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    store.fold().await.unwrap();
    assert!(store.claim_callbacks(9, LEASE).await.unwrap().is_empty());
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    for _ in 0..3 {
        store.fold().await.unwrap();
        store.status(&created.id).await.unwrap();
    }
    let due = store.claim_callbacks(9, LEASE).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].root_id.as_str(), due[0].attempts), (created.id.as_str(), 0));
    assert_eq!(due[0].callback, Callback::Url("http://x/y".to_owned()));
    assert!(store.claim_callbacks(9, LEASE).await.unwrap().is_empty(), "leased");
    store.settle_callback(&due[0].id, Delivery::Failed).await.unwrap();
    assert!(store.claim_callbacks(9, LEASE).await.unwrap().is_empty(), "backing off");
    store_sql(&store, "UPDATE hostler_jobs.outbox SET due = now()").await;
    let again = store.claim_callbacks(9, LEASE).await.unwrap();
    assert_eq!((&again[0].id, again[0].attempts), (&due[0].id, 1));
    store_sql(&store, "UPDATE hostler_jobs.outbox SET created_at = now() - interval '25 hours'").await;
    store.settle_callback(&due[0].id, Delivery::Failed).await.unwrap();
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.outbox WHERE dead").await, 1);
    store.settle_callback(&due[0].id, Delivery::Delivered).await.unwrap();
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.outbox").await, 0);
}

#[tokio::test]
async fn the_secret_is_the_same_for_all() {
    let store = store().await;
    let (one, two) = tokio::join!(store.callback_secret(), store.callback_secret());
    let one = one.unwrap();
    assert_eq!((one.len(), &one), (64, &two.unwrap()));
    assert_eq!(store.callback_secret().await.unwrap(), one);
}
