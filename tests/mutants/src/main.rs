//! Plants faults in the consumer, in the drivers and in the retry service, one at a time, and sees whether the simulation finds them, or
//! the tests of the retry service or of schedules.
//!
//! Prints what was found by which seed, and fails if a fault was not. A word as argument: only the faults that have it in their name or file. Each
//! fault has a process of its own, as one may make the consumer run in circles, of which nothing else can stop it.

use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{env, panic, process, thread};

use simulation::{Kind, System};

#[path = "../faults.rs"]
mod faults;

use faults::{FAULTS, Fault};

include!(concat!(env!("OUT_DIR"), "/mutants.rs"));

/// Number of seeds to try for each.
const SEEDS: u64 = 10_000;
/// Number of seeds between two progress messages.
const STEP: usize = 50;
/// Time limit: a hundred times the duration without a planted fault.
const ENDLESS: Duration = Duration::from_secs(60);
/// Time limit for a test of the retry service or of schedules.
const LONG: Duration = Duration::from_secs(300);
/// Names the fault that a process is for.
const ONE: &str = "HOSTLER_MUTANT";

/// The tests of the copy with a fault, with their names.
type Suite = (usize, Vec<(&'static str, fn())>);

fn main() -> ExitCode {
    if let Some(number) = env::var(ONE).ok().and_then(|text| text.parse::<usize>().ok()) {
        if let Some((_, tests)) = suites().into_iter().find(|(planted, _)| *planted == number) {
            run_tests(&FAULTS[number], tests);
        }
        let found = systems().into_iter().find(|(planted, ..)| *planted == number);
        let (_, kind, system) = found.expect("a fault that is planted");
        try_one(&FAULTS[number], kind, system)
    }
    let word = env::args().nth(1).unwrap_or_default();
    let (mut planted, mut missed) = (0, 0);
    println!("{:<54} {:>6}  broken", "planted: it …", "seed");
    let numbers =
        systems().into_iter().map(|(number, ..)| number).chain(suites().into_iter().map(|(number, _)| number));
    for number in numbers.filter(|number| FAULTS[*number].is_named(&word)) {
        planted += 1;
        let exe = env::current_exe().expect("the path of this program");
        let found = Command::new(exe).env(ONE, number.to_string()).status();
        // One of them changes nothing: a test that fails without a fault finds nothing.
        let is_one = FAULTS[number].old != FAULTS[number].new;
        missed += usize::from(found.is_ok_and(|status| status.success()) != is_one);
    }
    println!("{planted} faults planted, {missed} not found");
    ExitCode::from(u8::from(missed > 0 || planted == 0))
}

/// Ends the process if nothing comes for a while.
fn watch(fault: &'static Fault, life: Receiver<()>, limit: Duration) {
    thread::spawn(move || {
        while life.recv_timeout(limit).is_ok() {}
        println!("{:<54} {:>6}  runs in circles", fault.name, "");
        process::exit(0);
    });
}

/// Runs the tests of a copy until one of them fails.
fn run_tests(fault: &'static Fault, tests: Vec<(&'static str, fn())>) -> ! {
    panic::set_hook(Box::new(|_| {}));
    let (alive, life) = channel();
    watch(fault, life, LONG);
    for (name, test) in tests {
        if panic::catch_unwind(test).is_err() {
            println!("{:<54} {:>6}  {}", fault.name, "", name.replace('_', " "));
            process::exit(0);
        }
        alive.send(()).expect("somebody looks");
    }
    println!("{:<54} {:>6}  NOTHING by any test", fault.name, "-");
    process::exit(1);
}

/// Runs an asynchronous test, on a clock that is paused if the test wants it.
#[allow(dead_code, reason = "unused unless a fault of the retry service is planted")]
fn in_runtime(is_paused: bool, test: impl Future<Output = ()>) {
    let runtime = if is_paused {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    };
    runtime.expect("a runtime").block_on(test);
}

fn try_one(fault: &'static Fault, kind: Kind, system: System) -> ! {
    let (alive, life) = channel();
    watch(fault, life, ENDLESS);
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
