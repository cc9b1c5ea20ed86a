//! The tests: runs of many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hostler_jobs::store::StoreSettings;

use crate::checker::{Violation, check};
use crate::concurrent;
use crate::databases::{block_on, fresh};
use crate::fault::Fault;
use crate::lockstep::{Lockstep, PERIODS};
use crate::postgres::Postgres;
use crate::schedules;
use crate::sql_faults::{self, SqlFault};
use crate::store_port::StorePort;
use crate::virtual_time;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Returns the seeds to run.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let first = number("HOSTLER_SEED").unwrap_or(0);
    first..first + number("HOSTLER_SEEDS").unwrap_or(default)
}

/// Runs a function on each seed, on two threads. Returns the first answer.
fn each_seed<T: Send>(seeds: &std::ops::Range<u64>, run: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let half = |first: u64| (first..seeds.end).step_by(2).find_map(|seed| run(seed).map(|found| (seed, found)));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(seeds.start + 1));
        let mine = half(seeds.start);
        let others = other.join().unwrap();
        [mine, others].into_iter().flatten().min_by_key(|(seed, _)| *seed)
    })
}

#[test]
fn model_keeps_all_rules() {
    let found = each_seed(&seeds(10_000), |seed| {
        let violations = check(&virtual_time::run(seed, None));
        (!violations.is_empty()).then_some(violations)
    });
    if let Some((seed, violations)) = found {
        panic!("seed {seed}: {violations:#?}");
    }
}

#[test]
fn planted_faults_are_found() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let found = each_seed(&(0..2_000), |seed| check(&virtual_time::run(seed, Some(*fault))).into_iter().next());
        match found {
            Some((seed, violation)) => println!("{fault:?}: seed {seed}, {violation}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

fn lockstep_settings() -> StoreSettings {
    let milliseconds = |time: i64| Duration::from_millis(time.unsigned_abs());
    StoreSettings {
        heartbeat: milliseconds(PERIODS.heartbeat),
        backoff: milliseconds(PERIODS.backoff),
        backoff_max: milliseconds(PERIODS.backoff << 10),
        ..StoreSettings::default()
    }
}

/// Runs seeds one after the other over a database. Returns the first difference, with the events that led to it.
async fn compare(
    seeds: impl Iterator<Item = u64>,
    server: &Postgres,
    fault: Option<&SqlFault>,
) -> Option<(u64, String)> {
    let database = fresh(server, &lockstep_settings(), 1).await;
    if let Some(fault) = fault {
        fault.plant(&database.db).await;
    }
    for seed in seeds {
        let lease = Duration::from_millis(PERIODS.callback_lease.unsigned_abs());
        let port = StorePort::new(database.stores.clone(), format!("s{seed}"), lease);
        let mut lockstep = Lockstep::new(port, database.db.clone(), seed);
        if let Err(difference) = lockstep.run().await {
            return Some((seed, format!("{}\n{difference}", lockstep.trace.join("\n"))));
        }
    }
    None
}

/// Starts a server for runs without crashes, which take many small calls.
fn fast() -> Postgres {
    Postgres::with("fsync = off\njit = off")
}

#[test]
fn store_equals_model() {
    let server = fast();
    let seeds = seeds(12);
    let parts = 4;
    let found = std::thread::scope(|scope| {
        let run = |part: u64| block_on(compare((seeds.start + part..seeds.end).step_by(4), &server, None));
        let threads: Vec<_> = (0..parts).map(|part| scope.spawn(move || run(part))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for (seed, difference) in &found {
        println!("seed {seed}:\n{difference}\n");
    }
    assert!(found.is_empty(), "differences at seeds {:?}", found.iter().map(|(seed, _)| seed).collect::<Vec<_>>());
}

#[test]
fn store_keeps_all_rules_in_scripted_schedules() {
    let broken = block_on(schedules::play(&fast(), None));
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Plants a fault, and looks for it by the schedules, then by seeds. Returns what it breaks.
fn find(fault: &SqlFault, server: &Postgres) -> Option<String> {
    // The port panics at an error of the database that no call may have.
    let find = AssertUnwindSafe(|| find_difference(fault, server));
    catch_unwind(find).unwrap_or_else(|_| Some("the store failed".to_owned()))
}

fn find_difference(fault: &SqlFault, server: &Postgres) -> Option<String> {
    if let Some(broken) = block_on(schedules::play(server, Some(fault))).into_iter().next() {
        return Some(format!("schedule, {broken}"));
    }
    let (seed, difference) = block_on(compare(seeds(40), server, Some(fault)))?;
    Some(format!("seed {seed}, {}", difference.lines().last().unwrap_or_default()))
}

#[test]
#[ignore = "takes minutes: runs many seeds for each fault"]
fn faults_planted_in_the_schema_are_found() {
    let server = fast();
    let name = std::env::var("HOSTLER_FAULT").unwrap_or_default();
    let faults: Vec<&SqlFault> = sql_faults::ALL.iter().filter(|fault| fault.name.contains(&name)).collect();
    let run = |fault: &&SqlFault| {
        let begun = Instant::now();
        let found = find(fault, &server);
        let text: String = found.as_deref().unwrap_or("NOT FOUND").chars().take(200).collect();
        println!("{}: {text} ({:.1} s)", fault.name, begun.elapsed().as_secs_f64());
        found.is_none().then_some(fault.name)
    };
    // Each thread waits for the server most of the time.
    let next = AtomicUsize::new(0);
    let some = || std::iter::from_fn(|| faults.get(next.fetch_add(1, Ordering::Relaxed))).filter_map(run).collect();
    let missed: Vec<&str> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| -> Vec<&str> { thread.join().unwrap() }).collect()
    });
    assert!(missed.is_empty(), "not found: {missed:?}");
}

fn report(found: &[(u64, Vec<Violation>)]) {
    for (seed, violations) in found {
        for violation in violations {
            println!("seed {seed}: {violation}");
        }
    }
    assert!(found.is_empty(), "violations at seeds {:?}", found.iter().map(|(seed, _)| seed).collect::<Vec<_>>());
}

#[test]
fn store_keeps_all_rules_with_many_clients() {
    let server = Postgres::shared();
    let run = |seed| async move { (seed, check(&concurrent::run(seed, server).await)) };
    let mut found = Vec::new();
    for start in seeds(8).step_by(4) {
        let all = block_on(join_all((start..seeds(8).end.min(start + 4)).map(run)));
        found.extend(all.into_iter().filter(|(_, violations)| !violations.is_empty()));
    }
    report(&found);
}

#[test]
fn store_keeps_all_rules_when_the_server_is_killed() {
    // Before the runs, whose deadlines go on while a server starts.
    let servers: Vec<_> = seeds(2).map(|seed| (seed, Postgres::start())).collect();
    let run = async |(seed, server)| (seed, check(&concurrent::run_with_crash(seed, server).await));
    let all = block_on(join_all(servers.into_iter().map(run)));
    let found: Vec<_> = all.into_iter().filter(|(_, violations)| !violations.is_empty()).collect();
    report(&found);
}
