//! The calls of the API over four databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostler_jobs::shards::Shards;
use hostler_jobs::store::{IdempotencyKey, StoreError};
use hostler_jobs::types::{Failure, ItemQuery, JobQuery, SettledStatus};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::databases::{claim, connect, count, item, joined, payload, raw, shards, succeed_all, success, tree, urls};
use crate::postgres::Postgres;

/// Creates trees of one item each, until all databases have some. Returns the roots.
async fn spread(shards: &Shards, kind: &str, trees: usize) -> Vec<String> {
    let mut roots = Vec::new();
    for n in 0..trees {
        roots.push(shards.create(tree(&json!({"type": kind, "items": [{"payload": n}]})), None).await.unwrap().id);
    }
    roots
}

#[tokio::test]
async fn trees_lie_whole_in_one_database_and_are_found() {
    let shards = shards(4).await;
    let roots = spread(&shards, "a", 40).await;
    for root in &roots {
        shards.add_items(root, vec![item(&json!({"payload": "more"}))], None).await.unwrap();
        shards.seal(root).await.unwrap();
        assert_eq!(shards.status(root).await.unwrap().added, 2);
        let items = shards.items(&ItemQuery { job_id: Some(root.clone()), ..ItemQuery::default() }).await.unwrap();
        assert_eq!((items.items.len(), items.next), (2, None));
        shards.assign(&items.items[1].id, "w").await.unwrap();
    }
    let mut jobs = 0;
    for store in shards.stores() {
        let own = count(store, "SELECT count(*) FROM hostler_jobs.job").await;
        assert!(own > 0);
        assert_eq!(count(store, "SELECT count(*) FROM hostler_jobs.item").await, 2 * own);
        jobs += own;
    }
    assert_eq!(jobs, 40);
    shards.delete(&roots[0]).await.unwrap();
    assert!(matches!(shards.status(&roots[0]).await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn ids_of_clients_are_found_and_not_given_twice() {
    let shards = shards(4).await;
    for n in 0..8 {
        let child =
            json!({"type": "b", "id": format!("child {n}"), "items": [{"payload": n, "id": format!("item {n}")}]});
        shards.create(tree(&json!({"type": "a", "children": [child]})), None).await.unwrap();
    }
    for n in 0..8 {
        assert_eq!(shards.status(&format!("child {n}")).await.unwrap().added, 1);
        assert_eq!(payload(&shards.assign(&format!("item {n}"), "w").await.unwrap()), json!(n));
        let again = json!({"type": "a", "children": [{"type": "b", "id": format!("child {n}")}]});
        let refused = shards.create(tree(&again), None).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::Conflict { reason: "id", job_id: Some(id) } if id == format!("child {n}"))
        );
        let again = json!({"type": "a", "items": [{"payload": 1, "id": format!("item {n}")}]});
        assert!(matches!(shards.create(tree(&again), None).await, Err(StoreError::Conflict { reason: "id", .. })));
    }
    let named = json!({"type": "a", "id": "root"});
    shards.create(tree(&named), None).await.unwrap();
    assert!(matches!(shards.create(tree(&named), None).await, Err(StoreError::Conflict { reason: "id", .. })));
    assert!(matches!(shards.assign("nobody", "w").await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn dedupe_keys_are_unique_across_databases() {
    let shards = shards(4).await;
    for n in 0..8 {
        let root = tree(&json!({"type": "a", "dedupe_key": format!("d{n}")}));
        let created = shards.create(root.clone(), None).await.unwrap();
        let refused = shards.create(root, None).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { reason: "dedupe_key", job_id: Some(id) } if id == created.id));
        assert_eq!(shards.status(&created.id).await.unwrap().id, created.id);
    }
    let child = tree(&json!({"type": "a", "children": [{"type": "b", "dedupe_key": "d"}]}));
    let refused = shards.create(child.clone(), None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Invalid { field, .. } if field == "children[0].dedupe_key"));
    // One database sees to all of them.
    let alone = Shards::from(connect(&urls(1)[0]));
    alone.migrate().await.unwrap();
    alone.create(child, None).await.unwrap();
}

#[tokio::test]
async fn a_repeated_request_has_the_first_answer() {
    let shards = shards(4).await;
    for n in 0..8 {
        let key = || Some(IdempotencyKey { key: format!("k{n}"), hash: "h".to_owned() });
        let root = tree(&json!({"type": "a", "items": [{"payload": 1, "id": format!("i{n}")}]}));
        let first = shards.create(root.clone(), key()).await.unwrap();
        assert_eq!(shards.create(root, key()).await.unwrap(), first);
    }
}

#[tokio::test]
async fn work_is_claimed_from_all_databases_and_split_between_them() {
    let shards = shards(4).await;
    let roots = spread(&shards, "a", 40).await;
    let given = claim(&shards, "a", 30).await;
    assert_eq!(given.len(), 30);
    let ids: Vec<String> = given.iter().map(|one| one.assignment_id.clone()).collect();
    let mut all = ids.clone();
    all.insert(3, "nothing".to_owned());
    all.push("a-1-ffffffffffffff-1".to_owned());
    assert_eq!(shards.heartbeat(&all).await.unwrap(), ["nothing", "a-1-ffffffffffffff-1"]);
    assert!(shards.release(&ids[..10]).await.unwrap().is_empty());
    assert_eq!(shards.heartbeat(&ids).await.unwrap(), ids[..10]);
    let results = given[5..25].iter().map(success).collect();
    let failure = |one: &hostler_jobs::types::Assigned| Failure {
        assignment_id: one.assignment_id.clone(),
        error: raw(&json!(1)),
        retry_in_seconds: None,
        is_final: true,
    };
    let settled = shards.settle(results, given[25..].iter().map(failure).collect()).await.unwrap();
    let order: Vec<&str> = settled.iter().map(|one| one.assignment_id.as_str()).collect();
    assert_eq!(order, ids[5..].iter().map(String::as_str).collect::<Vec<_>>());
    for (n, one) in settled.iter().enumerate() {
        assert_eq!(one.status, if n < 5 { SettledStatus::Stale } else { SettledStatus::Ok });
    }
    let counts = shards.counts().await.counts.unwrap();
    assert_eq!((counts.ready, counts.open_trees), (vec![("a".to_owned(), 20)], 40));
    let mut failed = 0;
    for root in roots {
        failed += shards.retry(&root).await.unwrap();
    }
    assert_eq!(failed, 5);
}

#[tokio::test]
async fn pages_go_over_all_databases() {
    let shards = shards(4).await;
    let roots: BTreeSet<String> = spread(&shards, "a", 30).await.into_iter().collect();
    let (mut jobs, mut query) = (Vec::new(), JobQuery { limit: Some(4), ..JobQuery::default() });
    loop {
        let page = shards.jobs(&query).await.unwrap();
        jobs.extend(page.jobs.into_iter().map(|job| job.id));
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!((jobs.len(), jobs.into_iter().collect::<BTreeSet<_>>()), (30, roots));
    let (mut items, mut query) = (BTreeSet::new(), ItemQuery { limit: Some(4), ..ItemQuery::default() });
    loop {
        let page = shards.items(&query).await.unwrap();
        items.extend(page.items.into_iter().map(|item| item.id));
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(items.len(), 30);
    let faulty = JobQuery { cursor: Some("4.1".to_owned()), ..JobQuery::default() };
    assert!(matches!(shards.jobs(&faulty).await, Err(StoreError::Invalid { .. })));
}

#[tokio::test]
async fn another_list_of_databases_is_refused() {
    let urls = urls(3);
    joined(&urls).migrate().await.unwrap();
    joined(&urls).migrate().await.unwrap();
    let refused = |list: Vec<String>| async move { joined(&list).migrate().await.unwrap_err().to_string() };
    let swapped = refused(vec![urls[1].clone(), urls[0].clone(), urls[2].clone()]).await;
    assert!(swapped.contains("position 1, but it was set up at position 2"), "{swapped}");
    assert!(refused(urls[..2].to_vec()).await.contains("one of 3"));
    let alone = Shards::from(connect(&urls[0])).migrate().await.unwrap_err().to_string();
    assert!(alone.contains("has 1 databases") && alone.contains("one of 3"), "{alone}");
    let twice = Shards::new(vec![connect(&urls[0]), connect(&urls[0])]).err().unwrap().to_string();
    assert!(twice.contains("twice"), "{twice}");
    // A database that was alone has jobs that lie by another rule.
    let old = Shards::from(connect(&Postgres::shared().database()));
    old.migrate().await.unwrap();
    old.create(tree(&json!({"type": "a"})), None).await.unwrap();
    let grown = Shards::new(vec![old.stores()[0].clone(), connect(&Postgres::shared().database())]).unwrap();
    assert!(grown.migrate().await.unwrap_err().to_string().contains("has jobs"));
}

#[tokio::test]
async fn a_list_with_one_database_twice_leaves_no_mark() {
    let url = Postgres::shared().database();
    let list = [Postgres::shared().database(), url.clone(), url.replace("127.0.0.1", "localhost")];
    let refused = joined(&list).migrate().await.unwrap_err();
    assert_eq!(refused.number, 2);
    let text = refused.to_string();
    assert!(text.starts_with("localhost:") && text.contains("twice: at position 2 and at position 3"), "{text}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'hostler%'";
    for url in &list {
        assert_eq!(count(&connect(url), schemas).await, 0);
    }
    joined(&list[..2]).migrate().await.unwrap();
}

#[tokio::test]
async fn an_error_at_the_start_names_the_database() {
    let list = [Postgres::shared().database(), "postgres://me:hunter2@127.0.0.1:9/none".to_owned()];
    let refused = joined(&list).migrate().await.unwrap_err();
    assert_eq!((refused.number, &*refused.place), (1, "127.0.0.1:9/none"));
    assert!(matches!(refused.error, StoreError::Database(_)) && !refused.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_database_that_is_away_holds_only_its_own_trees_up() {
    let other = Postgres::start();
    let list = [Postgres::shared().database(), other.database()];
    let shards = joined(&list);
    shards.migrate().await.unwrap();
    spread(&shards, "a", 20).await;
    other.freeze();
    let begun = Instant::now();
    let given = claim(&shards, "a", 100).await;
    assert!(!given.is_empty() && given.len() < 20 && begun.elapsed() < Duration::from_secs(4));
    assert_eq!(shards.away(), [shards.stores()[1].place()]);
    // Its keys may be back at once, so that the first item with one waits a little.
    let begun = Instant::now();
    shards.create(tree(&json!({"type": "b", "items": [{"payload": 1, "serialize_key": "k"}]})), None).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // From then on it costs nobody any time, however long it hangs.
    tokio::time::sleep_until((begun + Duration::from_secs(3)).into()).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let call = Instant::now();
        assert!(claim(&shards, "a", 100).await.is_empty());
        assert!(call.elapsed() < Duration::from_secs(1), "a claim took {:?}", call.elapsed());
        let call = Instant::now();
        let created = shards.create(tree(&json!({"type": "b"})), None).await.unwrap();
        shards.add_items(&created.id, vec![item(&json!({"payload": 1, "serialize_key": "k"}))], None).await.unwrap();
        shards.status(&created.id).await.unwrap();
        assert!(call.elapsed() < Duration::from_secs(1), "a creation took {:?}", call.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    succeed_all(&shards, &given).await;
    other.thaw();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut rest = Vec::new();
    while given.len() + rest.len() < 20 {
        assert!(Instant::now() < deadline, "{} of 20", given.len() + rest.len());
        rest.extend(claim(&shards, "a", 100).await);
    }
    succeed_all(&shards, &rest).await;
    assert_eq!(shards.away(), Vec::<&str>::new());
}

#[tokio::test]
async fn keys_run_in_the_order_of_creation_across_databases() {
    let shards = shards(4).await;
    let mut expected = Vec::new();
    for n in 0..12 {
        let key = format!("k{}", n % 3);
        let root = json!({"type": "a", "items": [{"payload": n, "serialize_key": key}]});
        shards.create(tree(&root), None).await.unwrap();
        expected.push(n);
    }
    let mut ran = Vec::new();
    while ran.len() < expected.len() {
        shards.carry_all().await.unwrap();
        let given = claim(&shards, "a", 100).await;
        assert_eq!(given.len(), 3, "one of each key");
        let mut round: Vec<i64> = given.iter().map(|one| payload(one).as_i64().unwrap()).collect();
        round.sort_unstable();
        ran.extend(round);
        assert!(claim(&shards, "a", 100).await.is_empty());
        succeed_all(&shards, &given).await;
    }
    assert_eq!(ran, expected);
    shards.carry_all().await.unwrap();
    for store in shards.stores() {
        assert_eq!(count(store, "SELECT count(*) FROM hostler_shards.line").await, 0);
        assert_eq!(count(store, "SELECT count(*) FROM hostler_shards.ticket").await, 0);
    }
}

/// The starts and the runs of items by key.
#[derive(Default)]
struct Watch {
    running: BTreeMap<String, String>,
    begun: BTreeMap<String, Vec<i64>>,
    ended: usize,
}

async fn work(shards: Shards, watch: Arc<Mutex<Watch>>, total: usize) {
    let deadline = Instant::now() + Duration::from_secs(200);
    while watch.lock().unwrap().ended < total {
        assert!(Instant::now() < deadline, "{} of {total} ended", watch.lock().unwrap().ended);
        let given = claim(&shards, "a", 3).await;
        for one in &given {
            let key = one.item.serialize_key.clone().unwrap();
            let mut watch = watch.lock().unwrap();
            assert_eq!(watch.running.insert(key.clone(), one.item.id.clone()), None, "two items of {key} run");
            watch.begun.entry(key).or_default().push(payload(one).as_i64().unwrap());
        }
        // The work, or a pause before the next question.
        tokio::time::sleep(Duration::from_millis(5)).await;
        for one in &given {
            watch.lock().unwrap().running.remove(one.item.serialize_key.as_ref().unwrap());
        }
        if !given.is_empty() {
            succeed_all(&shards, &given).await;
            watch.lock().unwrap().ended += given.len();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_and_two_carriers_keep_keys_in_order() {
    const TREES: i64 = 40;
    let shards = shards(4).await;
    let stop = CancellationToken::new();
    let carriers: Vec<_> = (0..2)
        .map(|_| {
            let (shards, stop) = (shards.clone(), stop.clone());
            tokio::spawn(async move { shards.carry(|| {}, stop).await })
        })
        .collect();
    let watch = Arc::new(Mutex::new(Watch::default()));
    let total = usize::try_from(TREES).unwrap();
    let workers: Vec<_> = (0..3).map(|_| tokio::spawn(work(shards.clone(), Arc::clone(&watch), total))).collect();
    for n in 0..TREES {
        let root =
            json!({"type": "a", "sealed": true, "items": [{"payload": n, "serialize_key": format!("k{}", n % 5)}]});
        shards.create(tree(&root), None).await.unwrap();
    }
    for worker in workers {
        worker.await.unwrap();
    }
    stop.cancel();
    for carrier in carriers {
        carrier.await.unwrap();
    }
    let watch = watch.lock().unwrap();
    for (key, begun) in &watch.begun {
        assert!(begun.is_sorted(), "{key}: {begun:?}");
    }
    assert_eq!(watch.begun.values().map(Vec::len).sum::<usize>(), total);
}
