//! Random interleavings of all transactions, with a checker that knows what each of them may do.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostler_jobs::store::{Settlement, Store, StoreError};
use hostler_jobs::types::{Assigned, ItemQuery};
use serde_json::json;

use crate::rules::store_count;
use crate::{item, raw, store, tree};

/// The record of the workers.
#[derive(Default)]
struct Seen {
    /// The assignment that holds an item, as far as a worker knows.
    held: HashMap<String, String>,
    /// The assignment that holds a serialize key.
    keys: HashMap<String, String>,
    /// Items with an accepted result.
    succeeded: HashSet<String>,
    /// Items with a final failure.
    failed: HashSet<String>,
    /// The number of the last item that ended, by key: items of a key are numbered in the order of their creation.
    last: HashMap<String, i64>,
}

const KEYS: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_interleavings_keep_the_rules() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let store = store().await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut jobs = Vec::new();
    for n in 0..6 {
        let kind = ["a", "b"][n % 2];
        let children = json!([{"type": "c", "max_failures_per_item": 1, "feed": {"payload": ["$", "$payload.n"]}, "children": [{"type": "d"}]}]);
        let root =
            json!({"type": kind, "max_failures_per_item": 1, "callback": {"channel": "c"}, "children": children});
        jobs.push(store.create(tree(&root), None).await.unwrap().id);
    }
    let adders: Vec<_> = jobs
        .iter()
        .enumerate()
        .map(|(n, job)| tokio::spawn(add(store.clone(), job.clone(), seed + n as u64)))
        .collect();
    let until = Instant::now() + Duration::from_secs(150);
    let folder = tokio::spawn(sweep(store.clone()));
    let workers: Vec<_> = (0..6).map(|n| tokio::spawn(work(store.clone(), seen.clone(), seed + 100 + n))).collect();
    let mut added = 0;
    for adder in adders {
        added += adder.await.unwrap();
    }
    let fed = "SELECT count(*) FROM hostler_jobs.job WHERE NOT complete";
    while store_count(&store, fed).await > 0 {
        if Instant::now() > until {
            panic!("jobs do not complete: {}", stuck(&store).await);
        }
        assert!(!workers.iter().any(tokio::task::JoinHandle::is_finished), "a worker failed");
        tokio::task::yield_now().await;
    }
    folder.abort();
    workers.iter().for_each(tokio::task::JoinHandle::abort);
    for worker in workers {
        assert!(worker.await.is_err_and(|error| error.is_cancelled()), "a worker failed");
    }
    let mut total = (0, 0, 0);
    for job in &jobs {
        let status = store.status(job).await.unwrap();
        assert!(status.tree_complete);
        let child = &status.children[0];
        assert_eq!(child.added, status.succeeded, "one item for each result");
        total = (
            total.0 + status.added,
            total.1 + status.succeeded + child.succeeded,
            total.2 + status.failed + child.failed,
        );
        let query = ItemQuery { job_id: Some(job.clone()), limit: Some(1000), ..ItemQuery::default() };
        assert_eq!(store.items(&query).await.unwrap().items.len() as u64, status.added);
    }
    assert_eq!(total.0, added);
    let ended = {
        let seen = seen.lock().unwrap();
        (seen.succeeded.len() as u64, seen.failed.len() as u64)
    };
    assert_eq!(ended, (total.1, total.2));
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.outbox").await, 6, "one callback for each tree");
    for table in ["ready", "later", "assignment", "waiting", "serial_key"] {
        assert_eq!(store_count(&store, &format!("SELECT count(*) FROM hostler_jobs.{table}")).await, 0, "{table}");
    }
}

/// The rows of all tables whose items are not at their end.
async fn stuck(store: &Store) -> String {
    let mut text = String::new();
    for table in ["ready", "later", "assignment", "waiting", "serial_key", "delta"] {
        let sql = format!("SELECT count(*) FROM hostler_jobs.{table}");
        text += &format!("{table} {}, ", store_count(store, &sql).await);
    }
    text
}

