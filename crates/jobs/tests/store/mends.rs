//! Deleted, retried and abandoned work in unusual orders: each test is about one fault that was found by review.

use std::time::Duration;

use hostler_jobs::store::{Settlement, Store, StoreError, StoreSettings};
use hostler_jobs::types::{Assigned, SettledStatus, Success};
use hostler_postgres::{Database, Options};
use serde_json::json;

use crate::extras::{adding, expire_all};
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
        let more =
            Success { assignment_id: id, ..adding(&given, &json!([{"target": "b", "items": [{"payload": 1}]}]), &[]) };
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
    assert_eq!(
        store_count(&store, "SELECT count(*) FROM hostler_jobs.job WHERE open_jobs <> 0 OR NOT complete").await,
        0
    );
}

/// Makes three items of a key, of which the first has failed for good, and the second is a worker's.
async fn second_of_a_key(store: &Store) -> (String, Assigned) {
    let first = json!({"type": "a", "items": [{"payload": 1, "serialize_key": "k"}]});
    let first = store.create(tree(&first), None).await.unwrap().id;
    let items = [2, 3].map(|n| json!({"payload": n, "serialize_key": "k"}));
    let others = json!({"type": "a", "max_failures_per_item": 1, "items": items});
    store.create(tree(&others), None).await.unwrap();
    let given = claim(store, "a", 1).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!("no")), None).await.unwrap());
    (first, claim(store, "a", 1).await.remove(0))
}

#[tokio::test]
async fn a_retried_item_comes_before_a_later_one_that_waits_for_its_time() {
    let store = store().await;
    let (first, second) = second_of_a_key(&store).await;
    let wait = Some(Duration::from_secs(99));
    accepted(store.fail(&second.assignment_id, raw(&json!("no")), wait).await.unwrap());
    assert_eq!(store.retry(&first).await.unwrap(), 1);
    let retried = claim(&store, "a", 9).await;
    assert_eq!(payloads(&retried), [json!(1)]);
    store_sql(&store, "UPDATE hostler_jobs.later SET due = now()").await;
    store.promote().await.unwrap();
    assert!(claim(&store, "a", 9).await.is_empty());
    succeed_all(&store, &retried).await;
    assert!(claim(&store, "a", 9).await.is_empty(), "its time has not come");
    store_sql(&store, "UPDATE hostler_jobs.later SET due = now()").await;
    store.promote().await.unwrap();
    let again = claim(&store, "a", 9).await.remove(0);
    assert_eq!((again.item.id.as_str(), again.item.failures.len()), (second.item.id.as_str(), 1));
    assert_eq!(
        accepted(store.fail(&again.assignment_id, raw(&json!("no")), wait).await.unwrap()),
        None,
        "the last attempt"
    );
    assert_eq!(payloads(&claim(&store, "a", 9).await), [json!(3)]);
}

#[tokio::test]
async fn a_retried_item_comes_before_a_later_one_that_is_given_back() {
    for way in ["release", "release later", "fail", "expire", "success"] {
        let store = store().await;
        let (first, second) = second_of_a_key(&store).await;
        assert_eq!(store.retry(&first).await.unwrap(), 1);
        assert!(claim(&store, "a", 9).await.is_empty(), "{way}");
        let ids = std::slice::from_ref(&second.assignment_id);
        match way {
            "release" => assert!(store.release(ids).await.unwrap().is_empty()),
            "release later" => assert!(store.release_after(ids, Duration::from_millis(1)).await.unwrap().is_empty()),
            "fail" => drop(accepted(store.fail(&ids[0], raw(&json!("no")), Some(Duration::ZERO)).await.unwrap())),
            "expire" => expire_all(&store).await,
            _ => succeed_all(&store, std::slice::from_ref(&second)).await,
        }
        let order: &[u32] = if way == "success" { &[1, 3] } else { &[1, 2, 3] };
        for n in order {
            store_sql(&store, "UPDATE hostler_jobs.later SET due = now()").await;
            store.promote().await.unwrap();
            let given = claim(&store, "a", 9).await;
            assert_eq!(payloads(&given), [json!(n)], "{way}");
            succeed_all(&store, &given).await;
        }
        assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.serial_key").await, 0, "{way}");
    }
}

