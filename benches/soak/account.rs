//! The accounts: what was sent, what the guests left, and what the dead-letter queues hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::clock::Clock;
use crate::load::DONE;
use crate::world::{World, lock};

/// How long the dead-letter queues may take to be emptied.
const COLLECTING: Duration = Duration::from_secs(120);

/// How long before and after a disturbance a delivery may have ended that was repeated because of it, in seconds.
const MARGIN: f64 = 2.0;

/// How long after a disturbance a message may be done that was sent twice because of it, in seconds: its sender, a consumer that
/// replies, learns late that the answer to its first attempt is lost, and the receives rest after failures.
const SENT_AGAIN: f64 = 30.0;

/// That a guest did a message: its body, which delivery, and when.
#[derive(Debug, Clone)]
pub struct Mark {
    pub body: String,
    /// Attempt and id of the message.
    pub delivery: String,
    /// Seconds since the run began.
    pub at: f64,
}

/// What is known while the run goes on.
#[derive(Debug, Default)]
pub struct Ledger {
    pub sent: BTreeSet<String>,
    pub done: Vec<Mark>,
}

impl Ledger {
    /// These are being sent.
    pub fn sent(&mut self, bodies: &[String]) {
        self.sent.extend(bodies.iter().cloned());
    }
}

/// The accounts of a run that is over.
#[derive(Debug, Default)]
pub struct Account {
    pub sent: usize,
    /// Bodies that were done, and that were dead-lettered.
    pub done: usize,
    pub dead: usize,
    /// Messages that are still queued.
    pub queued: u64,
    /// Bodies that are nowhere.
    pub lost: Vec<String>,
    /// Bodies that ended where they were not to, or were never sent.
    pub misplaced: Vec<String>,
    /// Deliveries that did again what was done, by the disturbance that explains each.
    pub repeated: BTreeMap<&'static str, usize>,
    /// Those that nothing explains.
    pub unexplained: Vec<Mark>,
    /// Copies in the dead-letter queues beyond the first of a body.
    pub dead_copies: usize,
    /// Bodies of a FIFO group that were done before one that was sent earlier.
    pub disordered: Vec<String>,
    /// What was done, by the first letter of the body.
    pub letters: BTreeMap<char, usize>,
}

impl Mark {
    /// The id of its message.
    fn message(&self) -> &str {
        self.delivery.split_once('.').map_or(&*self.delivery, |(_, message)| message)
    }
}

/// Takes the complete files of guests out of a folder.
pub fn harvest(folder: &Path, clock: Clock) -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // A guest that is writing it has not yet come to its end.
        let Ok(nanoseconds) = <[u8; 8]>::try_from(fs::read(&path)?) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("a file without a name")?;
        let (body, delivery) = name.split_once('.').ok_or("no file of a guest")?;
        let at = clock.of_guest(u64::from_le_bytes(nanoseconds));
        marks.push(Mark { body: body.to_owned(), delivery: delivery.to_owned(), at });
        fs::remove_file(&path)?;
    }
    Ok(marks)
}

/// Accounts for every message; no host runs any more.
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

/// The disturbance that kept this delivery, which was done, from being acked in time; or for which the reply was sent again, so
/// that it was another message that was done again.
fn explanation(world: &World, done: &Mark, again: &Mark) -> Result<Option<&'static str>> {
    let events = lock(&world.events)?;
    let is_another = done.message() != again.message();
    let after = if is_another { SENT_AGAIN } else { MARGIN };
    let near = |start: f64, end: f64| start - MARGIN <= done.at && done.at <= end + after;
    Ok(events.iter().find(|event| near(event.start, event.end)).map(|event| event.kind.name()))
}

/// Bodies whose first mark comes after that of a later one of their group. The marks are in the order of time.
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
