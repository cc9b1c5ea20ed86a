//! Ends of single assignments that come at the same time.

use std::time::Duration;

use hostler_jobs::store::{Settlement, Store};
use hostler_jobs::types::{Assigned, Failure};
use serde_json::json;
use tokio::time::timeout;

use crate::rules::store_count;
use crate::{claim, raw, store, tree};

/// Ends each of the assignments on its own: every third by a failure.
async fn end(store: Store, number: usize, given: Assigned) -> Settlement {
    let (id, error) = (given.assignment_id, raw(&json!("e")));
    if !number.is_multiple_of(3) {
        return store.succeed(&id, raw(&json!(number))).await.unwrap();
    }
    let failure = Failure { assignment_id: id, error, is_final: true, ..Failure::default() };
    store.end_by_failure(failure).await.unwrap()
}

#[tokio::test]
async fn ends_that_come_meanwhile_share_a_transaction() {
    let store = store().await;
    let items: Vec<_> = (0..60).map(|n| json!({"payload": n, "serialize_key": format!("k{n}")})).collect();
    let job = store.create(tree(&json!({"type": "a", "items": items})), None).await.unwrap().id;
    let mut given = claim(&store, "a", 60).await;
    let twice = given[1].clone();
    let mut unknown = given[0].clone();
    "no assignment".clone_into(&mut unknown.assignment_id);
    given.extend([twice, unknown]);
    let mut other = store.database().client().await.unwrap();
    let lock = other.transaction().await.unwrap();
    lock.batch("LOCK TABLE hostler_jobs.assignment IN SHARE MODE").await.unwrap();
    let calls = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%settle(%' \
        AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'";
    let mut running = Vec::new();
    for (number, one) in given.into_iter().enumerate() {
        running.push(tokio::spawn(end(store.clone(), number, one)));
        let blocked = async {
            while store_count(&store, calls).await < (number as i64 + 1).min(2) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), blocked).await.unwrap();
    }
    // All the others have come, and wait for these two.
    assert_eq!(store_count(&store, calls).await, 2);
    lock.commit().await.unwrap();
    let mut stale = 0;
    for one in running {
        stale += usize::from(one.await.unwrap() == Settlement::Stale);
    }
    // The failure of the one that has a result, and the unknown one.
    assert_eq!(stale, 2);
    let status = store.status(&job).await.unwrap();
    assert_eq!((status.succeeded, status.failed, status.pending), (40, 20, 0));
}
