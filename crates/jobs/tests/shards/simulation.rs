//! A seeded run: clients, workers, carriers that crash, messages that are lost, late and doubled, databases that are away.
//!
//! A carrier reads a message, tells it to the other side, and drops it where it was. Each of the three may happen late, twice or never,
//! also long after others have gone on. The checker knows the order in which tickets were taken, and looks at each start of an item.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use hostler_jobs::shards::{Answer, Grant, Want};

use crate::port::{Db, Item, Port};

/// The most messages that may come again.
const ECHOES: usize = 12;

/// A message between two databases.
#[derive(Clone, Debug)]
enum Message {
    Wants { from: Db, home: Db, wants: Vec<Want> },
    WantsTaken { from: Db, wants: Vec<Want> },
    Grants { home: Db, holder: Db, grants: Vec<Grant> },
    Answers { home: Db, from: Db, answers: Vec<Answer> },
    Returned { home: Db, from: Db, answers: Vec<Answer> },
    ReturnTaken { from: Db, answers: Vec<Answer> },
}

impl Message {
    /// The database at which it arrives.
    fn target(&self) -> Db {
        match self {
            Message::Wants { home, .. } | Message::Answers { home, .. } | Message::Returned { home, .. } => *home,
            Message::WantsTaken { from, .. } | Message::ReturnTaken { from, .. } => *from,
            Message::Grants { holder, .. } => *holder,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Running,
    Ended,
    Deleted,
}

#[derive(Clone, Debug)]
struct Known {
    key: String,
    state: State,
    /// The position of its first ticket among all.
    ticket: Option<usize>,
    /// Set once it was made pending again: then it has no place in the order.
    is_retried: bool,
}

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Databases.
    pub databases: usize,
    /// Serialize keys.
    pub keys: usize,
    /// Steps before the faults end.
    pub steps: usize,
}

/// A run and its checker.
pub struct Simulation<P> {
    port: P,
    rng: Rng,
    size: Size,
    /// Set while messages are lost and databases go away.
    is_stormy: bool,
    flight: Vec<Message>,
    /// Messages that were delivered, and may come again, however late.
    echoes: Vec<Message>,
    away: Vec<bool>,
    items: BTreeMap<Item, Known>,
    running: BTreeMap<String, Item>,
    tickets: usize,
    /// Items that ran, to see that a run tests something.
    pub starts: usize,
}

impl<P: Port> Simulation<P> {
    /// Prepares a run.
    pub fn new(port: P, seed: u64, size: Size) -> Simulation<P> {
        Simulation {
            port,
            rng: Rng::with_seed(seed),
            size,
            is_stormy: true,
            flight: Vec::new(),
            echoes: Vec::new(),
            away: vec![false; size.databases],
            items: BTreeMap::new(),
            running: BTreeMap::new(),
            tickets: 0,
            starts: 0,
        }
    }

    /// Runs, then ends all faults and expects all items to end.
    pub async fn run(&mut self) -> Result<(), String> {
        for _ in 0..self.size.steps {
            self.step().await?;
        }
        self.is_stormy = false;
        self.away.fill(false);
        // Each round ends one item of each key at least.
        for _ in 0..self.items.len() + 20 {
            self.calm_round().await?;
            if self.port.leftovers().await.is_empty() && self.flight.is_empty() {
                return Ok(());
            }
        }
        Err(format!("stuck: {:?}", self.port.leftovers().await))
    }

    async fn step(&mut self) -> Result<(), String> {
        let at = self.rng.usize(..self.size.databases);
        let choice = self.rng.u32(..100);
        if choice == 0 {
            self.away[at] = !self.away[at];
        }
        // A database that is away does nothing, and nobody reads it.
        if self.away[at] && choice < 65 {
            return Ok(());
        }
        match choice {
            1..7 => self.create(at).await,
            7..19 => self.claim(at).await?,
            19..28 => self.end_one().await,
            28..30 => self.delete_one().await,
            30..41 => self.retry_one().await,
            41..47 => self.port.forget(at).await,
            47..49 => self.port.end_leases(at).await,
            49..65 => self.read(at).await,
            _ => self.deliver().await,
        }
        Ok(())
    }

    /// Carries everything, and ends every item that runs.
    async fn calm_round(&mut self) -> Result<(), String> {
        for at in 0..self.size.databases {
            self.port.end_leases(at).await;
        }
        for _ in 0..3 {
            for at in 0..self.size.databases {
                self.read_all(at).await;
            }
            while !self.flight.is_empty() {
                self.deliver().await;
            }
        }
        for at in 0..self.size.databases {
            self.claim(at).await?;
        }
        for (_, (at, seq)) in std::mem::take(&mut self.running) {
            self.port.end(at, seq, true).await;
            self.set((at, seq), State::Ended);
        }
        Ok(())
    }

    fn set(&mut self, item: Item, state: State) {
        if let Some(known) = self.items.get_mut(&item) {
            known.state = state;
        }
    }

    async fn create(&mut self, at: Db) {
        let key = format!("k{}", self.rng.usize(..self.size.keys));
        let count = self.rng.usize(1..=3);
        for seq in self.port.create(at, &key, count).await {
            let known = Known { key: key.clone(), state: State::Pending, ticket: None, is_retried: false };
            self.items.insert((at, seq), known);
        }
    }

    async fn claim(&mut self, at: Db) -> Result<(), String> {
        let max = if self.is_stormy { self.rng.usize(1..=3) } else { 1_000 };
        for (key, seq) in self.port.claim(at, max).await {
            self.begin(&key, (at, seq))?;
        }
        Ok(())
    }

