//! Scenarios by seed: trees, what producers do to them, and the number of workers and servers.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::call::{NewItem, Node};

/// Number of types of jobs.
pub const KINDS: usize = 3;

/// All that happens in a run, except the draws of the workers.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub trees: Vec<TreePlan>,
    pub workers: usize,
    pub servers: usize,
}

/// A tree, and what its producer does to it, one step after the other. Durations are hundredths of a heartbeat.
#[derive(Clone, Debug)]
pub struct TreePlan {
    pub at: u64,
    pub node: Node,
    pub steps: Vec<Step>,
}

/// A step of a producer.
#[derive(Clone, Debug)]
pub struct Step {
    pub after: u64,
    /// The index of the node in [`Node::all`].
    pub node: usize,
    pub action: Action,
}

/// An action on a job.
#[derive(Clone, Debug)]
pub enum Action {
    Add(Vec<NewItem>),
    Seal,
    Delete,
}

/// Draws scenarios.
pub struct Generator {
    pub rng: Rng,
    payloads: usize,
    jobs: usize,
}

impl Generator {
    /// Returns a generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), payloads: 0, jobs: 0 }
    }

    /// Returns true in some per cent of the calls.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    /// Draws a scenario.
    pub fn scenario(&mut self, seed: u64) -> Scenario {
        let trees = (0..self.rng.usize(1..=4)).map(|_| self.tree()).collect();
        Scenario { seed, trees, workers: self.rng.usize(2..=5), servers: self.rng.usize(1..=3) }
    }

    fn tree(&mut self) -> TreePlan {
        let depth = self.rng.usize(1..=4);
        let node = self.tree_node(depth);
        let steps = (0..self.rng.usize(0..=4)).map(|_| self.step(&node)).collect::<Vec<_>>();
        TreePlan { at: self.rng.u64(..600), node, steps }
    }

    /// Draws a tree.
    pub fn tree_node(&mut self, depth: usize) -> Node {
        self.jobs = 0;
        let mut node = self.node(depth);
        node.feed = None;
        node.callback = self.percent(70);
        node
    }

    /// Draws a job with the jobs below it, up to a depth.
    fn node(&mut self, depth: usize) -> Node {
        self.jobs += 1;
        let children = if depth > 1 && self.jobs < 8 { self.rng.usize(0..=2) } else { 0 };
        let most = self.rng.usize(0..=4);
        Node {
            kind: self.rng.usize(..KINDS),
            dedupe_key: self.percent(15).then_some(self.jobs),
            max_failures: self.rng.usize(0..=2),
            final_stage: self.percent(40),
            sealed: false,
            callback: false,
            feed: self.percent(50).then(|| self.feed()),
            items: self.items(most),
            children: (0..children).map(|_| self.node(depth - 1)).collect(),
        }
        .sealed_sometimes(self)
    }

    /// Draws items.
    pub fn items(&mut self, count: usize) -> Vec<NewItem> {
        (0..count).map(|_| self.item()).collect()
    }

    fn item(&mut self) -> NewItem {
        self.payloads += 1;
        NewItem {
            payload: json!({ "n": self.payloads }),
            dedupe_key: self.percent(20).then(|| self.rng.usize(..3)),
            serialize_key: self.percent(45).then(|| self.rng.usize(..3)),
            priority: if self.percent(30) { self.rng.i16(-2..=2) } else { 0 },
        }
    }

    fn feed(&mut self) -> Value {
        match self.rng.usize(..4) {
            0 => json!("$"),
            1 => json!({ "from": "$.r" }),
            2 => json!({ "from": ["$", 1], "kept": "$payload.n", "n": "text" }),
            _ => json!({ "n": "$.r", "deep": { "all": "$" } }),
        }
    }

    fn step(&mut self, node: &Node) -> Step {
        let count = node.all().len();
        let index = self.rng.usize(..count);
        let size = self.rng.usize(1..=3);
        let is_fed = node.all()[index].feed.is_some();
        let action = match self.rng.u32(..100) {
            0..70 => Action::Add(self.items(size)),
            70..90 if !is_fed => Action::Seal,
            90..100 => Action::Delete,
            _ => Action::Add(self.items(size)),
        };
        Step { after: self.rng.u64(..300), node: index, action }
    }
}

impl Node {
    /// Seals some jobs from the start. A job with a feed has to take items as long as its parent runs.
    fn sealed_sometimes(mut self, generator: &mut Generator) -> Self {
        self.sealed = self.feed.is_none() && generator.percent(30);
        self
    }
}
