//! The protocol of serialize keys across databases as a pure state machine. `src/shards/*.sql` is the same over tables.
//!
//! A database asks the key's home for a ticket for each item. The home grants the key to the database of the first ticket, up to the
//! last ticket before one of another database. The holder runs its items up to that one, then returns the key. A grant has a number,
//! its fence; a database takes none that is not above all it has seen of the key, or has forgotten.

use std::collections::{BTreeMap, BTreeSet};

use hostler_jobs::shards::route::home;
use hostler_jobs::shards::{Answer, Grant, Want};

use crate::port::{Db, Port};

/// A fault that a simulation has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A holder runs all its items, also those after the grant, before it returns the key.
    IgnoresLimit,
    /// A database takes grants that are not newer than those it has seen.
    TakesOldGrants,
    /// A database forgets grants, and takes old ones afterwards.
    ForgetsWithoutFloor,
    /// A home takes a word about a grant for one about the key's last grant.
    IgnoresFence,
    /// A home grants a key to the next database when the lease is over.
    GrantsAfterLease,
    /// A home drops all tickets of a database that returns a key, also those taken after the grant.
    DropsLaterTickets,
    /// A home takes one ticket for an item, whatever it asks for later.
    TicketsByItem,
    /// A database returns a key when its last item begins to run.
    ReturnsEarly,
    /// A database drops requests for tickets as soon as they are read.
    DropsWantsEarly,
    /// A home grants a key to the database of the last ticket.
    GrantsLast,
    /// A database takes returned keys for told as soon as they are read. The end of the lease makes up for it.
    TellsEarly,
    /// The same, and no lease ends.
    TellsWithoutLease,
}

#[derive(Clone, Debug)]
struct Ticket {
    number: i64,
    shard: Db,
    want: i64,
    seq: i64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    holder: Option<Db>,
    fence: i64,
    last: i64,
    upto: i64,
    is_due: bool,
    tickets: Vec<Ticket>,
}

#[derive(Clone, Debug)]
struct Held {
    fence: i64,
    upto: i64,
    is_open: bool,
    is_told: bool,
}

/// One database: the home of some keys, and the place of items.
#[derive(Clone, Debug, Default)]
struct Site {
    lines: BTreeMap<String, Line>,
    tickets: i64,
    fences: i64,
    wanted: BTreeMap<Db, Vec<Want>>,
    wants: i64,
    seqs: i64,
    waiting: BTreeSet<(String, i64)>,
    running: BTreeMap<String, i64>,
    ended: BTreeMap<i64, String>,
    held: BTreeMap<String, Held>,
    floors: BTreeMap<Db, i64>,
}

/// All databases.
pub struct Model {
    sites: Vec<Site>,
    planted: Option<Planted>,
}

impl Model {
    /// Makes empty databases.
    pub fn new(count: usize, planted: Option<Planted>) -> Model {
        Model { sites: vec![Site::default(); count], planted }
    }

