//! Deterministic simulation: the consumer and the SQS driver over a model of SQS at its worst, by virtual time.
//!
//! A seed makes a scenario (`scenario`), which is played (`run`) with processes that come and go. The driver speaks the real
//! protocol to the model (`wire`, `service`), the handler does as planned (`worker`), and the `judge` sees everything,
//! keeps what it needs of it (`record`), and holds it against the promises: the settlements against the policy (`dispositions`),
//! the health of each second, the breaker, pauses and the rate limit against what happened (`progress`). The same seed gives the same run.
//!
//! `HOSTLER_SEEDS` says how many seeds are tried, `HOSTLER_SEED` which run to play again, with its trace.

pub mod dispositions;
pub mod judge;
pub mod progress;
pub mod record;
pub mod run;
pub mod scenario;
pub mod service;
pub mod wire;
pub mod worker;

use std::collections::BTreeMap;
use std::env;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use run::System;
use scenario::{CLASSES, Key, Scenario};

/// A run that broke a promise.
pub struct Failure {
    pub key: Key,
    pub violations: Vec<String>,
    pub trace: Vec<String>,
}

/// Plays a scenario; a panic is a broken promise too.
pub fn play(system: System, key: &Key, keeps_trace: bool) -> (Vec<String>, Vec<String>) {
    panic::catch_unwind(|| run::play(system, key, keeps_trace)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (vec![format!("8: it panicked: {}", text.unwrap_or_default())], Vec::new())
    })
}

/// Plays so many seeds on all CPUs, until `enough` of them have failed; those that failed.
pub fn search(system: System, seeds: std::ops::Range<u64>, enough: usize) -> Vec<Key> {
    let next = AtomicU64::new(seeds.start);
    let failed = std::sync::Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failed.lock().unwrap().len() < enough {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let key = Key { seed, ..Key::default() };
                    if !play(system, &key, false).0.is_empty() {
                        failed.lock().unwrap().push(key);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// The shortest run that still fails: with fewer messages, and without what is not needed for it.
pub fn shortest(system: System, key: &Key) -> Failure {
    let fails = |key: &Key| !play(system, key, false).0.is_empty();
    let mut best = key.clone();
    for class in CLASSES {
        let mut smaller = best.clone();
        smaller.without.insert(class);
        if fails(&smaller) {
            best = smaller;
        }
    }
    let count = Scenario::of(&best).messages.len();
    if let Some(fewer) = (1..count).map(|count| Key { messages: Some(count), ..best.clone() }).find(fails) {
        best = fewer;
    }
    let (violations, trace) = play(system, &best, true);
    Failure { key: best, violations, trace }
}

/// A failure, for people.
pub fn report(failure: &Failure) -> String {
    let Failure { key, violations, trace } = failure;
    format!(
        "{}\n\nbroken:\n  {}\n\nagain: HOSTLER_SEED={key} cargo test --release --test all simulation::replay -- --nocapture\n",
        trace.join("\n"),
        violations.join("\n  "),
    )
}

fn subject() -> System {
    run::system!(hostler_consumer, hostler_queue_sqs)
}

/// How many seeds are tried: many in a release build, some in a debug build.
fn seeds() -> u64 {
    let told = env::var("HOSTLER_SEEDS").ok().map(|count| count.parse().unwrap());
    told.unwrap_or(if cfg!(debug_assertions) { 200 } else { 10_000 })
}

#[test]
fn no_seed_breaks_a_promise() {
    let failed = search(subject(), 0..seeds(), 1);
    if let Some(key) = failed.first() {
        panic!("\n{}", report(&shortest(subject(), key)));
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..50 {
        let key = Key { seed, ..Key::default() };
        let (first, second) = (play(subject(), &key, true), play(subject(), &key, true));
        assert_eq!(first, second, "seed {seed}");
        assert!(!first.1.is_empty());
    }
}

/// Plays the run that `HOSTLER_SEED` names, and shows what happens.
#[test]
fn replay() {
    let key = env::var("HOSTLER_SEED").unwrap_or_else(|_| "0".into()).parse::<Key>().unwrap();
    let (violations, trace) = play(subject(), &key, true);
    println!("{}", trace.join("\n"));
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn keys_are_read_as_they_are_written() {
    for text in ["17", "17:messages=3", "17:messages=3:without=latency,work"] {
        assert_eq!(text.parse::<Key>().unwrap().to_string(), text);
    }
    assert!("17:without=nonsense".parse::<Key>().is_err());
    let kinds: BTreeMap<bool, usize> = (0..100).fold(BTreeMap::new(), |mut kinds, seed| {
        *kinds.entry(Scenario::of(&Key { seed, ..Key::default() }).ordered).or_default() += 1;
        kinds
    });
    assert!(kinds.values().all(|count| *count > 10), "{kinds:?}");
}
