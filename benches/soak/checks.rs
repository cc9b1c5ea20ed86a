//! Requirements at the end of a run.

use rustix::process::Signal;

use crate::account::Account;
use crate::faults::{Event, Kind};
use crate::load::DONE;
use crate::sample::{Process, Sample, percentile};
use crate::world::{Driver, World};

/// Maximum ratio of a host's resident memory in its last quarter to that in its second quarter. For a host that lived longer than
/// half an hour, the third quarter replaces the second.
const GROWTH: f64 = 1.10;

/// Maximum growth in the number of descriptors, for a host that lived longer than a quarter of an hour, and for others. A shorter
/// life may end with connections of a burst.
const DESCRIPTORS: usize = 8;
const DESCRIPTORS_AFTER_A_BURST: usize = 16;

/// Minimum life of a host that is judged, in samples of one second.
const JUDGED: usize = 120;

/// Maximum time in seconds after a recovery during which the verdict may still be unhealthy.
const VERDICT: f64 = 3.0;

/// Time in samples during which the memory of a host may grow. A consumer on SQS remembers finished messages for 15 minutes.
const FILLED: usize = 15 * 60;

/// Life of a host under load.
#[derive(Debug)]
pub struct Life {
    /// Start and end, in seconds since the start of the run.
    pub from: f64,
    pub to: f64,
    /// Medians of an early quarter (the second or third) and of the last quarter. `None`: the life was too short.
    pub quarters: Option<(Medians, Medians)>,
}

/// Medians of the values from the kernel. For descriptors, the 90th percentile, because few are open while connections are cut.
#[derive(Debug, Clone, Copy)]
pub struct Medians {
    pub rss: f64,
    pub pss: f64,
    pub anonymous: f64,
    pub descriptors: usize,
    pub threads: usize,
}

/// Returns all failed requirements.
pub fn all(world: &World, account: &Account) -> Vec<String> {
    let (Ok(samples), Ok(events)) = (world.samples.lock(), world.events.lock()) else {
        return vec!["a thread panicked".to_owned()];
    };
    let mut failures = of_account(world.driver, account);
    failures.extend(of_memory(&lives(&samples, world.clock.length)));
    failures.extend(events.iter().filter_map(of_exit));
    let wrong: Vec<f64> = unhealthy(&samples, &events).map(|sample| sample.at.round()).collect();
    if !wrong.is_empty() {
        failures.push(format!("unhealthy with nothing disturbed, at these seconds: {wrong:?}"));
    }
    if let Ok(tally) = world.tally.lock()
        && let Some(first) = tally.surprises.first()
    {
        failures.push(format!("{} times a handler failed that was not to, first: {first}", tally.surprises.len()));
    }
    let kinds = match world.driver {
        Driver::Embedded => vec![Kind::Restart, Kind::Kill, Kind::Stop, Kind::Lock],
        Driver::Sqs => vec![Kind::Restart, Kind::Kill, Kind::Stop, Kind::Cut, Kind::Freeze],
    };
    // A short run need not contain every kind of fault.
    if world.clock.length >= 600.0 {
        let missing = kinds.iter().filter(|kind| !events.iter().any(|event| event.kind == **kind));
        failures.extend(missing.map(|kind| format!("this seed makes no fault of the kind: {}", kind.name())));
    }
    failures
}

fn of_account(driver: Driver, account: &Account) -> Vec<String> {
    let Account { sent, done, dead, queued, dead_copies, .. } = *account;
    let mut failures = Vec::new();
    let mut check = |holds: bool, text: String| {
        if !holds {
            failures.push(text);
        }
    };
    let shown = |bodies: &[String]| format!("{} ({})", bodies.len(), bodies.get(..5).unwrap_or(bodies).join(" "));
    let total = done + dead + queued as usize;
    check(
        total == sent,
        format!("{done} done + {dead} dead-lettered + {queued} queued = {total}, and {sent} were sent"),
    );
    check(account.lost.is_empty(), format!("lost: {}", shown(&account.lost)));
    check(account.misplaced.is_empty(), format!("at the wrong end: {}", shown(&account.misplaced)));
    check(account.disordered.is_empty(), format!("done before an earlier one: {}", shown(&account.disordered)));
    let repeats = account.unexplained.iter().map(|mark| format!("{}.{} at {:.3}", mark.body, mark.delivery, mark.at));
    let repeats: Vec<String> = repeats.collect();
    check(repeats.is_empty(), format!("done twice with nothing disturbed: {}", shown(&repeats)));
    // In the embedded queue, a move is one transaction, so no second copy may exist.
    let copied = driver == Driver::Embedded && dead_copies > 0;
    check(!copied, format!("{dead_copies} second copies in dead-letter queues"));
    let missing: String = DONE.chars().chain("dtlm".chars()).filter(|c| !account.letters.contains_key(c)).collect();
    check(missing.is_empty(), format!("nothing was sent of the kinds {missing}"));
    failures
}

