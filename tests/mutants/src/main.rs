//! Plants faults in the consumer and in the SQS driver, one at a time, and sees whether the simulation finds them.
//!
//! Prints what was found by which seed, and fails if a fault was not.

#[allow(dead_code, unused_imports)]
#[path = "../../simulation/mod.rs"]
mod simulation;

include!("../faults.rs");
include!(concat!(env!("OUT_DIR"), "/mutants.rs"));

/// How many seeds are tried for each.
const SEEDS: u64 = 10_000;

fn main() {
    let mut missed = 0;
    println!("{:<54} {:>6}  broken", "planted: it …", "seed");
    for (fault, system) in FAULTS.iter().zip(systems()) {
        let found = simulation::search(system, 0..SEEDS, 1);
        match found.iter().min_by_key(|key| key.seed) {
            Some(key) => {
                let (broken, _) = simulation::play(system, key, false);
                let first = broken.into_iter().next().unwrap_or_default();
                println!("{:<54} {:>6}  {first}", fault.name, key.seed);
            }
            None => {
                missed += 1;
                println!("{:<54} {:>6}  NOTHING in {SEEDS} seeds", fault.name, "-");
            }
        }
    }
    println!("{} faults planted, {missed} not found", FAULTS.len());
    std::process::exit(i32::from(missed > 0));
}