#[tokio::test]
async fn deletion_keeps_a_key_whose_older_item_was_retried() {
    let store = store().await;
    let (first, second) = second_of_a_key(&store).await;
    assert_eq!(store.retry(&first).await.unwrap(), 1);
    store.delete(&first).await.unwrap();
    assert!(claim(&store, "a", 9).await.is_empty(), "a worker has the second");
    succeed_all(&store, &[second]).await;
    assert_eq!(payloads(&claim(&store, "a", 9).await), [json!(3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_that_add_items_of_each_others_keys_do_not_deadlock() {
    let store = store().await;
    // Without a detector, a deadlock lasts.
    store_sql(
        &store,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''60s''', current_database()); END $$",
    )
    .await;
    let database: String =
        store.database().client().await.unwrap().query("SELECT current_database()::text", &[]).await.unwrap()[0].get(0);
    let store = crate::connect(&Postgres::shared().url(&database), store.settings().clone());
    for _ in 0..20 {
        let items = ["k", "l"].map(|key| json!({"payload": key, "serialize_key": key}));
        store.create(tree(&json!({"type": "a", "items": items, "children": [{"type": "b"}]})), None).await.unwrap();
        let given = claim(&store, "a", 9).await;
        let settles = given.iter().map(|one| {
            let other = if one.item.serialize_key.as_deref() == Some("k") { "l" } else { "k" };
            let added = json!([{"target": "b", "items": [{"payload": 1, "serialize_key": other}]}]);
            let (store, success) = (store.clone(), adding(one, &added, &[]));
            tokio::spawn(async move { store.settle(vec![success], Vec::new()).await.unwrap() })
        });
        let settles: Vec<_> = settles.collect();
        for settle in settles {
            let ended = tokio::time::timeout(Duration::from_secs(4), settle).await.expect("a deadlock").unwrap();
            assert_eq!(ended[0].status, SettledStatus::Ok);
        }
        succeed_all(&store, &claim(&store, "b", 9).await).await;
    }
}

#[tokio::test]
async fn a_status_does_not_wait_for_the_lock_of_folding() {
    let store = hasty(Duration::from_secs(3)).await;
    let created =
        store.create(tree(&json!({"type": "a", "sealed": true, "items": [{"payload": 1}]})), None).await.unwrap();
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    let mut other = store.database().client().await.unwrap();
    let holder = other.transaction().await.unwrap();
    holder.query("SELECT pg_advisory_xact_lock(7236837, 1)::text", &[]).await.unwrap();
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.added, status.succeeded, status.pending, status.complete), (1, 1, 0, false));
    assert_eq!(store.fold().await.unwrap(), 0);
    let (folded, freed) = tokio::join!(store.fold(), async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        while store_count(&store, waiting).await == 0 {}
        holder.commit().await
    });
    freed.unwrap();
    assert_eq!(folded.unwrap(), 1, "the sweep waits in line");
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

#[tokio::test]
async fn another_isolation_level_is_refused_with_the_cure() {
    let store = store().await;
    store_sql(
        &store,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$",
    )
    .await;
    let name = store.database().client().await.unwrap().query("SELECT current_database()::text", &[]).await.unwrap();
    let store = crate::connect(&Postgres::shared().url(name[0].get(0)), store.settings().clone());
    for refused in [store.migrate().await, store.check_schema().await] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("repeatable read"), "{error}");
        assert!(error.to_string().contains("ALTER ROLE"));
    }
    store.create(tree(&json!({"type": "a", "sealed": true})), None).await.unwrap();
    assert!(store.fold().await.is_err(), "completes nothing by an old snapshot");
}

#[tokio::test]
async fn deletion_clears_all_rows_in_parts() {
    let store = store().await;
    let one = |n: u32| json!({"payload": n, "id": format!("i{n}"), "dedupe_key": n.to_string(), "serialize_key": format!("k{}", n % 7)});
    let items: Vec<_> = (0..100).map(one).collect();
    let root = json!({"type": "a", "items": items, "children": [{"type": "b"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let other = json!({"type": "a", "items": [{"payload": "other", "serialize_key": "k3"}]});
    store.create(tree(&other), None).await.unwrap();
    let given = claim(&store, "a", 4).await;
    store_sql(&store, &format!("SELECT hostler_jobs.delete_job('{}')", created.id)).await;
    assert!(matches!(store.status(&created.id).await, Err(StoreError::NotFound { .. })));
    for one in &given {
        assert_eq!(store.succeed(&one.assignment_id, raw(&json!(1))).await.unwrap(), Settlement::Stale);
    }
    let mut parts = 0;
    while store_count(&store, "SELECT hostler_jobs.clear_remains(9)::bigint").await > 0 {
        parts += 1;
    }
    assert!(parts > 10, "{parts}");
    assert_eq!(payloads(&claim(&store, "a", 9).await), [json!("other")]);
    for table in ["remains", "item_id", "item_dedupe"] {
        assert_eq!(store_count(&store, &format!("SELECT count(*) FROM hostler_jobs.{table}")).await, 0, "{table}");
    }
    for table in ["assignment", "waiting", "serial_key"] {
        assert_eq!(store_count(&store, &format!("SELECT count(*) FROM hostler_jobs.{table}")).await, 1, "{table}");
    }
}

#[tokio::test]
async fn a_retry_takes_items_in_parts() {
    let store = store().await;
    let items: Vec<_> = (0..10).map(|n| json!({"payload": n})).collect();
    let created = store.create(tree(&json!({"type": "a", "sealed": true, "items": items})), None).await.unwrap();
    for one in claim(&store, "a", 10).await {
        accepted(store.fail(&one.assignment_id, raw(&json!("no")), None).await.unwrap());
    }
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    let mut after = 0;
    for retried in [4, 4, 2, 0] {
        let sql = format!("SELECT retried, last FROM hostler_jobs.retry_job('{}', {after}, 4)", created.id);
        let rows = store.database().client().await.unwrap().query(&sql, &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, i64>(0), retried);
        after = rows[0].get::<_, Option<i64>>(1).unwrap_or(after);
    }
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.failed, status.pending, status.tree_complete), (0, 10, false));
    succeed_all(&store, &claim(&store, "a", 10).await).await;
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

/// Retries one part of a job's failed items, as many as given. Returns their number.
async fn retry_part(store: &Store, job: &str, after: &mut i64, most: u32) -> i64 {
    let sql = format!("SELECT retried, last FROM hostler_jobs.retry_job('{job}', {after}, {most})");
    let rows = store.database().client().await.unwrap().query(&sql, &[]).await.unwrap();
    *after = rows[0].get::<_, Option<i64>>(1).unwrap_or(*after);
    rows[0].get(0)
}

#[tokio::test]
async fn a_tree_is_not_complete_between_the_parts_of_a_retry() {
    for (parts, is_left) in [(vec![4, 4, 2], false), (vec![5, 5, 0], false), (vec![4], true)] {
        let store = store().await;
        let items: Vec<_> = (0..10).map(|n| json!({"payload": n})).collect();
        let root = json!({"type": "a", "sealed": true, "callback": {"channel": "c"}, "items": items, "children": [{"type": "b"}]});
        let created = store.create(tree(&root), None).await.unwrap();
        for one in claim(&store, "a", 10).await {
            accepted(store.fail(&one.assignment_id, raw(&json!("no")), None).await.unwrap());
        }
        assert!(store.status(&created.id).await.unwrap().tree_complete);
        let (mut after, most) = (0, parts[0]);
        for part in parts {
            assert_eq!(retry_part(&store, &created.id, &mut after, most).await, i64::from(part));
            succeed_all(&store, &claim(&store, "a", 10).await).await;
            let is_last = part < most;
            assert_eq!(store.status(&created.id).await.unwrap().tree_complete, is_last, "{part} of {most}");
        }
        if is_left {
            store.unstick().await.unwrap();
            assert!(!store.status(&created.id).await.unwrap().tree_complete, "the next part may be under way");
            store_sql(&store, "UPDATE hostler_jobs.job SET held_until = now() WHERE held_until IS NOT NULL").await;
            store.unstick().await.unwrap();
            assert!(store.status(&created.id).await.unwrap().tree_complete, "nobody finishes the retry");
        }
        assert_eq!(store.claim_callbacks(9, Duration::from_secs(9)).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_failing_part_of_reaping_does_not_keep_the_others_from_being_done() {
    let store = store().await;
    let broken =
        "CREATE OR REPLACE FUNCTION hostler_jobs.reap(p_age float8) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'";
    store_sql(&store, broken).await;
    let old = "INSERT INTO hostler_jobs.idempotency (key, hash, at) VALUES ('k', 'h', now() - interval '2 days')";
    store_sql(&store, old).await;
    store_sql(&store, "SELECT hostler_jobs.make_partitions(100, 101)").await;
    assert!(store.reap().await.is_err());
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.idempotency").await, 0);
    assert_eq!(store_count(&store, "SELECT count(*) FROM pg_class WHERE relname = 'item_100'").await, 0);
}

#[tokio::test]
async fn reaping_keeps_a_key_that_gets_an_item_meanwhile() {
    let store = store().await;
    let created = store.create(tree(&json!({"type": "a"})), None).await.unwrap();
    store_sql(&store, "INSERT INTO hostler_jobs.serial_key VALUES ('k'), ('l')").await;
    // Pauses between the search for keys and their deletion, and lets each row be locked only after an item was added: the search
    // waits in the middle of its statement for the lock that the test has.
    let mut adder = store.database().client().await.unwrap();
    let adding = adder.transaction().await.unwrap();
    adding.query("SELECT pg_advisory_xact_lock(77)::text", &[]).await.unwrap();
    let view = "ALTER TABLE hostler_jobs.serial_key RENAME TO serial_key_rows; \
        CREATE FUNCTION hostler_jobs.pause() RETURNS boolean LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN true; END $$; \
        CREATE VIEW hostler_jobs.serial_key AS SELECT key FROM hostler_jobs.serial_key_rows WHERE hostler_jobs.pause()";
    store_sql(&store, view).await;
    let reaper = tokio::spawn({
        let store = store.clone();
        async move { store.reap().await }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    while store_count(&store, waiting).await == 0 {
        assert!(!reaper.is_finished(), "{:?}", reaper.await);
    }
    let item = "INSERT INTO hostler_jobs.waiting (key, seq, type, priority, day, job) SELECT 'k', 1, 1, 0, day, num FROM hostler_jobs.job";
    store_sql(&store, item).await;
    adding.commit().await.unwrap();
    reaper.await.unwrap().unwrap();
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.serial_key_rows WHERE key = 'k'").await, 1);
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.serial_key_rows").await, 1);
    assert_eq!(created.jobs.len(), 1);
}

#[tokio::test]
async fn stuck_jobs_and_keys_are_woken() {
    let store = store().await;
    let keyed = |n: u32| json!({"payload": n, "serialize_key": "k"});
    let root = json!({"type": "a", "sealed": true, "items": [keyed(1), keyed(2)], "children": [{"type": "b"}, {"type": "c", "feed": {"payload": "$"}}]});
    let created = store.create(tree(&root), None).await.unwrap();
    store.fold().await.unwrap();
    assert_eq!(store.unstick().await.unwrap(), 0);
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.delta").await, 0, "nothing is stuck");
    store_sql(&store, "DELETE FROM hostler_jobs.ready").await;
    assert_eq!(store.unstick().await.unwrap(), 1);
    for n in 1..=2 {
        let given = claim(&store, "a", 9).await;
        assert_eq!(payloads(&given), [json!(n)]);
        assert_eq!(store.unstick().await.unwrap(), 0);
        succeed_all(&store, &given).await;
    }
    store_sql(&store, "UPDATE hostler_jobs.job SET ok = 2 WHERE added = 2; DELETE FROM hostler_jobs.delta").await;
    assert_eq!(store.fold().await.unwrap(), 0);
    store.unstick().await.unwrap();
    while store.fold().await.unwrap() > 0 {}
    let status = store.status(&created.id).await.unwrap();
    assert!(status.complete && status.children[0].complete, "{status:?}");
    succeed_all(&store, &claim(&store, "c", 9).await).await;
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

#[tokio::test]
async fn a_retry_takes_back_a_callback_that_was_not_delivered() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "callback": {"channel": "c"}, "items": [{"payload": 1}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!("no")), None).await.unwrap());
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    assert_eq!(store.retry(&created.id).await.unwrap(), 1);
    assert!(store.claim_callbacks(9, Duration::from_secs(9)).await.unwrap().is_empty(), "the tree is open");
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    assert_eq!(store.claim_callbacks(9, Duration::from_secs(9)).await.unwrap().len(), 1);
}