    fn has(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    fn add(&mut self, at: Db, key: &str, seq: i64) {
        let home = home(key, self.sites.len());
        let site = &mut self.sites[at];
        site.wants += 1;
        site.waiting.insert((key.to_owned(), seq));
        let want = Want { id: site.wants, key: key.to_owned(), seq };
        site.wanted.entry(home).or_default().push(want);
    }

    /// Ends the grant of a key if no item is left under it.
    fn close_ended(&mut self, at: Db, key: &str) {
        let is_early = self.has(Planted::ReturnsEarly);
        let site = &mut self.sites[at];
        let Some(held) = site.held.get_mut(key).filter(|held| held.is_open) else { return };
        let running = site.running.get(key).filter(|_| is_early);
        let left = site.waiting.range((key.to_owned(), 0)..=(key.to_owned(), held.upto));
        if left.filter(|(_, seq)| Some(seq) != running).count() == 0 {
            (held.is_open, held.is_told) = (false, false);
        }
    }

    /// The item of a key that may be given to a worker.
    fn head(&self, at: Db, key: &str) -> Option<i64> {
        let site = &self.sites[at];
        let held = site.held.get(key).filter(|held| held.is_open)?;
        if site.running.contains_key(key) {
            return None;
        }
        let (_, seq) = site.waiting.range((key.to_owned(), 0)..=(key.to_owned(), i64::MAX)).next()?;
        (*seq <= held.upto).then_some(*seq)
    }

    fn key_of(&self, at: Db, seq: i64) -> Option<String> {
        self.sites[at].waiting.iter().find(|(_, other)| *other == seq).map(|(key, _)| key.clone())
    }

    fn remove(&mut self, at: Db, seq: i64) -> Option<String> {
        let key = self.key_of(at, seq)?;
        let site = &mut self.sites[at];
        site.waiting.remove(&(key.clone(), seq));
        if site.running.get(&key) == Some(&seq) {
            site.running.remove(&key);
        }
        self.close_ended(at, &key);
        Some(key)
    }

    fn open(&mut self, at: Db, home: Db, grant: &Grant) -> Answer {
        let takes_old = self.has(Planted::TakesOldGrants);
        let upto = if self.has(Planted::IgnoresLimit) { i64::MAX } else { grant.upto };
        let site = &mut self.sites[at];
        let floor = site.floors.get(&home).copied().unwrap_or_default();
        let seen = site.held.get(&grant.key).map_or(0, |held| held.fence);
        if grant.fence > floor.max(seen) || takes_old {
            let held = Held { fence: grant.fence, upto, is_open: true, is_told: false };
            site.held.insert(grant.key.clone(), held);
        }
        self.close_ended(at, &grant.key);
        let word = match self.sites[at].held.get(&grant.key) {
            Some(held) if held.fence == grant.fence && held.is_open => "held",
            Some(held) if held.fence == grant.fence => "done",
            _ => "stale",
        };
        Answer { key: grant.key.clone(), fence: grant.fence, word: word.to_owned() }
    }

    fn note_answer(&mut self, home: Db, from: Db, answer: &Answer) {
        let (any_fence, drops_later) = (self.has(Planted::IgnoresFence), self.has(Planted::DropsLaterTickets));
        let Some(line) = self.sites[home].lines.get_mut(&answer.key) else { return };
        if line.holder != Some(from) || line.fence != answer.fence && !any_fence {
            return;
        }
        match answer.word.as_str() {
            "held" => line.is_due = false,
            "done" => {
                let last = line.last;
                line.tickets.retain(|ticket| ticket.shard != from || ticket.number > last && !drops_later);
                line.holder = None;
            }
            _ => line.holder = None,
        }
        if line.holder.is_none() && line.tickets.is_empty() {
            self.sites[home].lines.remove(&answer.key);
        }
    }
}

/// The run of tickets that a grant covers: the database, the last ticket, the last item.
fn run(tickets: &[Ticket], from_last: bool) -> Option<(Db, i64, i64)> {
    let first = if from_last { tickets.last()? } else { tickets.first()? };
    let covered = tickets.iter().skip_while(|ticket| from_last && ticket.number != first.number);
    let covered: Vec<&Ticket> = covered.take_while(|ticket| ticket.shard == first.shard).collect();
    let last = covered.iter().map(|ticket| ticket.number).max()?;
    let upto = covered.iter().map(|ticket| ticket.seq).max()?;
    Some((first.shard, last, upto))
}

impl Port for Model {
    async fn create(&mut self, at: Db, key: &str, count: usize) -> Vec<i64> {
        (0..count)
            .map(|_| {
                self.sites[at].seqs += 1;
                let seq = self.sites[at].seqs;
                self.add(at, key, seq);
                seq
            })
            .collect()
    }

    async fn claim(&mut self, at: Db, max: usize) -> Vec<(String, i64)> {
        let keys: BTreeSet<String> = self.sites[at].waiting.iter().map(|(key, _)| key.clone()).collect();
        let mut given = Vec::new();
        for key in keys {
            if given.len() < max
                && let Some(seq) = self.head(at, &key)
            {
                self.sites[at].running.insert(key.clone(), seq);
                self.close_ended(at, &key);
                given.push((key, seq));
            }
        }
        given
    }

    async fn end(&mut self, at: Db, seq: i64, is_final: bool) {
        if is_final {
            if let Some(key) = self.remove(at, seq) {
                self.sites[at].ended.insert(seq, key);
            }
        } else if let Some(key) = self.key_of(at, seq) {
            self.sites[at].running.remove(&key);
        }
    }

    async fn delete(&mut self, at: Db, seq: i64) {
        self.remove(at, seq);
    }

    async fn retry(&mut self, at: Db, seq: i64) {
        if let Some(key) = self.sites[at].ended.remove(&seq) {
            self.add(at, &key, seq);
        }
    }

