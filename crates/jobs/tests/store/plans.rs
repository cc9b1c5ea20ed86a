//! The plans that the schema's functions get.

use serde_json::json;

use crate::rules::{store_count, store_sql};
use crate::{claim, store, succeed_all, tree};

/// A plan node that is turned off and has no alternative costs so much that PostgreSQL compiles the plan, which takes a second.
#[tokio::test]
async fn functions_that_turn_plan_nodes_off_are_not_compiled() {
    let store = store().await;
    let steering = "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'hostler_jobs'::regnamespace \
        AND 'enable_seqscan=off' = ANY (p.proconfig)";
    assert!(store_count(&store, steering).await > 15);
    let compiled = format!("{steering} AND NOT 'jit=off' = ANY (p.proconfig)");
    assert_eq!(store_count(&store, &compiled).await, 0);
}

#[tokio::test]
async fn counts_read_the_open_jobs_once() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "items": [{"payload": 1}, {"payload": 2}, {"payload": 3}],
        "children": [{"type": "b"}, {"type": "c", "items": [{"payload": 4}]}]});
    for _ in 0..2 {
        store.create(tree(&root), None).await.unwrap();
    }
    store.create(tree(&json!({"type": "b", "items": [{"payload": 5}]})), None).await.unwrap();
    succeed_all(&store, &claim(&store, "a", 4).await).await;
    store.fold().await.unwrap();
    let scans = "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relid = 'hostler_jobs.job'::regclass";
    // Sessions report their numbers when idle for long, or if asked to. All calls of this test have one session.
    store_sql(&store, "SELECT pg_stat_force_next_flush()").await;
    let before = store_count(&store, scans).await;
    let counts = store.counts().await.unwrap();
    store_sql(&store, "SELECT pg_stat_force_next_flush()").await;
    assert_eq!(store_count(&store, scans).await - before, 1);
    let pending = [("a", 2), ("b", 1), ("c", 2)].map(|(kind, items)| (kind.to_owned(), items));
    assert_eq!(counts.pending, pending);
    assert_eq!((counts.open_jobs, counts.open_trees), (5, 3));
    let empty = crate::store().await.counts().await.unwrap();
    assert_eq!((empty.pending, empty.open_jobs, empty.open_trees), (Vec::new(), 0, 0));
}
