//! The speed of whole cycles. Measured, not asserted: `cargo test --release -p hostler-jobs --test store -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use hostler_jobs::store::Store;
use hostler_jobs::types::{SettleRequest, Success};
use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::rules::store_sql;
use crate::{connect, item, raw, tree};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn cycles() {
    let server = Postgres::with("shared_buffers = 512MB\nmax_wal_size = 4GB");
    let store = connect(&server.database(), hostler_jobs::store::StoreSettings::default());
    store.migrate().await.unwrap();
    let sweeps =
        tokio::spawn(hostler_jobs::sweeps::run(store.clone(), || {}, tokio_util::sync::CancellationToken::new()));
    for (name, items, batch, tasks, keys) in [
        ("batches of 500", 100_000, 500, 2, 0),
        ("batches of 500, 10,000 keys", 50_000, 500, 2, 10_000),
        ("one by one", 5_000, 1, 8, 0),
    ] {
        report(&store, name, items, batch, tasks, keys).await;
    }
    // A million items wait.
    let root = store.create(tree(&json!({"type": "big"})), None).await.unwrap().id;
    let begun = Instant::now();
    for _ in 0..100 {
        let items = (0..10_000).map(|n| item(&json!({"payload": {"n": n}}))).collect();
        store.add_items(&root, items, None).await.unwrap();
    }
    println!("a million items added in {:?}", begun.elapsed());
    report(&store, "batches of 500 beside a million ready", 100_000, 500, 2, 0).await;
    let begun = Instant::now();
    let claimed = cycle(&store, "big", 500, 100_000).await;
    println!("of the million: {:.0} items/s claimed and settled", f64::from(claimed) / begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    store.delete(&root).await.unwrap();
    println!("deleted in {:?}", begun.elapsed());
    sweeps.abort();
    store_sql(&store, "SELECT 1").await;
}

async fn report(store: &Store, name: &str, items: u32, batch: usize, tasks: u32, keys: u32) {
    let begun = Instant::now();
    let share = items / tasks;
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(whole(store.clone(), task, share, batch, keys))).collect();
    let mut roots = Vec::new();
    for one in running {
        roots.push(one.await.unwrap());
    }
    let settled = begun.elapsed();
    for root in roots {
        while !store
            .jobs(&hostler_jobs::types::JobQuery { root_id: Some(root.clone()), ..Default::default() })
            .await
            .unwrap()
            .jobs[0]
            .tree_complete
        {
            assert!(begun.elapsed() < Duration::from_secs(300));
        }
    }
    println!(
        "{name}: {:.0} items/s; complete {:?} later",
        f64::from(items) / settled.as_secs_f64(),
        begun.elapsed().saturating_sub(settled)
    );
}

/// Adds, claims and settles items of a type of its own.
async fn whole(store: Store, task: u32, items: u32, batch: usize, keys: u32) -> String {
    let kind = format!("t{task}-{batch}");
    let root = store.create(tree(&json!({"type": kind})), None).await.unwrap().id;
    let mut added = 0;
    while added < items {
        let some = (0..batch).map(|n| {
            let key: Value =
                if keys > 0 { json!(format!("k{task}-{}", (added as usize + n) % keys as usize)) } else { Value::Null };
            item(&json!({"payload": {"n": n, "text": "a payload of some length, as they are"}, "serialize_key": key}))
        });
        store.add_items(&root, some.collect(), None).await.unwrap();
        added += u32::try_from(batch).unwrap();
    }
    store.seal(&root).await.unwrap();
    assert_eq!(cycle(&store, &kind, batch, items).await, items);
    root
}

async fn cycle(store: &Store, kind: &str, batch: usize, items: u32) -> u32 {
    let mut ended = 0;
    while ended < items {
        let given = store.claim(&[kind.to_owned()], "w", batch).await.unwrap();
        let results = given.iter().map(|one| Success {
            assignment_id: one.assignment_id.clone(),
            result: raw(&json!({"ok": true})),
            ..Success::default()
        });
        let request = SettleRequest { results: results.collect(), failures: Vec::new() };
        ended += u32::try_from(store.settle(request.results, request.failures).await.unwrap().len()).unwrap();
    }
    ended
}