    async fn wants(&mut self, at: Db, home: Db) -> Vec<Want> {
        let wants = self.sites[at].wanted.get(&home).cloned().unwrap_or_default();
        if self.has(Planted::DropsWantsEarly) {
            self.sites[at].wanted.remove(&home);
        }
        wants
    }

    async fn register(&mut self, home: Db, from: Db, wants: &[Want]) {
        let by_item = self.has(Planted::TicketsByItem);
        let site = &mut self.sites[home];
        for want in wants {
            let line = site.lines.entry(want.key.clone()).or_default();
            let is_same = |ticket: &Ticket| ticket.want == want.id || by_item && ticket.seq == want.seq;
            if !line.tickets.iter().any(|ticket| ticket.shard == from && is_same(ticket)) {
                site.tickets += 1;
                line.tickets.push(Ticket { number: site.tickets, shard: from, want: want.id, seq: want.seq });
            }
        }
    }

    async fn drop_wants(&mut self, at: Db, wants: &[Want]) {
        for list in self.sites[at].wanted.values_mut() {
            list.retain(|want| !wants.contains(want));
        }
    }

    async fn grant_keys(&mut self, home: Db) {
        let from_last = self.has(Planted::GrantsLast);
        let site = &mut self.sites[home];
        for line in site.lines.values_mut().filter(|line| line.holder.is_none()) {
            if let Some((shard, last, upto)) = run(&line.tickets, from_last) {
                site.fences += 1;
                (line.holder, line.fence, line.last, line.upto) = (Some(shard), site.fences, last, upto);
                line.is_due = true;
            }
        }
    }

    async fn due_grants(&mut self, home: Db, holder: Db) -> Vec<Grant> {
        let lines = self.sites[home].lines.iter().filter(|(_, line)| line.holder == Some(holder) && line.is_due);
        lines.map(|(key, line)| Grant { key: key.clone(), fence: line.fence, upto: line.upto }).collect()
    }

    async fn open_keys(&mut self, at: Db, home: Db, grants: &[Grant]) -> Vec<Answer> {
        grants.iter().map(|grant| self.open(at, home, grant)).collect()
    }

    async fn returned(&mut self, at: Db, home: Db) -> Vec<Answer> {
        let (count, tells_early) =
            (self.sites.len(), self.has(Planted::TellsEarly) || self.has(Planted::TellsWithoutLease));
        let mut returned = Vec::new();
        for (key, held) in &mut self.sites[at].held {
            if !held.is_open && !held.is_told && hostler_jobs::shards::route::home(key, count) == home {
                returned.push(Answer { key: key.clone(), fence: held.fence, word: "done".to_owned() });
                held.is_told = tells_early;
            }
        }
        returned
    }

    async fn answer(&mut self, home: Db, from: Db, answers: &[Answer]) {
        for answer in answers {
            self.note_answer(home, from, answer);
        }
    }

    async fn note_told(&mut self, at: Db, answers: &[Answer]) {
        for answer in answers {
            if let Some(held) = self.sites[at].held.get_mut(&answer.key)
                && held.fence == answer.fence
                && !held.is_open
            {
                held.is_told = true;
            }
        }
    }

    async fn forget(&mut self, at: Db) {
        let (count, keeps_floor) = (self.sites.len(), self.has(Planted::ForgetsWithoutFloor));
        let site = &mut self.sites[at];
        let floors = &mut site.floors;
        site.held.retain(|key, held| {
            let stays = held.is_open || !held.is_told;
            if !stays && !keeps_floor {
                let floor = floors.entry(home(key, count)).or_default();
                *floor = held.fence.max(*floor);
            }
            stays
        });
    }

    async fn end_leases(&mut self, home: Db) {
        if self.has(Planted::TellsWithoutLease) {
            return;
        }
        let passes_on = self.has(Planted::GrantsAfterLease);
        for line in self.sites[home].lines.values_mut().filter(|line| line.holder.is_some()) {
            line.is_due = true;
            if passes_on {
                let last = line.last;
                line.tickets.retain(|ticket| ticket.number > last);
                line.holder = None;
            }
        }
    }

    async fn leftovers(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (at, site) in self.sites.iter().enumerate() {
            left.extend(site.waiting.iter().map(|(key, seq)| format!("item {seq} of {key} waits in {at}")));
            left.extend(site.lines.keys().map(|key| format!("{at} has a line of {key}")));
            let open = site.held.iter().filter(|(_, held)| held.is_open || !held.is_told);
            left.extend(open.map(|(key, _)| format!("{at} has not returned {key}")));
        }
        left
    }
}
