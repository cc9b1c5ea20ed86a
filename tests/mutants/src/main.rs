//! Plants faults in the consumer and in the drivers, one at a time, and sees whether the simulation finds them.
//!
//! Prints what was found by which seed, and fails if a fault was not. A word as argument: only the faults that have it in their name or file. Each
//! fault has a process of its own, as one may make the consumer run in circles, of which nothing else can stop it.

use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{env, process, thread};

use simulation::{Kind, System};

include!("../faults.rs");
include!(concat!(env!("OUT_DIR"), "/mutants.rs"));

/// Number of seeds to try for each.
const SEEDS: u64 = 10_000;
/// Number of seeds between two progress messages.
const STEP: usize = 50;
/// Time limit: a hundred times the duration without a planted fault.
const ENDLESS: Duration = Duration::from_secs(60);
/// Names the fault that a process is for.
const ONE: &str = "HOSTLER_MUTANT";

fn main() -> ExitCode {
    if let Some(number) = env::var(ONE).ok().and_then(|text| text.parse::<usize>().ok()) {
        let found = systems().into_iter().find(|(planted, ..)| *planted == number);
        let (_, kind, system) = found.expect("a fault that is planted");
        try_one(&FAULTS[number], kind, system)
    }
    let word = env::args().nth(1).unwrap_or_default();
    let (mut planted, mut missed) = (0, 0);
    println!("{:<54} {:>6}  broken", "planted: it …", "seed");
    for number in systems().iter().map(|(number, ..)| *number).filter(|number| FAULTS[*number].is_named(&word)) {
        planted += 1;
        let exe = env::current_exe().expect("the path of this program");
        let found = Command::new(exe).env(ONE, number.to_string()).status();
        missed += usize::from(!found.is_ok_and(|status| status.success()));
    }
    println!("{planted} faults planted, {missed} not found");
    ExitCode::from(u8::from(missed > 0 || planted == 0))
}

fn try_one(fault: &'static Fault, kind: Kind, system: System) -> ! {
    let (alive, life) = channel();
    thread::spawn(move || {
        while life.recv_timeout(ENDLESS).is_ok() {}
        println!("{:<54} {:>6}  runs in circles", fault.name, "");
        process::exit(0);
    });
    for first in (0..SEEDS).step_by(STEP) {
        let found = simulation::search(system, kind, first..first + STEP as u64, 1);
        if let Some(key) = found.iter().min_by_key(|key| key.seed) {
            let (broken, _) = simulation::play(system, key, false);
            println!("{:<54} {:>6}  {}", fault.name, key.seed, broken.first().map_or("", String::as_str));
            process::exit(0);
        }
        alive.send(()).expect("somebody looks");
    }
    println!("{:<54} {:>6}  NOTHING in {SEEDS} seeds", fault.name, "-");
    process::exit(1);
}