fn of_memory(lives: &[Life]) -> Vec<String> {
    let judged = lives.iter().filter_map(|life| life.quarters.map(|quarters| (life, quarters)));
    let mut failures: Vec<String> = judged
        .clone()
        .flat_map(|(life, (early, late))| {
            let which = format!("the host from {:.0} s to {:.0} s", life.from, life.to);
            let rss = (late.rss > early.rss * GROWTH)
                .then(|| format!("{which}: its memory grew from {:.0} to {:.0} bytes", early.rss, late.rss));
            let long = life.to - life.from > FILLED as f64;
            let more = if long { DESCRIPTORS } else { DESCRIPTORS_AFTER_A_BURST };
            let descriptors = (late.descriptors > early.descriptors + more)
                .then(|| format!("{which}: its descriptors grew from {} to {}", early.descriptors, late.descriptors));
            rss.into_iter().chain(descriptors)
        })
        .collect();
    if judged.count() == 0 {
        failures.push(format!("no host lived for {JUDGED} s, so nothing can be said about its memory"));
    }
    failures
}

fn of_exit(event: &Event) -> Option<String> {
    let expected = match event.kind {
        Kind::Restart => Some(0),
        Kind::Kill => Some(-Signal::KILL.as_raw()),
        Kind::Stop | Kind::Lock | Kind::Cut | Kind::Freeze => None,
    };
    (event.code != expected)
        .then(|| format!("{} at {:.0} s: the host ended with {:?}", event.kind.name(), event.start, event.code))
}

/// Returns the samples with an unhealthy verdict outside of disturbances.
pub fn unhealthy<'a>(samples: &'a [Sample], events: &'a [Event]) -> impl Iterator<Item = &'a Sample> {
    let disturbed = |at: f64| events.iter().any(|event| event.start - 1.0 <= at && at <= event.recovered + VERDICT);
    samples.iter().filter(move |sample| !sample.healthy && !disturbed(sample.at))
}

/// Returns the lives of the hosts while messages were sent.
pub fn lives(samples: &[Sample], length: f64) -> Vec<Life> {
    let running: Vec<(f64, Process)> = samples
        .iter()
        .take_while(|sample| sample.at <= length)
        .filter_map(|sample| Some((sample.at, sample.process?)))
        .collect();
    running
        .chunk_by(|(_, one), (_, other)| one.pid == other.pid)
        .map(|life| {
            let quarter = life.len() / 4;
            let early = quarter.max(FILLED.min(2 * quarter));
            let part = |from: usize| medians(life.get(from..from + quarter)?);
            let enough = life.len() >= JUDGED;
            let quarters = enough.then(|| part(early).zip(part(life.len() - quarter))).flatten();
            let at = |entry: Option<&(f64, Process)>| entry.map(|(at, _)| *at).unwrap_or_default();
            Life { from: at(life.first()), to: at(life.last()), quarters }
        })
        .collect()
}

fn medians(part: &[(f64, Process)]) -> Option<Medians> {
    let at = |share: f64, value: fn(&Process) -> f64| {
        let mut values: Vec<f64> = part.iter().map(|(_, process)| value(process)).collect();
        values.sort_by(f64::total_cmp);
        percentile(&values, share)
    };
    let median = |value| at(0.5, value);
    Some(Medians {
        rss: median(|process| process.rss as f64)?,
        pss: median(|process| process.pss as f64)?,
        anonymous: median(|process| process.anonymous as f64)?,
        descriptors: at(0.9, |process| process.descriptors as f64)? as usize,
        threads: median(|process| process.threads as f64)? as usize,
    })
}
