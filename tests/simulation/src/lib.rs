//! Deterministic simulation in virtual time, of five worlds. In `sqs`, the consumer and the SQS driver run on a model of SQS with
//! all its faults. In `embedded`, the consumer and the embedded queue run on a real file, while the file is locked, cannot be
//! changed, or is moved away. In `push`, the consumer runs on a model of a broker that sends messages ahead, loses connections, and
//! takes leases back with them. In `nats`, that broker keeps leases when a connection is lost, and a settlement may be done though its
//! answer is lost, as with JetStream. The model of both stands for the driver too.
//! `batch` is the world of `sqs`, and the handler gets batches (`batches`). In `keys` and `own-keys`, messages have keys, of which each is to
//! be processed once (`keyed`): the world of `sqs` with a separate store of records (`records`), and that of `embedded` with its own.
//!
//! A seed (`key`) makes a scenario (`scenario`), which is played (`run`) with processes that come and go (`system`) in a world (`site`). The
//! handler does as planned (`worker`), and the `judge` sees everything, calls to the queue too (`calls`), keeps what it needs of it
//! (`record`), and holds it against the promises: the settlements against the policy (`dispositions`), the health of each second, the breaker, pauses and
//! the rate limit against what happened (`progress`), the runs of keys (`runs`), and what an operator cancels (`cancels`). The same seed gives the same run.
//!
//! `HOSTLER_SEEDS` sets the number of seeds to try. `HOSTLER_SEED` names a run to repeat, with its trace.

pub mod batches;
pub mod calls;
pub mod cancels;
pub mod contract;
pub mod dispositions;
pub mod embedded;
pub mod judge;
pub mod key;
pub mod keyed;
pub mod order;
pub mod progress;
pub mod push;
pub mod record;
pub mod records;
pub mod run;
pub mod runs;
pub mod scenario;
pub mod settling;
pub mod site;
pub mod sqs;
pub mod system;
pub mod worker;

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub use key::{Key, Kind};
pub use system::System;

use key::CLASSES;
use scenario::Scenario;

/// A run that broke a promise.
pub struct Failure {
    pub key: Key,
    pub violations: Vec<String>,
    pub trace: Vec<String>,
}

/// Plays a scenario. A panic counts as a broken promise.
pub fn play(system: System, key: &Key, keeps_trace: bool) -> (Vec<String>, Vec<String>) {
    panic::catch_unwind(|| run::play(system, key, keeps_trace)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (vec![format!("8: it panicked: {}", text.unwrap_or_default())], Vec::new())
    })
}

/// Plays this range of seeds of a world on all CPUs, until `enough` seeds have failed. Returns the failed seeds.
pub fn search(system: System, kind: Kind, seeds: std::ops::Range<u64>, enough: usize) -> Vec<Key> {
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
                    let key = Key { kind, seed, ..Key::default() };
                    if !play(system, &key, false).0.is_empty() {
                        failed.lock().unwrap().push(key);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// Returns the shortest run that still fails, with fewer messages and fewer kinds of faults.
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

/// Formats a failure for people.
pub fn report(failure: &Failure) -> String {
    let Failure { key, violations, trace } = failure;
    format!(
        "{}\n\nbroken:\n  {}\n\nagain: HOSTLER_SEED={key} cargo test --release --workspace --test seeds replay -- --nocapture\n",
        trace.join("\n"),
        violations.join("\n  "),
    )
}
