//! Results that add items and seal jobs, final failures, failures by missed heartbeats, progress, delayed release.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_jobs::store::{Settlement, Store, StoreError};
use hostler_jobs::types::{Assigned, Failure, ItemState, JobQuery, Progress, SettledStatus, Success};
use serde_json::{Value, json};

use crate::rules::{store_count, store_sql};
use crate::{accepted, claim, items_of, payloads, raw, result_of, store, succeed_all, tree};

/// A result that adds items and seals.
pub fn adding(given: &Assigned, add_items: &Value, seal: &[&str]) -> Success {
    Success {
        add_items: serde_json::from_value(add_items.clone()).unwrap(),
        seal: seal.iter().map(|target| (*target).to_owned()).collect(),
        ..result_of(given, &json!("r"))
    }
}

fn final_failure(given: &Assigned) -> Failure {
    Failure {
        assignment_id: given.assignment_id.clone(),
        error: raw(&json!("no")),
        is_final: true,
        ..Failure::default()
    }
}

/// Lets all assignments miss three heartbeats, and sweeps.
pub async fn expire_all(store: &Store) {
    store_sql(store, "UPDATE hostler_jobs.assignment SET beat_at = beat_at - interval '4 minutes'").await;
    assert_eq!(store.expire().await.unwrap(), 1);
}

#[tokio::test]
async fn a_late_failure_or_result_after_missed_heartbeats_is_stale() {
    let store = store().await;
    for max_failures in [1, 0] {
        let root = json!({"type": "a", "max_failures_per_item": max_failures, "items": [{"payload": 1}]});
        store.create(tree(&root), None).await.unwrap();
        let given = claim(&store, "a", 1).await.remove(0);
        expire_all(&store).await;
        let fail = || store.fail(&given.assignment_id, raw(&json!("late")), None);
        assert_eq!(fail().await.unwrap(), Settlement::Stale);
        assert_eq!(store.end_by_failure(final_failure(&given)).await.unwrap(), Settlement::Stale);
        assert_eq!(store.succeed(&given.assignment_id, raw(&json!(1))).await.unwrap(), Settlement::Stale);
        let settled =
            store.settle(vec![adding(&given, &json!([]), &["x"])], vec![final_failure(&given)]).await.unwrap();
        assert!(settled.iter().all(|one| one.status == SettledStatus::Stale), "{settled:?}");
        for again in claim(&store, "a", 9).await {
            assert_eq!(again.item.failures.len(), 1);
            succeed_all(&store, &[again]).await;
        }
        assert_eq!(fail().await.unwrap(), Settlement::Stale, "after another attempt");
    }
}

#[tokio::test]
async fn a_repeated_failure_has_the_same_time_of_the_next_attempt() {
    let store = store().await;
    let root = json!({"type": "a", "max_failures_per_item": 1, "items": [{"payload": 1}]});
    store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let fail = || store.fail(&given.assignment_id, raw(&json!("x")), Some(Duration::from_secs(60)));
    let first = accepted(fail().await.unwrap());
    assert!(first.is_some());
    assert_eq!(accepted(fail().await.unwrap()), first);
}

#[tokio::test]
async fn a_final_failure_has_no_further_attempt() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "max_failures_per_item": 9, "items": [
        {"payload": 1, "serialize_key": "k"}, {"payload": 2, "serialize_key": "k"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 9).await.remove(0);
    for _ in 0..2 {
        assert_eq!(accepted(store.end_by_failure(final_failure(&given)).await.unwrap()), None);
    }
    let second = claim(&store, "a", 9).await.remove(0);
    let settled = store.settle(Vec::new(), vec![final_failure(&second)]).await.unwrap();
    assert_eq!(settled[0].status, SettledStatus::Ok);
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.failed, status.tree_complete), (2, true));
    assert!(items_of(&store, &created.id).await.items.iter().all(|item| item.failures.len() == 1));
}

