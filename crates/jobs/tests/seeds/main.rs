//! Seeded runs of the job service, against a reference model and a checker.
//!
//! | file | job |
//! |---|---|
//! | `call.rs` | requests and answers |
//! | `model.rs` | the reference model |
//! | `feed.rs` | the templates of feeds |
//! | `fault.rs` | faults that can be planted in the model |
//! | `scenario.rs` | scenarios by seed |
//! | `site.rs`, `clients.rs` | clients that call a service, and the record of their calls |
//! | `history.rs` | the record |
//! | `checker.rs` | the rules, as invariants over a record |
//! | `virtual_time.rs` | the first world: the model by virtual time |
//!
//! `HOSTLER_SEEDS=n` sets the number of seeds.

mod call;
mod checker;
mod clients;
mod fault;
mod feed;
mod history;
mod model;
mod scenario;
mod site;
mod virtual_time;

use checker::check;
use fault::Fault;

/// Returns the number of seeds to run.
fn seeds(default: u64) -> u64 {
    std::env::var("HOSTLER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a function on each seed, on two threads. Returns the first answers by seed.
fn each_seed<T: Send>(count: u64, run: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let half = |first: u64| (first..count).step_by(2).find_map(|seed| run(seed).map(|found| (seed, found)));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mine = half(0);
        let others = other.join().unwrap();
        [mine, others].into_iter().flatten().min_by_key(|(seed, _)| *seed)
    })
}

#[test]
fn model_keeps_all_rules() {
    let found = each_seed(seeds(10_000), |seed| {
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
        let found = each_seed(2_000, |seed| check(&virtual_time::run(seed, Some(*fault))).into_iter().next());
        match found {
            Some((seed, violation)) => println!("{fault:?}: seed {seed}, {violation}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