    /// Checks the start of an item.
    fn begin(&mut self, key: &str, item: Item) -> Result<(), String> {
        self.starts += 1;
        if let Some(other) = self.running.insert(key.to_owned(), item) {
            return Err(format!("{other:?} and {item:?} of {key} run at once"));
        }
        self.set(item, State::Running);
        let known = self.items.get(&item).ok_or_else(|| format!("{item:?} was never created"))?;
        if known.is_retried {
            return Ok(());
        }
        let Some(ticket) = known.ticket else { return Err(format!("{item:?} of {key} runs without a ticket")) };
        let earlier = self.items.iter().find(|(_, other)| {
            other.key == key
                && !other.is_retried
                && other.ticket.is_some_and(|own| own < ticket)
                && matches!(other.state, State::Pending | State::Running)
        });
        match earlier {
            Some((other, _)) => Err(format!("{item:?} of {key} runs before {other:?}, whose ticket is older")),
            None => Ok(()),
        }
    }

    async fn end_one(&mut self) {
        let running: Vec<Item> = self.running.values().copied().filter(|(at, _)| !self.away[*at]).collect();
        let Some((at, seq)) = self.rng.choice(running) else { return };
        let is_final = self.rng.u32(..4) > 0;
        self.port.end(at, seq, is_final).await;
        self.running.retain(|_, item| *item != (at, seq));
        self.set((at, seq), if is_final { State::Ended } else { State::Pending });
    }

    fn pick(&mut self, wanted: impl Fn(State) -> bool) -> Option<Item> {
        let fitting = self.items.iter().filter(|((at, _), known)| wanted(known.state) && !self.away[*at]);
        let fitting: Vec<Item> = fitting.map(|(item, _)| *item).collect();
        self.rng.choice(fitting)
    }

    async fn delete_one(&mut self) {
        let Some((at, seq)) = self.pick(|state| matches!(state, State::Pending | State::Running)) else { return };
        self.port.delete(at, seq).await;
        self.running.retain(|_, item| *item != (at, seq));
        self.set((at, seq), State::Deleted);
    }

    async fn retry_one(&mut self) {
        let Some((at, seq)) = self.pick(|state| state == State::Ended) else { return };
        self.port.retry(at, seq).await;
        if let Some(known) = self.items.get_mut(&(at, seq)) {
            (known.state, known.is_retried) = (State::Pending, true);
        }
    }

    /// Reads one kind of message of a database.
    async fn read(&mut self, at: Db) {
        let other = self.rng.usize(..self.size.databases);
        match self.rng.u32(..4) {
            0 => self.read_wants(at, other).await,
            1 => self.read_returned(at, other).await,
            2 => self.port.grant_keys(at).await,
            _ => self.read_grants(at, other).await,
        }
    }

    async fn read_all(&mut self, at: Db) {
        self.port.grant_keys(at).await;
        for other in 0..self.size.databases {
            self.read_wants(at, other).await;
            self.read_returned(at, other).await;
            self.read_grants(at, other).await;
        }
    }

    async fn read_wants(&mut self, from: Db, home: Db) {
        let wants = self.port.wants(from, home).await;
        if !wants.is_empty() {
            self.flight.push(Message::Wants { from, home, wants });
        }
    }

    async fn read_returned(&mut self, from: Db, home: Db) {
        let answers = self.port.returned(from, home).await;
        if !answers.is_empty() {
            self.flight.push(Message::Returned { home, from, answers });
        }
    }

    async fn read_grants(&mut self, home: Db, holder: Db) {
        let grants = self.port.due_grants(home, holder).await;
        if !grants.is_empty() {
            self.flight.push(Message::Grants { home, holder, grants });
        }
    }

    /// Delivers any message. In a storm it may be lost, or come again much later.
    async fn deliver(&mut self) {
        if self.is_stormy && !self.echoes.is_empty() && self.rng.u32(..3) == 0 {
            let number = self.rng.usize(..self.echoes.len());
            self.flight.push(self.echoes.swap_remove(number));
        }
        if self.flight.is_empty() {
            return;
        }
        let number = self.rng.usize(..self.flight.len());
        let message = self.flight.swap_remove(number);
        if self.is_stormy {
            if self.away[message.target()] || self.rng.u32(..8) == 0 {
                return;
            }
            // Few, and mostly those that can do most harm when they come late.
            let odds = if matches!(message, Message::Grants { .. }) { 2 } else { 8 };
            if self.rng.u32(..odds) == 0 {
                self.echoes.push(message.clone());
            }
            if self.echoes.len() > ECHOES {
                self.echoes.swap_remove(self.rng.usize(..=ECHOES));
            }
        }
        match message {
            Message::Wants { from, home, wants } => {
                self.port.register(home, from, &wants).await;
                self.note_tickets(from, &wants);
                self.flight.push(Message::WantsTaken { from, wants });
            }
            Message::WantsTaken { from, wants } => self.port.drop_wants(from, &wants).await,
            Message::Grants { home, holder, grants } => {
                let answers = self.port.open_keys(holder, home, &grants).await;
                self.flight.push(Message::Answers { home, from: holder, answers });
            }
            Message::Answers { home, from, answers } => self.port.answer(home, from, &answers).await,
            Message::Returned { home, from, answers } => {
                self.port.answer(home, from, &answers).await;
                self.flight.push(Message::ReturnTaken { from, answers });
            }
            Message::ReturnTaken { from, answers } => self.port.note_told(from, &answers).await,
        }
    }

    fn note_tickets(&mut self, from: Db, wants: &[Want]) {
        let mut met = BTreeSet::new();
        for want in wants.iter().filter(|want| met.insert(want.seq)) {
            let Some(known) = self.items.get_mut(&(from, want.seq)) else { continue };
            if known.ticket.is_none() {
                self.tickets += 1;
                known.ticket = Some(self.tickets);
            }
        }
    }
}
