//! Cost of a fresh sandbox: `cargo bench --bench sandbox`. Fails if the cost is too high, or if memory grows.
//!
//! Calls the component of the example directly, without a queue, `MESSAGES` times. Measures the whole cost of a sandbox per
//! message: a store with its capabilities, an instance, the call, and the cleanup.
//!
//! `SANDBOXES` names other components, each with the maximum CPU time per message in microseconds:
//! `SANDBOXES="javascript=greet.wasm=1000,python=greet.cwasm=3000"`. These components must accept the body `{"name": "Ada"}`, as
//! the projects of `hostler new` do.
//!
//! Then gives messages to a batch handler, one by one and a hundred at a time. The latter must take less than a third of the CPU time
//! of the former.

mod call;
#[path = "../tests/support/guests.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
#[allow(clippy::unwrap_used, clippy::panic, reason = "it is code of the tests")]
mod guests;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use call::Caller;
use hostler_handler::{BatchCall, BatchEnd, Bounds, Outcome, Output};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum cost of a sandbox and a call in microseconds, without the work of the handler. The work of this handler is negligible,
/// so the whole time counts.
const LIMIT: f64 = 50.0;

/// Maximum ratio of the memory after the last message to the memory after the first tenth of the messages.
const GROWTH: f64 = 1.1;

/// A message that handlers which greet by name accept.
const ADA: &str = r#"{"name": "Ada"}"#;

/// A component to measure.
struct Subject<'a> {
    name: &'a str,
    file: &'a Path,
    messages_per_instance: u32,
    body: &'static str,
    messages: u32,
    /// Maximum CPU time per message in microseconds.
    limit: f64,
}

fn main() -> Result<()> {
    let messages = std::env::var("MESSAGES").ok().map(|text| text.parse()).transpose()?;
    let others = std::env::var("SANDBOXES").unwrap_or_default();
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/flights/flights.wasm");
    println!("{:<22} {:>14} {:>16} {:>16}", "sandbox", "CPU µs/message", "RSS at a tenth", "RSS at the end");
    if others.is_empty() {
        for (name, messages_per_instance) in [("fresh for each", 1), ("reused for 1,000", 1_000)] {
            let messages = messages.unwrap_or(100_000);
            measure(&Subject { name, file: &flights, messages_per_instance, body: "{}", messages, limit: LIMIT })?;
        }
        compare_batches(&guests::component("batch-word"), messages.unwrap_or(100_000).max(LEAST))?;
    }
    for other in others.split(',').filter(|other| !other.is_empty()) {
        let mut parts = other.split('=');
        let (Some(name), Some(file), Some(limit), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(format!("SANDBOXES is NAME=FILE=LIMIT,…, not `{other}`").into());
        };
        let (file, limit) = (Path::new(file), limit.parse()?);
        let messages = messages.unwrap_or(2_000);
        measure(&Subject { name, file, messages_per_instance: 1, body: ADA, messages, limit })?;
    }
    Ok(())
}

/// Messages in a batch.
const BATCH: u32 = 100;

/// Minimum number of messages in a comparison.
const LEAST: u32 = 20_000;

/// Compares batches with single messages, both in fresh sandboxes. Fails if the gain is too small.
fn compare_batches(file: &Path, messages: u32) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let caller = Caller::load(file, 1, "a")?;
    let single = runtime.block_on(calls(&caller, messages))?;
    let batch = runtime.block_on(async {
        let before = computed()?;
        for _ in 0..messages / BATCH {
            match call_batch(&caller, BATCH).await {
                Some(BatchEnd::Answers(answers)) if answers.iter().all(|answer| *answer == Outcome::Ack) => {}
                other => return Err(format!("the handler was to ack the batch, but: {other:?}").into()),
            }
        }
        Ok::<_, Box<dyn Error>>((computed()? - before) / f64::from(messages / BATCH * BATCH))
    })?;
    println!("{:<22} {single:>14.1}", "one by one");
    println!("{:<22} {batch:>14.1}", "in batches of 100");
    if batch * 3.0 > single {
        return Err(format!("{batch:.1} µs for a message of a batch, and {single:.1} alone: not under a third").into());
    }
    Ok(())
}

/// Calls the handler once, with a batch of this many messages.
async fn call_batch(caller: &Caller, messages: u32) -> Option<BatchEnd> {
    let calls = (0..messages).map(|_| Arc::new(caller.of_message())).collect();
    let (bounds, output) = (Bounds::new(Duration::from_secs(60)), Output::new(64 * 1024));
    let batch = Arc::new(BatchCall::new(calls, bounds, output, Box::new(|_, _| {})));
    hostler_handler::run_batch(&*caller.handler, &batch).await
}

/// Measures one component and prints the result. Fails if a limit is exceeded.
fn measure(subject: &Subject<'_>) -> Result<()> {
    let Subject { name, messages, limit, .. } = *subject;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let caller = Caller::load(subject.file, subject.messages_per_instance, subject.body)?;
    let warm = runtime.block_on(calls(&caller, messages / 10))?;
    let early = resident()?;
    let took = warm.min(runtime.block_on(calls(&caller, messages))?);
    let late = resident()?;
    println!("{name:<22} {took:>14.1} {:>12.1} MiB {:>12.1} MiB", mib(early), mib(late));
    if took > limit {
        return Err(format!("{name}: {took:.1} µs for a sandbox and a call, and {limit} at most").into());
    }
    if late as f64 > early as f64 * GROWTH {
        return Err(format!("{name}: memory grew from {early} to {late} bytes").into());
    }
    Ok(())
}

/// Calls the handler `count` times. Returns the CPU time of one call in microseconds.
async fn calls(caller: &Caller, count: u32) -> Result<f64> {
    let before = computed()?;
    for _ in 0..count {
        match caller.call().await {
            Some(Outcome::DeadLetter(_) | Outcome::Ack | Outcome::Reply(_)) => {}
            other => return Err(format!("the handler was to decide about the body, but: {other:?}").into()),
        }
    }
    Ok((computed()? - before) / f64::from(count.max(1)))
}

/// Returns the user and system CPU time of this thread in microseconds (first field of `/proc/thread-self/schedstat`, in ns).
fn computed() -> Result<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("no schedstat")?.parse::<f64>()? / 1e3)
}

/// Returns the resident memory of this process in bytes (`VmRSS` of `/proc/self/status`).
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
