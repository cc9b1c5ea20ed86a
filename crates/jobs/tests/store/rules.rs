//! The rules of jobs, items and assignments, one by one.

use std::time::Duration;

use hostler_jobs::store::{IdempotencyKey, Settlement, StoreError, StoreSettings};
use hostler_jobs::types::{Failure, ItemQuery, ItemState, JobQuery, SettledStatus, Success};
use serde_json::json;

use crate::{accepted, claim, item, items_of, payloads, raw, store, succeed_all, tree, with};

#[tokio::test]
async fn a_tree_runs_from_creation_to_completion() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "items": [{"payload": {"n": 1}}, {"payload": {"n": 2}, "id": "second"}],
        "children": [{"type": "b", "final_stage": true, "feed": {"payload": {"twice": "$.v", "from": "$payload.n"}}}]});
    let created = store.create(tree(&root), None).await.unwrap();
    assert_eq!(created.jobs.len(), 2);
    assert_eq!(created.item_ids[1], "second");
    let given = claim(&store, "a", 10).await;
    assert_eq!(payloads(&given), [json!({"n": 1}), json!({"n": 2})]);
    assert_eq!(given[0].item.id, created.item_ids[0]);
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.added, status.assigned, status.pending, status.complete), (2, 2, 2, false));
    accepted(store.succeed(&given[0].assignment_id, raw(&json!({"v": [7]}))).await.unwrap());
    accepted(store.succeed(&given[1].assignment_id, raw(&json!(null))).await.unwrap());
    let status = store.status(&created.id).await.unwrap();
    assert!(status.complete && !status.tree_complete);
    assert!(status.children[0].sealed && !status.children[0].complete);
    let fed = claim(&store, "b", 10).await;
    assert_eq!(payloads(&fed), [json!({"twice": [7], "from": 1}), json!({"twice": null, "from": 2})]);
    succeed_all(&store, &fed).await;
    let status = store.status(&created.id).await.unwrap();
    assert!(status.tree_complete && status.children[0].complete);
    let query = ItemQuery { root_id: Some(created.id), final_stage: Some(true), ..ItemQuery::default() };
    let items = store.items(&query).await.unwrap().items;
    assert_eq!(items.len(), 2);
    assert!(items.iter().all(|item| item.state == ItemState::Succeeded && item.result.text() == "true"));
}

#[tokio::test]
async fn sealed_jobs_without_items_complete_to_any_depth() {
    let store = store().await;
    let deep = (1..20).fold(json!({"type": "a"}), |below, _| json!({"type": "a", "children": [below]}));
    let created = store.create(tree(&deep), None).await.unwrap();
    assert!(!store.status(&created.id).await.unwrap().complete);
    store.seal(&created.id).await.unwrap();
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    assert!(matches!(
        store.add_items(&created.jobs[19].id, vec![], None).await,
        Err(StoreError::Conflict { reason: "sealed", .. })
    ));
}

#[tokio::test]
async fn a_result_is_accepted_once_and_only_under_its_assignment() {
    let store = store().await;
    store
        .create(tree(&json!({"type": "a", "items": [{"payload": 1}], "max_failures_per_item": 5})), None)
        .await
        .unwrap();
    let first = claim(&store, "a", 1).await.remove(0);
    assert!(claim(&store, "a", 1).await.is_empty(), "at most one assignment");
    assert!(matches!(store.assign(&first.item.id, "w").await, Err(StoreError::Conflict { reason: "assigned", .. })));
    let failed = store.fail(&first.assignment_id, raw(&json!("oh")), Some(Duration::ZERO)).await.unwrap();
    assert!(accepted(failed).is_some());
    assert!(accepted(store.fail(&first.assignment_id, raw(&json!("oh")), None).await.unwrap()).is_some(), "repeated");
    assert_eq!(store.succeed(&first.assignment_id, raw(&json!(1))).await.unwrap(), Settlement::Stale);
    let second = store.assign(&first.item.id, "v").await.unwrap();
    assert_eq!(second.item.failures.len(), 1);
    assert_eq!(second.item.failures[0].worker_id, "w");
    for _ in 0..2 {
        accepted(store.succeed(&second.assignment_id, raw(&json!(1))).await.unwrap());
    }
    for stale in [&first.assignment_id, "a-1-1-1", "nonsense"] {
        assert_eq!(store.succeed(stale, raw(&json!(1))).await.unwrap(), Settlement::Stale);
    }
    assert_eq!(store.fail(&second.assignment_id, raw(&json!(1)), None).await.unwrap(), Settlement::Stale);
    assert!(matches!(store.assign(&first.item.id, "w").await, Err(StoreError::Conflict { reason: "done", .. })));
    assert_eq!(store.heartbeat(std::slice::from_ref(&second.assignment_id)).await.unwrap(), [second.assignment_id]);
}

