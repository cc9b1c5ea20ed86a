//! The second world, many clients at once: the real store in several instances over a real server, judged by the checker alone.
//! In some runs the server is killed and restarted in the middle.

use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use hostler_jobs::store::StoreSettings;
use hostler_jobs::types::{ItemQuery, ItemState};

use crate::call::{Answer, Operation, Snapshot, Time};
use crate::clients::{Worker, carry, finish, observe, produce, serve};
use crate::databases::{Fresh, fresh};
use crate::history::History;
use crate::postgres::Postgres;
use crate::scenario::{Generator, Scenario};
use crate::site::Site;
use crate::store_port::StorePort;

/// Milliseconds. The servers accept one second and more; the store itself accepts less.
const HEARTBEAT: Time = 300;
/// The longest delay before a next attempt that the store chooses, in milliseconds.
const LONGEST_BACKOFF: Time = 600;

fn settings() -> StoreSettings {
    let milliseconds = |time: Time| Duration::from_millis(time.unsigned_abs());
    StoreSettings {
        heartbeat: milliseconds(HEARTBEAT),
        backoff: milliseconds(LONGEST_BACKOFF / 4),
        backoff_max: milliseconds(LONGEST_BACKOFF),
        ..StoreSettings::default()
    }
}

/// Runs the scenario of a seed on a shared server.
pub async fn run(seed: u64, server: &Postgres) -> History {
    let mut generator = Generator::new(seed);
    let scenario = generator.scenario(seed);
    let database = fresh(server, &settings(), 3).await;
    play(&scenario, generator.rng, database, async {}).await
}

/// Runs the scenario of a seed on a server that is killed and restarted in the middle.
pub async fn run_with_crash(seed: u64, mut server: Postgres) -> History {
    let mut generator = Generator::new(seed);
    let scenario = generator.scenario(seed);
    let database = fresh(&server, &settings(), 3).await;
    let after = Duration::from_millis(generator.rng.u64(500..2_500));
    let crash = async move {
        tokio::time::sleep(after).await;
        tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart();
            server
        })
        .await
        .unwrap()
    };
    play(&scenario, generator.rng, database, crash).await
}

/// Plays a scenario. `other` runs beside the clients, and what it returns lives until the end.
async fn play<T>(scenario: &Scenario, mut rng: Rng, database: Fresh, other: impl Future<Output = T>) -> History {
    let lease = Duration::from_millis(2 * HEARTBEAT.unsigned_abs());
    let port = StorePort::new(database.stores, format!("s{}", scenario.seed), lease);
    let site = Site::new(port, HEARTBEAT, scenario.seed);
    let workers = (0..8).map(|worker| Worker { site: &site, worker, rng: rng.fork(), clock: 0 });
    let workers = join_all(workers.map(Worker::work).collect::<Vec<_>>());
    let servers = join_all((0..scenario.servers).map(|_| serve(&site, rng.fork())).collect::<Vec<_>>());
    let others = (observe(&site, rng.fork()), carry(&site, rng.fork()), fold(&site));
    let direct = async {
        let producers = join_all(scenario.trees.iter().map(|plan| produce(&site, plan)));
        let (_, other) = tokio::join!(producers, other);
        site.rest(300).await;
        finish(&site, 80).await;
        other
    };
    let (_, _, (), (), (), other) = tokio::join!(workers, servers, others.0, others.1, others.2, direct);
    let end = snapshot(&site).await;
    drop(other);
    History {
        calls: site.record(),
        end,
        heartbeat: HEARTBEAT,
        slack: 100,
        longest_backoff: LONGEST_BACKOFF,
        is_strict: false,
    }
}

/// Folds and promotes as often as a server does.
async fn fold(site: &Site<StorePort>) {
    while !site.is_over() {
        site.rest(20).await;
        let store = site.port.store();
        if store.fold().await.is_ok() {
            drop(store.promote().await);
        }
    }
}

/// Reads all that is left. Nothing runs any more.
async fn snapshot(site: &Site<StorePort>) -> Snapshot {
    let mut end = Snapshot::default();
    let roots: Vec<_> = site.roots.lock().unwrap().iter().copied().collect();
    for job in roots {
        let status = site.port.perform(&Operation::Status { job }).await;
        let Ok(Answer::Status(status)) = status else { continue };
        let query = ItemQuery { root_id: Some(site.port.text(job)), ..ItemQuery::default() };
        let items = site.port.list(query.clone()).await.unwrap();
        end.items.extend(items.iter().map(|row| site.port.view(row).0));
        let results = ItemQuery { final_stage: Some(true), state: Some(ItemState::Succeeded), ..query };
        let results = site.port.list(results).await.unwrap();
        end.results.extend(results.iter().map(|row| site.port.number(&row.id)));
        end.trees.push(status);
    }
    end
}
