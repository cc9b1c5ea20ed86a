//! The speed of claims over 1, 2 and 4 databases. Measured, not asserted:
//! `cargo test --release --workspace --test shards -- --ignored --nocapture`.

use std::path::Path;
use std::time::Instant;

use hostler_jobs::shards::Shards;
use hostler_jobs::types::NewItem;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::databases::{claim, item, joined, payload, succeed_all, tree};
use crate::postgres::Postgres;

/// The items of each database.
const ITEMS: usize = 6_000;

/// Settings of a server whose commits take 20 ms, as on a slow disk. Databases of one machine are then bound by their disks, and not by
/// the processors that they share.
const SLOW: &str = "commit_delay = 20000\ncommit_siblings = 0";

/// Servers, one for each database, so that nothing is shared but the machine.
fn servers(count: usize, settings: &str) -> Vec<Postgres> {
    let settings = format!("shared_buffers = 128MB\nmax_wal_size = 2GB\n{settings}");
    (0..count).map(|_| Postgres::with(&settings)).collect()
}

/// The processor time of a server so far, in milliseconds, as far as its processes live.
fn processor_time(server: &Postgres) -> u64 {
    let pid = std::fs::read_to_string(server.data().join("postmaster.pid")).unwrap();
    let postmaster = pid.lines().next().unwrap().trim().to_owned();
    let stat = |folder: &Path| -> Option<Vec<String>> {
        let text = std::fs::read_to_string(folder.join("stat")).ok()?;
        Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
    };
    let number = |fields: &[String], at: usize| fields[at].parse::<u64>().unwrap();
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(fields) = stat(&entry.path()) else { continue };
        // After the name: the state, the parent, and from the twelfth on the times.
        if fields[1] == postmaster {
            ticks += number(&fields, 11) + number(&fields, 12);
        } else if entry.file_name().to_str() == Some(&postmaster) {
            ticks += (11..15).map(|at| number(&fields, at)).sum::<u64>();
        }
    }
    ticks * 10
}

/// Claims and settles until `total` items have ended.
async fn work(shards: Shards, batch: usize, share: usize) {
    let mut ended = 0;
    while ended < share {
        let given = claim(&shards, "t", batch.min(share - ended)).await;
        succeed_all(&shards, &given).await;
        ended += given.len();
    }
}

async fn fill(shards: &Shards, total: usize) {
    let mut filled = vec![0; shards.stores().len()];
    while filled.iter().sum::<usize>() < total {
        let root = shards.create(tree(&json!({"type": "t"})), None).await.unwrap().id;
        let shard = hostler_jobs::shards::route::home(&root, filled.len());
        if filled[shard] >= ITEMS {
            continue;
        }
        let items: Vec<NewItem> = (0..2_000).map(|n| item(&json!({"payload": {"n": n}}))).collect();
        filled[shard] += items.len();
        shards.add_items(&root, items, None).await.unwrap();
    }
}

/// Prints the speed of claims over this many databases with these settings. Each worker claims from all of them.
async fn measure(count: usize, batch: usize, workers: usize, settings: &str) {
    let servers = servers(count, settings);
    let shards = joined(&servers.iter().map(Postgres::database).collect::<Vec<_>>());
    shards.migrate().await.unwrap();
    fill(&shards, ITEMS * count).await;
    let total = if batch == 1 { 1_000 * count } else { ITEMS * count };
    let before: u64 = servers.iter().map(processor_time).sum();
    let begun = Instant::now();
    let running: Vec<_> = (0..workers).map(|_| tokio::spawn(work(shards.clone(), batch, total / workers))).collect();
    for worker in running {
        worker.await.unwrap();
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let used = servers.iter().map(processor_time).sum::<u64>() - before;
    println!(
        "{count} databases, {workers} workers, batches of {batch}: {:.0} items/s claimed and settled; {:.1} ms of PostgreSQL's \
         processor time per 100 items",
        total as f64 / elapsed,
        used as f64 * 100.0 / total as f64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn claims_of_one_two_and_four_databases() {
    for batch in [1, 100] {
        for count in [1, 2, 4] {
            measure(count, batch, 2 * count, "").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn claims_of_one_two_and_four_databases_with_slow_disks() {
    for batch in [10, 100] {
        for count in [1, 2, 4] {
            measure(count, batch, 2 * count, SLOW).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "measures"]
async fn keyed_items_of_four_databases() {
    const TREES: usize = 400;
    let servers = servers(4, "");
    let shards = joined(&servers.iter().map(Postgres::database).collect::<Vec<_>>());
    shards.migrate().await.unwrap();
    let stop = CancellationToken::new();
    let (carried, stopped) = (shards.clone(), stop.clone());
    let carrier = tokio::spawn(async move { carried.carry(|| {}, stopped).await });
    for keys in [1_000, 10, 1] {
        let begun = Instant::now();
        let kind = format!("t{keys}");
        for n in 0..TREES {
            let root =
                json!({"type": kind, "items": [{"payload": n, "serialize_key": format!("{keys}-{}", n % keys)}]});
            shards.create(tree(&root), None).await.unwrap();
        }
        let created = begun.elapsed().as_secs_f64();
        let (begun, mut ended, mut last) = (Instant::now(), 0, vec![None; keys]);
        while ended < TREES.min(keys * 40) {
            let given = claim(&shards, &kind, 500).await;
            for n in given.iter().map(|one| usize::try_from(payload(one).as_u64().unwrap()).unwrap()) {
                assert!(last[n % keys].replace(n) < Some(n), "the order of a key is kept");
            }
            succeed_all(&shards, &given).await;
            ended += given.len();
            tokio::task::yield_now().await;
        }
        println!(
            "{keys} keys over 4 databases: {:.0} trees/s created; {:.0} items/s claimed and settled",
            TREES as f64 / created,
            ended as f64 / begun.elapsed().as_secs_f64()
        );
    }
    stop.cancel();
    carrier.await.unwrap();
}
