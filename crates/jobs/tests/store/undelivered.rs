//! Claims that end in an error after their transaction: no worker knows of the assignments.

use hostler_jobs::store::{Store, StoreError};
use serde_json::json;

use crate::{connect, tree};

/// Replaces the function that reads the items of assignments by one whose payloads are not JSON.
const UNREADABLE: &str = "CREATE OR REPLACE FUNCTION hostler_jobs.assigned_items(p_seqs bigint[], p_tokens bigint[]) \
    RETURNS TABLE (seq bigint, token bigint, day int, id text, job_id text, root_id text, type text, payload text, metadata text, \
        dedupe_key text, serialize_key text, priority smallint, failures text, created_at text) LANGUAGE sql AS $$ \
    SELECT a.seq, a.token, a.day, NULL::text, 'j', 'j', 'mail', '{', NULL::text, NULL::text, NULL::text, 0::smallint, NULL::text, '' \
    FROM hostler_jobs.assignment a WHERE a.seq = ANY (p_seqs) $$";

/// Waits until an item is ready again and no worker has one.
async fn given_back(store: &Store) {
    let sql = "SELECT (SELECT count(*) FROM hostler_jobs.ready), (SELECT count(*) FROM hostler_jobs.assignment)";
    let begun = std::time::Instant::now();
    loop {
        let rows = store.database().client().await.unwrap().query(sql, &[]).await.unwrap();
        if (rows[0].get::<_, i64>(0), rows[0].get::<_, i64>(1)) == (1, 0) {
            return;
        }
        assert!(begun.elapsed().as_secs() < 20, "the item is lost until its heartbeats are missed");
    }
}

#[tokio::test]
async fn an_error_after_the_claim_gives_the_items_back() {
    let store = connect(&crate::postgres::Postgres::shared().database(), Default::default());
    store.migrate().await.unwrap();
    store
        .create(tree(&json!({ "type": "mail", "id": "j", "items": [{ "id": "i", "payload": 1 }] })), None)
        .await
        .unwrap();
    store.database().client().await.unwrap().batch(UNREADABLE).await.unwrap();
    let claimed = store.claim(&["mail".to_owned()], "w", 10).await;
    assert!(matches!(claimed, Err(StoreError::Unexpected(_))), "{claimed:?}");
    given_back(&store).await;
    let assigned = store.assign("i", "w").await;
    assert!(matches!(assigned, Err(StoreError::Unexpected(_))), "{assigned:?}");
    given_back(&store).await;
}