/// Adds items in batches, some with serialize keys and dedupe keys, then seals. Returns the number that is expected.
async fn add(store: Store, job: String, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut keys = HashSet::new();
    let mut added = 0;
    for _ in 0..6 {
        let items: Vec<_> = (0..random.usize(1..8))
            .map(|_| {
                let key = random.bool().then(|| format!("k{}", random.u32(..KEYS)));
                let dedupe = (random.u32(..4) == 0).then(|| random.u32(..20).to_string());
                if dedupe.as_ref().is_none_or(|dedupe| keys.insert(dedupe.clone())) {
                    added += 1;
                }
                item(&json!({"payload": {"n": added}, "serialize_key": key, "dedupe_key": dedupe, "priority": random.i16(..3)}))
            })
            .collect();
        store.add_items(&job, items, None).await.unwrap();
    }
    store.seal(&job).await.unwrap();
    assert!(matches!(store.add_items(&job, vec![], None).await, Err(StoreError::Conflict { .. })));
    added
}

async fn sweep(store: Store) {
    loop {
        store.fold().await.unwrap();
        store.promote().await.unwrap();
        tokio::task::yield_now().await;
    }
}

async fn work(store: Store, seen: Arc<Mutex<Seen>>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = ["a", "b", "c"].map(str::to_owned);
    loop {
        let given = store.claim(&kinds, "w", random.usize(1..6)).await.unwrap();
        for one in &given {
            take(&mut seen.lock().unwrap(), one);
        }
        for one in given {
            settle(&store, &seen, &one, &mut random).await;
        }
        tokio::task::yield_now().await;
    }
}

/// Notes an assignment: nobody else may hold the item or its key, and it comes after those of its key that have ended.
fn take(seen: &mut Seen, one: &Assigned) {
    assert!(!seen.succeeded.contains(&one.item.id) && !seen.failed.contains(&one.item.id), "assigned after its end");
    assert_eq!(seen.held.insert(one.item.id.clone(), one.assignment_id.clone()), None, "two assignments of an item");
    if let Some(key) = &one.item.serialize_key {
        assert_eq!(seen.keys.insert(key.clone(), one.assignment_id.clone()), None, "two assignments of a key");
        let number = number(&one.item.id);
        assert!(seen.last.get(key).is_none_or(|last| *last < number), "out of order");
    }
}

fn number(id: &str) -> i64 {
    i64::from_str_radix(id.rsplit('-').next().unwrap(), 16).unwrap()
}

/// Ends an assignment in one of the ways. Its entries are removed before, as the next may begin before the answer is here.
async fn settle(store: &Store, seen: &Mutex<Seen>, one: &Assigned, random: &mut fastrand::Rng) {
    let id = &one.assignment_id;
    let last_attempt = one.item.failures.len() == 1;
    let choice = random.u32(..10);
    {
        let mut seen = seen.lock().unwrap();
        seen.held.remove(&one.item.id);
        if let Some(key) = &one.item.serialize_key {
            seen.keys.remove(key);
            if choice < 6 || (choice < 9 && last_attempt) {
                seen.last.insert(key.clone(), number(&one.item.id));
            }
        }
        if choice < 6 {
            seen.succeeded.insert(one.item.id.clone());
        } else if choice < 9 && last_attempt {
            seen.failed.insert(one.item.id.clone());
        }
    }
    match choice {
        0..6 => assert!(matches!(store.succeed(id, raw(&json!({"n": 1}))).await.unwrap(), Settlement::Ok { .. })),
        6..9 => {
            let delay = random.bool().then_some(Duration::from_millis(random.u64(..20)));
            match store.fail(id, raw(&json!("no")), delay).await.unwrap() {
                Settlement::Ok { retry_at } => assert_eq!(retry_at.is_none(), last_attempt),
                Settlement::Stale => panic!("stale"),
            }
        }
        _ => assert!(store.release(std::slice::from_ref(id)).await.unwrap().is_empty()),
    }
    let late = store.succeed(id, raw(&json!(1))).await.unwrap();
    assert_eq!(matches!(late, Settlement::Ok { .. }), choice < 6, "only a repeated result is accepted");
}
