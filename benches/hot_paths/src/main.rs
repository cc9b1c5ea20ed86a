//! Benchmarks of the hot paths with criterion: `cargo run --release --manifest-path benches/hot_paths/Cargo.toml -- --bench
//! [FILTER]`.
//!
//! With `HOT_PATH=NAME` and `COUNT=n`, runs the path n times and does nothing else. `benches/instructions.sh` uses this mode to
//! count the instructions of one iteration.

mod acked;
#[path = "../../call.rs"]
mod call;
mod consumer;
mod embedded;
mod handlers;
mod sqs;

use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;

/// Result with any error of the benchmark itself.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs a path once.
type Step = Box<dyn FnMut()>;

/// A path: its name, and the function that prepares it.
type Path = (&'static str, fn() -> Result<Step>);

/// Same allocator as in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PATHS: &[Path] = &[
    ("component, fresh sandbox", handlers::component_fresh),
    ("component without imports, fresh sandbox", handlers::component_without_imports),
    ("component, reused sandbox", handlers::component_reused),
    ("command, fresh sandbox", handlers::command_fresh),
    ("leases, ten heartbeats of 10,000", consumer::heartbeats),
    ("leases, in and out beside 10,000", consumer::in_and_out),
    ("policy, four outcomes", consumer::policy),
    ("settlements, a batch of ten", consumer::settlements),
    ("embedded, ten sent, received and acked", embedded::ten),
    ("sqs, ten received and acked", sqs::ten),
    ("sqs, ten by a consumer", sqs::consumed),
    ("sqs, ten in traces, telemetry off", sqs::consumed_traced),
    ("sqs, ten in traces, metrics on", sqs::consumed_with_metrics),
    ("sqs, ten in traces, metrics and traces on", sqs::consumed_with_telemetry),
    ("sqs, ten in traces, all sampled", sqs::consumed_sampled),
];

fn main() -> Result<()> {
    if let Ok(name) = std::env::var("HOT_PATH") {
        return go(&name, std::env::var("COUNT")?.parse()?);
    }
    if std::env::args().any(|argument| argument == "--names") {
        PATHS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for (name, prepare) in PATHS {
        let mut step = prepare()?;
        criterion.bench_function(name, |bencher| bencher.iter(|| black_box(&mut step)()));
    }
    criterion.final_summary();
    Ok(())
}

fn go(name: &str, count: u64) -> Result<()> {
    let (_, prepare) = PATHS.iter().find(|(known, _)| *known == name).ok_or("there is no such path")?;
    steps(prepare()?, count);
    Ok(())
}

/// A separate function, because callgrind counts from its start to its end.
#[inline(never)]
fn steps(mut step: Step, count: u64) {
    (0..count).for_each(|_| step());
}
