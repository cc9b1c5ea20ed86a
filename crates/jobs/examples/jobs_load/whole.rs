//! Scenarios that put a number of items through and take the time.

use std::time::{Duration, Instant};

use crate::calls::Client;
use crate::failure::Failure;
use crate::figures::{Outcome, rate};
use crate::flow::{Flow, Part, Plan, pause};
use crate::settings::Settings;

/// Maximum time of a scenario.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Maximum time from the last result until the tree is complete.
const COMPLETION: Duration = Duration::from_secs(120);

/// Pause between two looks at a tree's status.
const LOOK: Duration = Duration::from_millis(2);

/// Puts items through in batches of 500: the whole cycle, from the tree's creation to its completion.
///
/// # Errors
/// [`Failure`] of a call; as for all scenarios.
pub fn batched(settings: &Settings) -> Result<Outcome, Failure> {
    let items = settings.number("ITEMS", 500_000, 10_000)?;
    let batch = settings.number("BATCH", 500, 500)?;
    let connections = settings.number("CONNECTIONS", 4, 4)?;
    let reached = tree(settings, plan(Part::Whole, items, batch, connections, 0))?;
    let line = format!(
        "{reached:.0} items/s: {items} items in batches of {batch} over {connections} connections, from creation to completion"
    );
    Ok(Outcome::new(line).at_least("items/s", reached, 10_000.0))
}

/// Puts items through one by one: each is added, taken and settled by a call of its own. `BY=assign`: it is assigned by its id, not
/// claimed.
///
/// # Errors
/// As above.
pub fn single(settings: &Settings) -> Result<Outcome, Failure> {
    let items = settings.number("ITEMS", 50_000, 1_000)?;
    let connections = settings.number("CONNECTIONS", 32, 32)?;
    let by_id = std::env::var("BY").is_ok_and(|by| by == "assign");
    let part = if by_id { Part::Assign } else { Part::Whole };
    let reached = tree(settings, plan(part, items, 1, connections, 0))?;
    let line = format!(
        "{reached:.0} items/s: {items} items one by one over {connections} connections, {}",
        if by_id { "assigned by id" } else { "claimed" }
    );
    Ok(Outcome::new(line).at_least("items/s", reached, 800.0))
}

/// Puts a tree of a million items through, in ten jobs whose root's completion seals the others. All items are added first.
///
/// # Errors
/// As above.
pub fn million(settings: &Settings) -> Result<Outcome, Failure> {
    let items = settings.number("ITEMS", 1_000_000, 20_000)?;
    let connections = settings.number("CONNECTIONS", 4, 4)?;
    let jobs = Client::open(&settings.host)?.create(9)?;
    let root = jobs[0].clone();
    let begin = Instant::now();
    let adding = Flow::start(&settings.host, plan(Part::Add, items, 5_000, connections, 0), jobs);
    let added = adding.wait(PATIENCE)?;
    adding.stop();
    Client::open(&settings.host)?.seal(&root)?;
    let began = Instant::now();
    let draining = Flow::start(&settings.host, plan(Part::Drain, items, 500, connections, 0), Vec::new());
    let last = draining.wait(PATIENCE)?;
    let complete = completion(settings, &root)?.saturating_duration_since(last);
    draining.stop();
    let line = format!(
        "complete {:.3} s after the last of {items} items; added at {:.0} items/s, drained at {:.0} items/s",
        complete.as_secs_f64(),
        rate(items, added - begin),
        rate(items, last - began)
    );
    Ok(Outcome::new(line).at_most("seconds to completion", complete.as_secs_f64(), 1.0))
}

