//! Scenarios that keep the service busy for a time: at full speed beside a pinned snapshot, or at a rate.

use std::time::{Duration, Instant};

use crate::calls::Client;
use crate::database::{Database, Sizes, mebibytes};
use crate::failure::Failure;
use crate::figures::{Outcome, percentile, rate, ratio};
use crate::flow::{Flow, Part, Plan, Schedule};
use crate::settings::Settings;

/// A hundred million items a day, in items a second.
const DAILY: u64 = 1_158;

/// More items than any run puts through.
const ENDLESS: u64 = u64::MAX / 2;

/// Items of a tree of the bloat scenario.
const TREE: u64 = 100;

/// Items that the rate scenario adds by one call: those of about 10 ms.
const CHUNK: u64 = 12;

/// Maximum time from the last item's due time until all are settled.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for the connections to open before the first item is due.
const CONNECTING: Duration = Duration::from_millis(200);

/// Growth of the working tables that passes: this factor, and the extents that small tables take.
const GROWTH: f64 = 1.5;
const EXTENTS: u64 = 1 << 20;

/// Puts items through at full speed. After a while, another connection pins a snapshot for 30 s.
///
/// # Errors
/// [`Failure`] of a call, as for all scenarios.
pub fn pinned(settings: &Settings) -> Result<Outcome, Failure> {
    let before = Duration::from_secs(settings.number("BEFORE", 15, 2)?);
    let pinned = Duration::from_secs(settings.number("DURATION", 30, 3)?);
    let connections = usize::try_from(settings.number("CONNECTIONS", 4, 4)?).unwrap_or(usize::MAX);
    let batch = settings.number("BATCH", 500, 500)?;
    let jobs = Client::open(&settings.host)?.create(0)?;
    let plan = Plan { part: Part::Whole, items: ENDLESS, batch, connections, keys: 0, schedule: None };
    let flow = Flow::start(&settings.host, plan, jobs);
    through(&flow, before / 3)?;
    let usual = through(&flow, before)?;
    let database = Database::open(&settings.database)?;
    database.pin()?;
    let thirds = [through(&flow, pinned / 3)?, through(&flow, pinned / 3)?, through(&flow, pinned / 3)?];
    drop(database);
    let after = through(&flow, before)?;
    flow.stop();
    let mean = thirds.iter().sum::<f64>() / 3.0;
    let line = format!(
        "{mean:.0} items/s beside a snapshot pinned for {} s, {usual:.0} before, {after:.0} after; by thirds {:.0}, {:.0}, {:.0}",
        pinned.as_secs(),
        thirds[0],
        thirds[1],
        thirds[2]
    );
    Ok(Outcome::new(line).at_least("part of the rate that is left", mean / usual, 0.5))
}

/// Returns the rate at which items are settled during a time.
fn through(flow: &Flow, time: Duration) -> Result<f64, Failure> {
    let (begin, settled) = (Instant::now(), flow.settled());
    flow.poll(time)?;
    Ok(rate(flow.settled() - settled, begin.elapsed()))
}

/// Adds items at the rate of 100 million a day for a minute, and takes the time from when each is due until its result is accepted.
///
/// # Errors
/// As above.
pub fn daily(settings: &Settings) -> Result<Outcome, Failure> {
    let rate = settings.number("RATE", DAILY, DAILY)?;
    let time = Duration::from_secs(settings.number("DURATION", 60, 3)?);
    let limit = settings.number("P99_MS", 1_000, 1_000)?;
    warm_up(settings)?;
    let jobs = Client::open(&settings.host)?.create(0)?;
    let run = steady(settings, Pace { rate, chunk: CHUNK, time, look: time }, jobs, |_| Ok(()))?;
    let milliseconds = |percent| ratio(percentile(&run.latencies, percent), 1_000);
    let line = format!(
        "{:.0} items/s of {rate} due for {} s; ms from due to done: p50 {:.1}, p99 {:.1}, max {:.1}",
        run.rate,
        time.as_secs(),
        milliseconds(50),
        milliseconds(99),
        milliseconds(100)
    );
    let outcome = Outcome::new(line).at_least("part of the rate", run.rate / ratio(rate, 1), 0.99);
    Ok(outcome.at_most("ms of the slowest hundredth", milliseconds(99), ratio(limit, 1)))
}

