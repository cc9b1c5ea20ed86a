//! What a fresh sandbox costs: `cargo bench --bench sandbox`. Fails when it costs too much, or when memory grows.
//!
//! The example's component is called directly, without a queue, as often as `MESSAGES` says. What is measured is all that
//! a message pays for its sandbox: a store with its capabilities, an instance, the call, and giving it all back.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hostler::handler::{self, Bounds, Call, Definition, Engine, Grants, Handler, Outcome, Output, Pool, Source};
use hostler::message::Message;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The most that a sandbox and a call may take, beyond what the handler's own work takes natively (microseconds). The
/// work here is next to nothing, so all of it counts.
const LIMIT: f64 = 50.0;

/// How much the memory may grow from the first tenth of the messages to the last.
const GROWTH: f64 = 1.1;

/// Bytes of a sandbox's memory, as a consumer's by default.
const MEMORY: u64 = 128 << 20;

fn main() -> Result<()> {
    let messages: u32 = std::env::var("MESSAGES").map_or(Ok(100_000), |text| text.parse())?;
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/flights/flights.wasm");
    println!("{:<22} {:>12} {:>16} {:>16}", "sandbox", "µs/message", "RSS at a tenth", "RSS at the end");
    for (name, messages_per_instance) in [("fresh for each", 1), ("reused for 1,000", 1_000)] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handler = load(&flights, messages_per_instance)?;
        let warm = runtime.block_on(calls(&*handler, messages / 10))?;
        let early = resident()?;
        let took = warm.min(runtime.block_on(calls(&*handler, messages))?);
        let late = resident()?;
        println!("{name:<22} {took:>12.1} {:>12.1} MiB {:>12.1} MiB", mib(early), mib(late));
        if took > LIMIT {
            return Err(format!("{name}: {took:.1} µs for a sandbox and a call, and {LIMIT} at most").into());
        }
        if late as f64 > early as f64 * GROWTH {
            return Err(format!("{name}: memory grew from {early} to {late} bytes").into());
        }
    }
    Ok(())
}

fn load(path: &Path, messages_per_instance: u32) -> Result<Arc<dyn Handler>> {
    let definition = Definition {
        consumer: "bench".into(),
        source: Source::from(path),
        sha256: None,
        hooks: None,
        grants: Grants::default(),
        messages_per_instance,
        reply_from_stdout: false,
    };
    Ok(handler::load(&Engine::new(Pool { sandboxes: 4 })?, &definition)?.handler(MEMORY)?)
}

/// Calls the handler so often, and says how many microseconds one call takes.
async fn calls(handler: &dyn Handler, count: u32) -> Result<f64> {
    let message = Arc::new(Message {
        id: "bench".into(),
        body: "{}".into(),
        attributes: Default::default(),
        enqueued_at: SystemTime::now(),
        group: None,
        routing_key: None,
        claim: None,
    });
    let channel: Arc<str> = "bench".into();
    let started = Instant::now();
    for _ in 0..count {
        let bounds = Bounds::new(Duration::from_secs(60));
        let call = Call::new(Arc::clone(&message), Arc::clone(&channel), 1, bounds, Output::new(64 * 1024));
        match handler::run(handler, &call).await {
            Some(Outcome::DeadLetter(_)) => {}
            other => return Err(format!("the handler was to reject the body, but: {other:?}").into()),
        }
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1)))
}

/// Resident memory of this process, in bytes (`VmRSS` of `/proc/self/status`).
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
