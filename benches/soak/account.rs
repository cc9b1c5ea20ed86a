//! Accounting of messages: sent, done by guests, and dead-lettered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::clock::Clock;
use crate::load::DONE;
use crate::world::{World, lock};

/// Maximum time to empty the dead-letter queues.
const COLLECTING: Duration = Duration::from_secs(120);

/// Maximum time in seconds between a disturbance and the end of a delivery, for the disturbance to explain a repetition.
const MARGIN: f64 = 2.0;

/// Maximum time in seconds between a disturbance and the end of a message, for the disturbance to explain that the message was
/// sent twice. The sender is a consumer that replies. It learns late that the answer to its first attempt is lost, and receives
/// are delayed after failures.
const SENT_AGAIN: f64 = 30.0;

/// Record of a guest that did a message: the body, the delivery, and the time.
#[derive(Debug, Clone)]
pub struct Mark {
    pub body: String,
    /// Attempt and id of the message.
    pub delivery: String,
    /// Time in seconds since the start of the run.
    pub at: f64,
}

/// Records collected during the run.
#[derive(Debug, Default)]
pub struct Ledger {
    pub sent: BTreeSet<String>,
    pub done: Vec<Mark>,
}

impl Ledger {
    /// Records bodies that are about to be sent.
    pub fn sent(&mut self, bodies: &[String]) {
        self.sent.extend(bodies.iter().cloned());
    }
}

/// Accounting of a finished run.
#[derive(Debug, Default)]
pub struct Account {
    pub sent: usize,
    /// Numbers of bodies that were done and dead-lettered.
    pub done: usize,
    pub dead: usize,
    /// Number of messages that are still queued.
    pub queued: u64,
    /// Bodies that were neither done nor dead-lettered.
    pub lost: Vec<String>,
    /// Bodies that ended in the wrong place, or were never sent.
    pub misplaced: Vec<String>,
    /// Numbers of repeated deliveries, by the disturbance that explains them.
    pub repeated: BTreeMap<&'static str, usize>,
    /// Repeated deliveries without an explanation.
    pub unexplained: Vec<Mark>,
    /// Number of additional copies of a body in the dead-letter queues.
    pub dead_copies: usize,
    /// Bodies of a FIFO group that were done before an earlier body.
    pub disordered: Vec<String>,
    /// Number of done bodies, by the first letter of the body.
    pub letters: BTreeMap<char, usize>,
}

impl Mark {
    /// Returns the id of the message.
    fn message(&self) -> &str {
        self.delivery.split_once('.').map_or(&*self.delivery, |(_, message)| message)
    }
}

/// Collects and removes the complete files of guests in a folder.
pub fn harvest(folder: &Path, clock: Clock) -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // An incomplete file is still being written by its guest.
        let Ok(nanoseconds) = <[u8; 8]>::try_from(fs::read(&path)?) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("a file without a name")?;
        let (body, delivery) = name.split_once('.').ok_or("no file of a guest")?;
        let at = clock.of_guest(u64::from_le_bytes(nanoseconds));
        marks.push(Mark { body: body.to_owned(), delivery: delivery.to_owned(), at });
        fs::remove_file(&path)?;
    }
    Ok(marks)
}

/// Accounts for every message. No host may run any more.
pub fn settle(world: &World) -> Result<Account> {
    let queued = world.left()?;
    world.collect_dead_letters(COLLECTING)?;
    let mut ledger = lock(&world.ledger)?;
    let late = harvest(&world.path("marks"), world.clock)?;
    ledger.done.extend(late);
    ledger.done.sort_by(|a, b| a.at.total_cmp(&b.at));
    let dead_marks = harvest(&world.path("dead"), world.clock)?;
    let dead: BTreeSet<&str> = dead_marks.iter().map(|mark| &*mark.body).collect();

    let mut account = Account { sent: ledger.sent.len(), dead: dead.len(), queued, ..Account::default() };
    account.dead_copies = dead_marks.len() - dead.len();
    let mut first = BTreeMap::new();
    for mark in &ledger.done {
        let Some(earlier) = first.insert(&*mark.body, mark) else { continue };
        match explanation(world, earlier, mark)? {
            Some(name) => *account.repeated.entry(name).or_default() += 1,
            None => account.unexplained.extend([earlier.clone(), mark.clone()]),
        }
    }
    account.done = first.len();
    let is_done = |body: &str| body.starts_with(|letter| DONE.contains(letter));
    let wrong_done = first.keys().filter(|body| !is_done(body) || !ledger.sent.contains(**body));
    let wrong_dead = dead.iter().filter(|body| is_done(body) || !ledger.sent.contains(**body));
    account.misplaced = wrong_done.chain(wrong_dead).map(|body| (*body).to_owned()).collect();
    let nowhere = |body: &&String| !first.contains_key(&***body) && !dead.contains(&***body);
    account.lost = ledger.sent.iter().filter(nowhere).cloned().collect();
    account.disordered = disorder(&ledger.done);
    for letter in first.keys().chain(&dead).filter_map(|body| body.chars().next()) {
        *account.letters.entry(letter).or_default() += 1;
    }
    Ok(account)
}

/// Returns the disturbance that explains a repetition. Either the first delivery could not be acked in time, or the reply was
/// sent again, so that a different message was repeated.
fn explanation(world: &World, done: &Mark, again: &Mark) -> Result<Option<&'static str>> {
    let events = lock(&world.events)?;
    let is_another = done.message() != again.message();
    let after = if is_another { SENT_AGAIN } else { MARGIN };
    let near = |start: f64, end: f64| start - MARGIN <= done.at && done.at <= end + after;
    Ok(events.iter().find(|event| near(event.start, event.end)).map(|event| event.kind.name()))
}

/// Returns bodies whose first mark comes after the mark of a later body in their group. `marks` must be in chronological order.
fn disorder(marks: &[Mark]) -> Vec<String> {
    let mut latest: BTreeMap<&str, &str> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut disordered = Vec::new();
    for body in marks.iter().map(|mark| &*mark.body).filter(|body| body.starts_with('o')) {
        let (group, _) = body.split_at_checked(2).unwrap_or((body, ""));
        if seen.insert(body) {
            let last = latest.entry(group).or_insert(body);
            if body < *last {
                disordered.push(body.to_owned());
            }
            *last = (*last).max(body);
        }
    }
    disordered
}
