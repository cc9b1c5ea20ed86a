//! Seeded runs of the pure model. `SHARD_SEEDS` sets their number.

use futures_util::FutureExt as _;

use crate::model::{Model, Planted};
use crate::port::Port as _;
use crate::simulation::{Simulation, Size};

const SIZES: [Size; 3] = [
    Size { databases: 2, keys: 1, steps: 600 },
    Size { databases: 3, keys: 1, steps: 1_000 },
    Size { databases: 4, keys: 5, steps: 1_500 },
];

/// Runs a seed. Returns the number of starts, or the violation.
fn run(seed: u64, planted: Option<Planted>) -> Result<usize, String> {
    let size = SIZES[usize::try_from(seed).unwrap() % SIZES.len()];
    let mut simulation = Simulation::new(Model::new(size.databases, planted), seed, size);
    // The model never waits.
    simulation.run().now_or_never().unwrap().map(|()| simulation.starts)
}

#[test]
fn keys_are_exclusive_ordered_and_never_stuck() {
    let seeds = std::env::var("SHARD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let mut starts = 0;
    for seed in 0..seeds {
        starts += run(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    assert!(starts > 20 * usize::try_from(seeds).unwrap(), "{starts} starts test little");
}

#[test]
fn planted_faults_are_found() {
    let faults = [
        Planted::IgnoresLimit,
        Planted::TakesOldGrants,
        Planted::IgnoresFence,
        Planted::GrantsAfterLease,
        Planted::DropsLaterTickets,
        Planted::TicketsByItem,
        Planted::ReturnsEarly,
        Planted::DropsWantsEarly,
        Planted::GrantsLast,
        Planted::TellsWithoutLease,
    ];
    for planted in faults {
        let found = (0..3_000).any(|seed| run(seed, Some(planted)).is_err());
        assert!(found, "{planted:?} is not found");
    }
}

#[test]
fn the_end_of_a_lease_finds_keys_whose_return_was_lost() {
    for seed in 0..200 {
        run(seed, Some(Planted::TellsEarly)).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

/// Delivers a grant again after all of it was forgotten, while another database has the key. Returns the items that run by it.
async fn forgotten_grant(planted: Option<Planted>) -> Vec<(String, i64)> {
    let (mut model, key) = (Model::new(2, planted), "k");
    let home = hostler_jobs::shards::route::home(key, 2);
    let mut grants = Vec::new();
    for at in 0..2 {
        model.create(at, key, 1).await;
        let wants = model.wants(at, home).await;
        model.register(home, at, &wants).await;
        model.drop_wants(at, &wants).await;
    }
    for at in 0..2 {
        model.grant_keys(home).await;
        let due = model.due_grants(home, at).await;
        let answers = model.open_keys(at, home, &due).await;
        model.answer(home, at, &answers).await;
        assert_eq!(model.claim(at, 1).await, [(key.to_owned(), 1)]);
        grants.push(due);
        if at == 0 {
            model.end(at, 1, true).await;
            let returned = model.returned(at, home).await;
            model.answer(home, at, &returned).await;
            model.note_told(at, &returned).await;
            model.forget(at).await;
        }
    }
    // The item of the first database is pending again, and that of the second runs.
    model.retry(0, 1).await;
    model.open_keys(0, home, &grants[0]).await;
    model.claim(0, 1).await
}

#[test]
fn a_forgotten_grant_is_not_taken_again() {
    let runs = |planted| forgotten_grant(planted).now_or_never().unwrap();
    assert!(runs(None).is_empty());
    assert_eq!(runs(Some(Planted::ForgetsWithoutFloor)), [("k".to_owned(), 1)]);
}