#[tokio::test]
async fn an_item_fails_after_max_failures_and_one_attempt() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "max_failures_per_item": 2, "items": [{"payload": 1}]});
    let created = store.create(tree(&root), None).await.unwrap();
    for attempt in 0..3 {
        let given = claim(&store, "a", 1).await.remove(0);
        assert_eq!(given.item.failures.len(), attempt);
        let retry_at = accepted(store.fail(&given.assignment_id, raw(&json!({"n": attempt})), None).await.unwrap());
        assert_eq!(retry_at.is_none(), attempt == 2);
    }
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.failed, status.succeeded, status.tree_complete), (1, 0, true));
    let item = items_of(&store, &created.id).await.items.remove(0);
    assert_eq!((item.state, item.failures.len()), (ItemState::Failed, 3));
    assert_eq!(store.retry(&created.id).await.unwrap(), 1);
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.failed, status.pending, status.complete, status.tree_complete), (0, 1, false, false));
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

#[tokio::test]
async fn a_failed_item_waits_for_its_time() {
    let store = store().await;
    let root = json!({"type": "a", "max_failures_per_item": 2, "items": [{"payload": 1}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    accepted(store.fail(&given.assignment_id, raw(&json!(1)), Some(Duration::from_secs(3600))).await.unwrap());
    assert_eq!(store.promote().await.unwrap(), 0);
    assert!(claim(&store, "a", 1).await.is_empty());
    assert!(matches!(store.assign(&given.item.id, "w").await, Err(StoreError::Conflict { reason: "retry_at", .. })));
    assert!(items_of(&store, &created.id).await.items[0].retry_at.is_some());
    store_sql(&store, "UPDATE hostler_jobs.later SET due = now() - interval '1 second'").await;
    assert_eq!(store.promote().await.unwrap(), 1);
    assert_eq!(claim(&store, "a", 1).await.len(), 1);
}

#[tokio::test]
async fn three_missed_heartbeats_are_a_failure() {
    let store = with(StoreSettings { heartbeat: Duration::from_secs(60), ..StoreSettings::default() }).await;
    let created =
        store.create(tree(&json!({"type": "a", "items": [{"payload": 1}, {"payload": 2}]})), None).await.unwrap();
    let given = claim(&store, "a", 2).await;
    store_sql(&store, "UPDATE hostler_jobs.assignment SET beat_at = beat_at - interval '179 seconds'").await;
    assert_eq!(store.expire().await.unwrap(), 0);
    store_sql(&store, "UPDATE hostler_jobs.assignment SET beat_at = beat_at - interval '2 seconds'").await;
    assert!(store.heartbeat(std::slice::from_ref(&given[0].assignment_id)).await.unwrap().is_empty());
    assert_eq!(store.expire().await.unwrap(), 1);
    let items = items_of(&store, &created.id).await.items;
    assert_eq!((items[0].state, items[1].state), (ItemState::Assigned, ItemState::Failed));
    assert_eq!(items[1].failures[0].error.text(), "\"no heartbeat\"");
    assert_eq!(store.succeed(&given[1].assignment_id, raw(&json!(1))).await.unwrap(), Settlement::Stale);
}

#[tokio::test]
async fn keys_and_ids_are_unique() {
    let store = store().await;
    let root =
        json!({"type": "a", "id": "j", "dedupe_key": "k", "items": [{"payload": 1, "id": "x", "dedupe_key": "d"}]});
    store.create(tree(&root), None).await.unwrap();
    for (root, reason) in
        [(json!({"type": "a", "dedupe_key": "k"}), "dedupe_key"), (json!({"type": "b", "id": "j"}), "id")]
    {
        match store.create(tree(&root), None).await {
            Err(StoreError::Conflict { reason: given, job_id: Some(id) }) => {
                assert_eq!((given, id.as_str()), (reason, "j"))
            }
            other => panic!("{other:?}"),
        }
    }
    store.create(tree(&json!({"type": "b", "dedupe_key": "k"})), None).await.unwrap();
    let add = |items: Vec<_>| store.add_items("j", items, None);
    let again = add(vec![
        item(&json!({"payload": 2, "dedupe_key": "d"})),
        item(&json!({"payload": 3, "dedupe_key": "e"})),
        item(&json!({"payload": 4, "dedupe_key": "e"})),
    ])
    .await
    .unwrap();
    assert_eq!(again[0], "x");
    assert_eq!(again[1], again[2]);
    assert!(matches!(
        add(vec![item(&json!({"payload": 2, "id": "x"}))]).await,
        Err(StoreError::Conflict { reason: "id", .. })
    ));
    assert_eq!(store.status("j").await.unwrap().added, 2);
    assert_eq!(payloads(&claim(&store, "a", 9).await), [json!(1), json!(3)]);
    assert!(matches!(store.add_items("none", vec![], None).await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_repeated_request_is_answered_once() {
    let store = store().await;
    let key = |hash: &str| Some(IdempotencyKey { key: "k".to_owned(), hash: hash.to_owned() });
    let root = tree(&json!({"type": "a", "items": [{"payload": 1}]}));
    let first = store.create(root.clone(), key("h")).await.unwrap();
    assert_eq!(store.create(root.clone(), key("h")).await.unwrap(), first);
    assert!(matches!(store.create(root, key("other")).await, Err(StoreError::Invalid { .. })));
    assert_eq!(claim(&store, "a", 9).await.len(), 1);
    let more = || vec![item(&json!({"payload": 2}))];
    let key = Some(IdempotencyKey { key: "l".to_owned(), hash: "h".to_owned() });
    let added = store.add_items(&first.id, more(), key.clone()).await.unwrap();
    assert_eq!(store.add_items(&first.id, more(), key).await.unwrap(), added);
    assert_eq!(claim(&store, "a", 9).await.len(), 1);
}

#[tokio::test]
async fn deletion_cancels() {
    let store = store().await;
    let root = json!({"type": "a", "items": [{"payload": 1}, {"payload": 2, "id": "x"}], "children": [{"type": "b", "sealed": true}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    store.delete(&created.id).await.unwrap();
    assert_eq!(store.heartbeat(std::slice::from_ref(&given.assignment_id)).await.unwrap().len(), 1);
    assert_eq!(store.succeed(&given.assignment_id, raw(&json!(1))).await.unwrap(), Settlement::Stale);
    assert!(claim(&store, "a", 9).await.is_empty());
    for id in [&created.id, &created.jobs[1].id] {
        assert!(matches!(store.status(id).await, Err(StoreError::NotFound { .. })));
    }
    assert!(matches!(store.delete(&created.id).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.assign(&given.item.id, "w").await, Err(StoreError::NotFound { .. })));
    store.create(tree(&root), None).await.unwrap();
}

#[tokio::test]
async fn deleting_a_part_completes_the_rest() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "callback": {"channel": "c"}, "children": [{"type": "b", "items": [{"payload": 1}]}]});
    let created = store.create(tree(&root), None).await.unwrap();
    assert!(!store.status(&created.id).await.unwrap().tree_complete);
    store.delete(&created.jobs[1].id).await.unwrap();
    assert!(store.status(&created.id).await.unwrap().tree_complete);
    assert_eq!(store.claim_callbacks(9, Duration::from_secs(9)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn release_gives_back_without_a_failure() {
    let store = store().await;
    store.create(tree(&json!({"type": "a", "items": [{"payload": 1}]})), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let ids = [given.assignment_id.clone(), "a-0-0-0".to_owned()];
    assert_eq!(store.release(&ids).await.unwrap(), ["a-0-0-0"]);
    assert_eq!(store.release(&ids).await.unwrap().len(), 2);
    let again = claim(&store, "a", 1).await.remove(0);
    assert!(again.item.failures.is_empty());
}

#[tokio::test]
async fn lower_priorities_come_first() {
    let store = store().await;
    let items = [(5, "c"), (-1, "a"), (0, "b"), (5, "d")]
        .map(|(priority, name)| json!({"payload": name, "priority": priority}));
    store.create(tree(&json!({"type": "a", "items": items})), None).await.unwrap();
    assert_eq!(payloads(&claim(&store, "a", 3).await), [json!("a"), json!("b"), json!("c")]);
    assert_eq!(payloads(&claim(&store, "a", 3).await), [json!("d")]);
}

#[tokio::test]
async fn pages_hold_each_entry_once() {
    let store = store().await;
    let items: Vec<_> = (0..25).map(|n| json!({"payload": n})).collect();
    let root = json!({"type": "a", "items": items, "children": [{"type": "b", "final_stage": true, "items": items}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 6).await;
    let failures =
        vec![Failure { assignment_id: given[0].assignment_id.clone(), error: raw(&json!("x")), ..Failure::default() }];
    let results =
        vec![Success { assignment_id: given[1].assignment_id.clone(), result: raw(&json!(1)), ..Success::default() }];
    let settled = store.settle(results, failures).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok));
    for (state, stage, by_tree, expected) in [
        (None, None, true, 50),
        (None, None, false, 50),
        (None, Some(true), true, 25),
        (None, Some(true), false, 25),
        (Some(ItemState::Failed), None, true, 1),
        (Some(ItemState::Failed), None, false, 1),
        (Some(ItemState::Succeeded), None, true, 1),
        (Some(ItemState::Assigned), None, true, 4),
        (Some(ItemState::Pending), None, true, 44),
        (Some(ItemState::Pending), Some(false), false, 19),
    ] {
        let root_id = by_tree.then(|| created.id.clone());
        let mut query = ItemQuery { root_id, state, final_stage: stage, limit: Some(7), ..ItemQuery::default() };
        let mut ids = Vec::new();
        loop {
            let page = store.items(&query).await.unwrap();
            assert!(page.items.len() <= 7);
            assert!(page.items.iter().all(|item| state.is_none_or(|state| item.state == state)));
            ids.extend(page.items.into_iter().map(|item| item.id));
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!((all, ids.len()), (expected, expected), "{state:?} {stage:?} {by_tree}");
    }
    let mut query = JobQuery { root_id: Some(created.id), limit: Some(1), ..JobQuery::default() };
    let first = store.jobs(&query).await.unwrap();
    query.cursor = first.next;
    let second = store.jobs(&query).await.unwrap();
    assert_eq!((first.jobs[0].kind.as_str(), second.jobs[0].kind.as_str(), second.next), ("a", "b", None));
    query.cursor = Some("?".to_owned());
    assert!(matches!(store.jobs(&query).await, Err(StoreError::Invalid { .. })));
}

#[tokio::test]
async fn complete_trees_are_reaped() {
    let store = with(StoreSettings { retention: Duration::from_secs(3600), ..StoreSettings::default() }).await;
    let done = store
        .create(tree(&json!({"type": "a", "sealed": true, "items": [{"payload": 1, "id": "x"}]})), None)
        .await
        .unwrap();
    let open = store.create(tree(&json!({"type": "a", "items": [{"payload": 1}]})), None).await.unwrap();
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    assert!(store.status(&done.id).await.unwrap().tree_complete);
    assert_eq!(store.reap().await.unwrap(), 0);
    store_sql(&store, "UPDATE hostler_jobs.job SET tree_completed_at = now() - interval '2 hours' WHERE tree_completed_at IS NOT NULL").await;
    assert_eq!(store.reap().await.unwrap(), 1);
    assert!(store.status(&done.id).await.is_err());
    assert!(store.status(&open.id).await.is_ok());
    store_sql(&store, "SELECT hostler_jobs.make_partitions(100, 101)").await;
    assert_eq!(
        store_count(
            &store,
            "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid WHERE relname = 'item_100'"
        )
        .await,
        1
    );
    store.reap().await.unwrap();
    assert_eq!(
        store_count(&store, "SELECT count(*) FROM pg_class c WHERE relname IN ('item_100', 'done_101')").await,
        0
    );
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.ready, counts.open_trees), (vec![("a".to_owned(), 1)], 1));
}

#[tokio::test]
async fn payloads_survive_as_they_were_written() {
    let store = store().await;
    let text = r#"{"b" : 1.0, "a":12345678901234567890123, "b":[], "s":"\ud83d\ude00\\u0000"}"#;
    let mut job = tree(&json!({"type": "a", "items": [{"payload": 1}]}));
    job.items[0].payload = hostler_jobs::json::RawJson::parse(text.to_owned()).unwrap();
    store.create(job, None).await.unwrap();
    assert_eq!(claim(&store, "a", 1).await[0].item.payload.text(), text);
}

#[tokio::test]
async fn numbers_at_the_limits_fit_postgresql() {
    let store = store().await;
    let fine = format!("-0.{}1", "0".repeat(16_382));
    for text in ["1.7976931348623157e308", "-1e308", "1e-16383", "5e-324", "0e16383", "0e-16383", &fine] {
        let mut job = tree(&json!({"type": "a", "items": [{"payload": 1}]}));
        job.items[0].payload = hostler_jobs::json::RawJson::parse(text.to_owned()).unwrap();
        store.create(job, None).await.unwrap();
    }
    let fitting = "SELECT count(*) FROM hostler_jobs.item WHERE payload::jsonb IS NOT NULL";
    assert_eq!(store_count(&store, fitting).await, 7);
    for text in ["1e309", "1e-16384", "0e999999"] {
        let mut job = tree(&json!({"type": "a", "items": [{"payload": 1}]}));
        job.items[0].payload = hostler_jobs::json::RawJson::parse(text.to_owned()).unwrap();
        let refused = store.create(job, None).await;
        assert!(
            matches!(&refused, Err(StoreError::Invalid { field, .. }) if field == "items[0].payload"),
            "{refused:?}"
        );
    }
}

/// Executes SQL beside the store.
pub async fn store_sql(store: &hostler_jobs::store::Store, sql: &str) {
    store.database().client().await.unwrap().batch(sql).await.unwrap();
}

/// Reads a number beside the store.
pub async fn store_count(store: &hostler_jobs::store::Store, sql: &str) -> i64 {
    store.database().client().await.unwrap().query(sql, &[]).await.unwrap()[0].get(0)
}