/// Puts items with 10,000 serialize keys through, which are all added first, and the same number without keys.
///
/// # Errors
/// As above.
pub fn keys(settings: &Settings) -> Result<Outcome, Failure> {
    let items = settings.number("ITEMS", 200_000, 20_000)?;
    let keys = settings.number("KEYS", 10_000, 1_000)?;
    let without = backlog(settings, items, 0)?;
    let with = backlog(settings, items, keys)?;
    let line = format!(
        "{:.0} items/s with {keys} keys, {:.0} without: {items} items, added at {:.0} and {:.0} items/s first",
        with.drained, without.drained, with.added, without.added
    );
    // Keys cost a second table, but nobody waits for another key: the bar is that of batches.
    Ok(Outcome::new(line).at_least("items/s with keys", with.drained, 10_000.0))
}

/// Adds items and then processes them. Prints a line before the first, and after each of both: `benches/jobs/measure.py` takes the
/// times.
///
/// # Errors
/// As above.
pub fn contend(settings: &Settings) -> Result<(), Failure> {
    let items = settings.number("ITEMS", 20_000, 1_000)?;
    let batch = settings.number("BATCH", 100, 100)?;
    let connections = settings.number("CONNECTIONS", 4, 4)?;
    let jobs = Client::open(&settings.host)?.create(0)?;
    let root = jobs[0].clone();
    println!("ready");
    let adding = Flow::start(&settings.host, plan(Part::Add, items, batch, connections, 0), jobs);
    adding.wait(PATIENCE)?;
    Client::open(&settings.host)?.seal(&root)?;
    println!("added");
    let draining = Flow::start(&settings.host, plan(Part::Drain, items, batch, connections, 0), Vec::new());
    draining.wait(PATIENCE)?;
    completion(settings, &root)?;
    println!("processed");
    draining.stop();
    Ok(())
}

/// The rates of adding and of draining a backlog, in items a second.
struct Backlog {
    added: f64,
    drained: f64,
}

fn backlog(settings: &Settings, items: u64, keys: u64) -> Result<Backlog, Failure> {
    let connections = settings.number("CONNECTIONS", 4, 4)?;
    let jobs = Client::open(&settings.host)?.create(0)?;
    let root = jobs[0].clone();
    let begin = Instant::now();
    let adding = Flow::start(&settings.host, plan(Part::Add, items, 500, connections, keys), jobs);
    let added = rate(items, adding.wait(PATIENCE)? - begin);
    adding.stop();
    Client::open(&settings.host)?.seal(&root)?;
    let begin = Instant::now();
    let draining = Flow::start(&settings.host, plan(Part::Drain, items, 500, connections, keys), Vec::new());
    let drained = rate(items, draining.wait(PATIENCE)? - begin);
    completion(settings, &root)?;
    draining.stop();
    Ok(Backlog { added, drained })
}

/// Puts a tree of one job through. Returns the rate from its creation to its completion, in items a second.
fn tree(settings: &Settings, plan: Plan) -> Result<f64, Failure> {
    let items = plan.items;
    let begin = Instant::now();
    let jobs = Client::open(&settings.host)?.create(0)?;
    let root = jobs[0].clone();
    let flow = Flow::start(&settings.host, plan, jobs);
    flow.wait(PATIENCE)?;
    Client::open(&settings.host)?.seal(&root)?;
    let complete = completion(settings, &root)?;
    flow.stop();
    Ok(rate(items, complete - begin))
}

/// Waits until a tree is complete. Returns the time at which the service first said so.
fn completion(settings: &Settings, root: &str) -> Result<Instant, Failure> {
    let mut client = Client::open(&settings.host)?;
    let deadline = Instant::now() + COMPLETION;
    loop {
        if client.status(root)? {
            return Ok(Instant::now());
        }
        if Instant::now() > deadline {
            return Err(Failure::Lost(format!(
                "the tree is not complete {} s after its last item",
                COMPLETION.as_secs()
            )));
        }
        pause(LOOK);
    }
}

fn plan(part: Part, items: u64, batch: u64, connections: u64, keys: u64) -> Plan {
    let connections = usize::try_from(connections).unwrap_or(usize::MAX);
    Plan { part, items, batch, connections, keys, schedule: None }
}