#[tokio::test]
async fn a_result_adds_items_and_seals_at_once_and_only_once() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "items": [{"payload": 1}], "children": [
        {"type": "b", "children": [{"type": "c", "id": "deep"}]}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let added = json!([
        {"target": "b", "items": [{"payload": {"n": 1}, "priority": 5}, {"payload": {"n": 2}, "dedupe_key": "d"},
            {"payload": {"n": 3}, "dedupe_key": "d"}, {"payload": {"n": 4}, "serialize_key": "k"},
            {"payload": {"n": 5}, "serialize_key": "k"}]},
        {"target": "deep", "items": [{"payload": 6}]},
    ]);
    let success = adding(&given, &added, &["b", "deep", "deep"]);
    for _ in 0..2 {
        let settled = store.settle(vec![success.clone(), success.clone()], Vec::new()).await.unwrap();
        assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
        accepted(store.end_by_result(success.clone()).await.unwrap());
    }
    let status = store.status(&created.id).await.unwrap();
    assert_eq!((status.succeeded, status.complete, status.tree_complete), (1, true, false));
    let (child, deep) = (&status.children[0], &status.children[0].children[0]);
    assert_eq!((child.added, child.sealed, deep.added, deep.sealed), (4, true, 1, true));
    let first = claim(&store, "b", 9).await;
    assert_eq!(payloads(&first), [json!({"n": 2}), json!({"n": 4}), json!({"n": 1})]);
    succeed_all(&store, &first).await;
    let second = claim(&store, "b", 9).await;
    assert_eq!(payloads(&second), [json!({"n": 5})]);
    succeed_all(&store, &second).await;
    succeed_all(&store, &claim(&store, "c", 9).await).await;
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

#[tokio::test]
async fn a_result_with_a_bad_target_is_a_failure_and_adds_nothing() {
    let store = store().await;
    store.create(tree(&json!({"type": "z", "id": "foreign"})), None).await.unwrap();
    let items: Vec<_> = (0..7).map(|n| json!({"payload": n})).collect();
    let root = json!({"type": "a", "items": items, "children": [{"type": "b"}, {"type": "shut", "sealed": true},
        {"type": "twin"}, {"type": "twin"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 9).await;
    let both = |target: &str| json!([{"target": "b", "items": [{"payload": 0}]}, {"target": target, "items": [{"payload": 0}]}]);
    let mut results: Vec<_> = ["shut", "foreign", "none", "twin"]
        .iter()
        .zip(&given)
        .map(|(target, one)| adding(one, &both(target), &[]))
        .collect();
    results.push(adding(&given[4], &json!([]), &["none"]));
    results.push(adding(&given[5], &json!([{"target": "none", "items": []}]), &[]));
    results.push(adding(&given[6], &json!([{"target": "b", "items": [{"payload": "good"}]}]), &["shut"]));
    for _ in 0..2 {
        let settled = store.settle(results.clone(), Vec::new()).await.unwrap();
        assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
    }
    let rows = items_of(&store, &created.id).await.items;
    let told = ["is sealed", "names no job", "names no job", "several children", "names no job", "names no job"];
    for (row, reason) in rows.iter().zip(told) {
        let error: String = serde_json::from_str(row.failures[0].error.text()).unwrap();
        assert!(row.state == ItemState::Failed && row.failures.len() == 1 && error.contains(reason), "{error}");
    }
    assert_eq!(rows[6].state, ItemState::Succeeded);
    assert_eq!(payloads(&claim(&store, "b", 9).await), [json!("good")]);
    assert!(claim(&store, "twin", 9).await.is_empty());
}

#[tokio::test]
async fn a_result_seals_no_job_that_has_a_feed() {
    let store = store().await;
    let items = json!([{"payload": 1}, {"payload": 2}, {"payload": 3}]);
    let child = json!({"type": "b", "id": "fed", "feed": {"payload": "$"}});
    let root = json!({"type": "a", "sealed": true, "items": items, "children": [child, {"type": "c", "id": "other"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 9).await;
    let results = vec![adding(&given[0], &json!([]), &["b"]), adding(&given[1], &json!([]), &["other", "fed"])];
    for _ in 0..2 {
        let settled = store.settle(results.clone(), Vec::new()).await.unwrap();
        assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
    }
    for row in items_of(&store, &created.id).await.items.iter().take(2) {
        let error: String = serde_json::from_str(row.failures[0].error.text()).unwrap();
        assert!(row.state == ItemState::Failed && error.contains("has a feed"), "{error}");
    }
    let status = store.status(&created.id).await.unwrap();
    assert!(status.children.iter().all(|child| !child.sealed && child.added == 0), "{status:?}");
    succeed_all(&store, &given[2..]).await;
    assert!(store.status("fed").await.unwrap().sealed, "its parent is complete");
    // Sealing a job that is sealed changes nothing, as by a request.
    let fed = claim(&store, "b", 9).await.remove(0);
    accepted(store.end_by_result(adding(&fed, &json!([]), &["fed"])).await.unwrap());
    assert!(store.status(&created.id).await.unwrap().tree_complete);
}

#[tokio::test]
async fn a_refused_result_is_tried_again() {
    let store = store().await;
    let root = json!({"type": "a", "max_failures_per_item": 1, "items": [{"payload": 1}], "children": [
        {"type": "b", "feed": {"payload": "$"}}, {"type": "c"}]});
    store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let bad = adding(&given, &json!([{"target": "none", "items": [{"payload": 1}]}]), &["c"]);
    assert!(accepted(store.end_by_result(bad).await.unwrap()).is_some());
    assert!(claim(&store, "b", 1).await.is_empty(), "nothing is fed");
    let again = claim(&store, "a", 1).await.remove(0);
    let good = adding(&again, &json!([{"target": "c", "items": [{"payload": "asked"}]}]), &["c"]);
    accepted(store.end_by_result(good).await.unwrap());
    assert_eq!(payloads(&claim(&store, "b", 9).await), [json!("r")]);
    assert_eq!(payloads(&claim(&store, "c", 9).await), [json!("asked")]);
}

#[tokio::test]
async fn what_results_add_is_bounded() {
    let store = store().await;
    store
        .create(tree(&json!({"type": "a", "items": [{"payload": 1}], "children": [{"type": "b"}]})), None)
        .await
        .unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let many =
        |count: usize| adding(&given, &json!([{"target": "b", "items": vec![json!({"payload": 0}); count]}]), &[]);
    let field = |error: Result<_, StoreError>| match error {
        Err(StoreError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(store.end_by_result(many(10_001)).await.map(drop)), "add_items");
    let results = vec![many(0), adding(&given, &json!([]), &[""])];
    assert_eq!(field(store.settle(results, Vec::new()).await.map(drop)), "results[1].seal[0]");
    let long = json!([{"target": "b", "items": [{"payload": 0}, {"payload": 0, "dedupe_key": "x".repeat(201)}]}]);
    assert_eq!(
        field(store.end_by_result(adding(&given, &long, &[])).await.map(drop)),
        "add_items[0].items[1].dedupe_key"
    );
    accepted(store.end_by_result(many(10_000)).await.unwrap());
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.ready").await, 10_000);
}

#[tokio::test]
async fn progress_is_kept_with_the_assignment() {
    let store = store().await;
    let root = json!({"type": "a", "max_failures_per_item": 1, "items": [{"payload": 1}, {"payload": 2}]});
    let created = store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 2).await;
    assert!(given[0].item.progress.is_none() && given[0].item.created_at.ends_with('Z'));
    let ids: Vec<String> = given.iter().map(|one| one.assignment_id.clone()).collect();
    let half = Progress { fraction: 0.5, text: "half".to_owned() };
    let told = BTreeMap::from([(ids[0].clone(), half.clone()), ("a-1-1-1".to_owned(), half.clone())]);
    assert!(store.heartbeat_with(&ids, &told).await.unwrap().is_empty());
    assert!(store.heartbeat(&ids).await.unwrap().is_empty(), "a heartbeat without progress keeps it");
    let items = items_of(&store, &created.id).await.items;
    assert_eq!((&items[0].progress, &items[1].progress), (&Some(half), &None));
    assert_eq!(items[0].created_at, given[0].item.created_at);
    let over = Progress { fraction: 1.5, text: String::new() };
    let refused = store.heartbeat_with(&ids, &BTreeMap::from([(ids[0].clone(), over)])).await;
    assert!(matches!(refused, Err(StoreError::Invalid { .. })));
    accepted(store.fail(&ids[0], raw(&json!(1)), None).await.unwrap());
    claim(&store, "a", 1).await;
    assert_eq!(items_of(&store, &created.id).await.items[0].progress, None, "the next attempt starts anew");
}

#[tokio::test]
async fn a_release_may_wait() {
    let store = store().await;
    store.create(tree(&json!({"type": "a", "items": [{"payload": 1}]})), None).await.unwrap();
    let given = claim(&store, "a", 1).await.remove(0);
    let ids = [given.assignment_id.clone()];
    assert!(store.release_after(&ids, Duration::from_secs(60)).await.unwrap().is_empty());
    assert!(claim(&store, "a", 1).await.is_empty());
    assert!(matches!(store.assign(&given.item.id, "w").await, Err(StoreError::Conflict { reason: "retry_at", .. })));
    store_sql(&store, "UPDATE hostler_jobs.later SET due = now()").await;
    assert_eq!(store.promote().await.unwrap(), 1);
    assert!(claim(&store, "a", 1).await[0].item.failures.is_empty());
}

#[tokio::test]
async fn lists_of_jobs_show_the_callers_own_writes() {
    let store = store().await;
    let root = json!({"type": "a", "sealed": true, "items": [{"payload": 1}], "children": [{"type": "b"}]});
    let created = store.create(tree(&root), None).await.unwrap();
    succeed_all(&store, &claim(&store, "a", 1).await).await;
    let of_tree = JobQuery { root_id: Some(created.id.clone()), ..JobQuery::default() };
    for query in [of_tree, JobQuery { complete: Some(true), ..JobQuery::default() }] {
        let jobs = store.jobs(&query).await.unwrap().jobs;
        assert_eq!((jobs[0].added, jobs[0].succeeded, jobs[0].complete, jobs[0].tree_complete), (1, 1, true, true));
    }
    let child = store.status(&created.jobs[1].id).await.unwrap();
    assert_eq!((child.root_id.as_str(), child.parent_id.as_deref()), (&*created.id, Some(&*created.id)));
}
