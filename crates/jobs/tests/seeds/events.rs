//! Draws events for a sequential run.

use std::time::Duration;

use serde_json::{Value, json};

use crate::call::{Answer, Assignment, Event, Item, Job, Operation};
use crate::model::Model;
use crate::scenario::{Generator, KINDS};

/// Draws events about what is known so far.
pub struct Chooser {
    generator: Generator,
    /// Jobs, each with true if it has a feed.
    jobs: Vec<(Job, bool)>,
    items: Vec<Item>,
    assignments: Vec<(Assignment, Item)>,
    events: Vec<Event>,
    tokens: usize,
    trees: usize,
}

impl Chooser {
    /// Returns the draws of a seed.
    pub fn new(seed: u64) -> Self {
        let (jobs, items, assignments, events) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { generator: Generator::new(seed), jobs, items, assignments, events, tokens: 0, trees: 0 }
    }

    /// Returns true if time passes after an event.
    pub fn lets_time_pass(&mut self) -> bool {
        self.generator.percent(25)
    }

    /// Draws a duration.
    pub fn duration(&mut self) -> Duration {
        let seconds = [10, 30, 50, 100, 185, 400];
        Duration::from_secs(*self.generator.rng.choice(&seconds).unwrap())
    }

    /// Learns what an event created.
    pub fn learn(&mut self, operation: &Operation, answer: &Answer) {
        match (operation, answer) {
            (Operation::Create { node, .. }, Answer::Created { jobs, items }) => {
                let feeds = node.all().into_iter().map(|node| node.feed.is_some());
                self.jobs.extend(jobs.iter().copied().zip(feeds));
                self.items.extend(items);
                self.trees += 1;
            }
            (_, Answer::Added(items)) => self.items.extend(items),
            (_, Answer::Assigned(assigned)) => {
                self.assignments.extend(assigned.iter().map(|one| (one.assignment, one.item)))
            }
            (_, Answer::Callbacks(due)) => self.events.extend(due.iter().map(|(event, _)| *event)),
            _ => {}
        }
    }

    /// Draws the next event.
    pub fn next(&mut self, model: &Model) -> Operation {
        let draw = self.generator.rng.u32(..100);
        if self.jobs.is_empty() || draw < 10 && self.trees < 4 {
            return self.create();
        }
        let (job, is_fed) = *self.generator.rng.choice(&self.jobs).unwrap();
        match draw {
            0..20 => {
                let size = self.generator.rng.usize(1..=3);
                Operation::Add { job, items: self.generator.items(size), token: self.token() }
            }
            20..26 if !is_fed => Operation::Seal { job },
            26..28 => Operation::Delete { job },
            28..48 => self.claim(),
            48..55 if !self.items.is_empty() => {
                Operation::Assign { worker: 1, item: *self.generator.rng.choice(&self.items).unwrap() }
            }
            90..94 => Operation::Callbacks,
            94..96 if !self.events.is_empty() => Operation::Delivered { event: self.events.remove(0) },
            _ => self.end(model),
        }
    }

    fn create(&mut self) -> Operation {
        let depth = self.generator.rng.usize(1..=4);
        Operation::Create { node: self.generator.tree_node(depth), token: self.token() }
    }

    fn token(&mut self) -> usize {
        self.tokens += 1;
        self.tokens
    }

    /// Draws a claim whose answer does not depend on the order of types.
    fn claim(&mut self) -> Operation {
        let rng = &mut self.generator.rng;
        if rng.u32(..4) == 0 {
            return Operation::Claim { worker: 2, kinds: (0..KINDS).collect(), max: 100 };
        }
        Operation::Claim { worker: rng.usize(3..5), kinds: vec![rng.usize(..KINDS)], max: rng.usize(1..=3) }
    }

    /// Draws an assignment: mostly a live one, sometimes one that ended while the item has another, sometimes any.
    fn assignment(&mut self, model: &Model) -> Option<Assignment> {
        let live = model.live();
        let is_replaced = |one: &&(Assignment, Item)| live.iter().any(|other| other.1 == one.1 && other.0 != one.0);
        let replaced: Vec<(Assignment, Item)> = self.assignments.iter().filter(is_replaced).copied().collect();
        let rng = &mut self.generator.rng;
        let pool = match rng.u32(..100) {
            0..20 if !replaced.is_empty() => &replaced,
            0..80 => &live,
            _ => &self.assignments,
        };
        rng.choice(pool).map(|(assignment, _)| *assignment)
    }

    fn result(&mut self, assignment: Assignment) -> Value {
        if self.generator.percent(10) { Value::Null } else { json!({ "r": assignment }) }
    }

    /// Draws an end of an assignment, or a heartbeat.
    fn end(&mut self, model: &Model) -> Operation {
        let Some(assignment) = self.assignment(model) else { return self.claim() };
        let (result, second) = (self.result(assignment), self.assignment(model).filter(|other| *other != assignment));
        let pair: Vec<Assignment> = [Some(assignment), second].into_iter().flatten().collect();
        match self.generator.rng.u32(..100) {
            0..40 => Operation::Succeed { assignment, result },
            40..70 => {
                let retry_in = self.generator.percent(60).then(|| self.generator.rng.i64(0..4) * 45_000);
                Operation::Fail { assignment, retry_in, worker_clock: 0 }
            }
            70..78 => self.settle(model, pair),
            78..92 => Operation::Heartbeat { assignments: pair, worker_clock: 0 },
            _ => Operation::Release { assignments: pair },
        }
    }

    /// Settles two assignments at once, in the order of their items.
    fn settle(&mut self, model: &Model, mut pair: Vec<Assignment>) -> Operation {
        let item = |one: &Assignment| model.live().iter().find(|(live, _)| live == one).map(|(_, item)| *item);
        pair.sort_by_key(item);
        let failures = if self.generator.percent(40) { pair.split_off(1) } else { Vec::new() };
        let successes = pair.into_iter().map(|one| (one, self.result(one))).collect();
        Operation::Settle { successes, failures }
    }
}