/// Puts trees of 100 items through at a rate, and watches the size of the database. Tables whose rows come and go must not grow after
/// the sixth part of the time. The partitions of a day only grow until they are dropped, so their bytes for each item are shown.
///
/// # Errors
/// As above.
pub fn bloat(settings: &Settings) -> Result<Outcome, Failure> {
    let rate = settings.number("RATE", DAILY, DAILY)?;
    let time = Duration::from_secs(settings.number("DURATION", 3600, 6)?);
    let database = Database::open(&settings.database)?;
    let mut samples: Vec<(Duration, Sizes)> = vec![(Duration::ZERO, database.sizes()?)];
    let sample = |elapsed| {
        let sizes = database.sizes()?;
        println!("{}", row(elapsed, &sizes));
        samples.push((elapsed, sizes));
        Ok(())
    };
    let look = (time / 60).max(Duration::from_secs(1));
    let run = steady(settings, Pace { rate, chunk: TREE, time, look }, Vec::new(), sample)?;
    let (first, early, last) = (&samples[0].1, at(&samples, time / 6), &samples[samples.len() - 1].1);
    let growth = ratio(last.working().saturating_sub(EXTENTS), early.working().max(1));
    let line = format!(
        "working tables {:.1} MiB after {} s, {:.1} MiB after a sixth of it; partitions {:.0} bytes an item; {:.0} items/s",
        mebibytes(last.working()),
        time.as_secs(),
        mebibytes(early.working()),
        ratio(last.partitions.saturating_sub(first.partitions), run.items),
        run.rate
    );
    let outcome = Outcome::new(line).at_most("growth", growth, GROWTH);
    Ok(outcome.at_least("part of the rate", run.rate / ratio(rate, 1), 0.99))
}

/// Writes a sample.
fn row(elapsed: Duration, sizes: &Sizes) -> String {
    let largest = sizes.largest.iter().map(|(name, size)| format!("{name} {:.1}", mebibytes(*size)));
    format!(
        "{:>5} s  MiB: tables {:.1}, indexes {:.1}, partitions {:.1}; largest: {}",
        elapsed.as_secs(),
        mebibytes(sizes.tables),
        mebibytes(sizes.indexes),
        mebibytes(sizes.partitions),
        largest.collect::<Vec<_>>().join(", ")
    )
}

/// Returns the last sample that was taken until a time.
fn at(samples: &[(Duration, Sizes)], time: Duration) -> &Sizes {
    let until = samples.partition_point(|(taken, _)| *taken <= time);
    &samples[until.saturating_sub(1)].1
}

/// A load at a rate.
#[derive(Clone, Copy)]
struct Pace {
    /// Items in a second.
    rate: u64,
    /// Items that one call adds.
    chunk: u64,
    time: Duration,
    /// Time between two calls of the watch.
    look: Duration,
}

/// A run at a rate.
struct Steady {
    items: u64,
    /// Items that were settled in a second, until the last one.
    rate: f64,
    latencies: Vec<u64>,
}

/// Puts a few items through, so that connections to the database and plans are there.
fn warm_up(settings: &Settings) -> Result<(), Failure> {
    let jobs = Client::open(&settings.host)?.create(0)?;
    let plan = Plan { part: Part::Whole, items: 2_000, batch: CHUNK, connections: 8, keys: 0, schedule: None };
    let flow = Flow::start(&settings.host, plan, jobs);
    flow.wait(PATIENCE)?;
    flow.stop();
    Ok(())
}

/// Adds items at a pace to `jobs`, or as trees of their own, while as many connections claim and settle them. Calls `watch` with the
/// time that has passed.
fn steady(
    settings: &Settings,
    pace: Pace,
    jobs: Vec<String>,
    mut watch: impl FnMut(Duration) -> Result<(), Failure>,
) -> Result<Steady, Failure> {
    let connections = usize::try_from(settings.number("CONNECTIONS", 4, 4)?).unwrap_or(usize::MAX);
    let items = (pace.time.as_secs() * pace.rate).div_ceil(pace.chunk) * pace.chunk;
    let begin = Instant::now() + CONNECTING;
    let schedule = Some(Schedule { begin, rate: pace.rate, chunk: pace.chunk });
    let adds = Plan { part: Part::Add, items, batch: pace.chunk, connections, keys: 0, schedule };
    let adding = Flow::start(&settings.host, adds.clone(), jobs);
    let draining = Flow::start(&settings.host, Plan { part: Part::Drain, batch: 100, ..adds }, Vec::new());
    let mut due = pace.look;
    while adding.poll(due.saturating_sub(begin.elapsed()))?.is_none() {
        watch(begin.elapsed())?;
        due += pace.look;
        if begin.elapsed() > pace.time + PATIENCE {
            return Err(Failure::Lost("the service takes items slower than they are due".to_owned()));
        }
    }
    watch(begin.elapsed())?;
    adding.stop();
    let last = draining.wait(PATIENCE)?;
    let reached = rate(items, (last - begin).max(pace.time));
    Ok(Steady { items, rate: reached, latencies: draining.stop() })
}
