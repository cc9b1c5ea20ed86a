//! Calls of the job service: requests and answers, in numbers that stand for ids.
//!
//! Both worlds, the model and the checker speak this language. A number stands for an id of the service.

use serde_json::Value;

/// Milliseconds since the start of a run.
pub type Time = i64;
/// A job.
pub type Job = usize;
/// An item.
pub type Item = usize;
/// An assignment.
pub type Assignment = usize;
/// The event of a callback.
pub type Event = usize;

/// A job to create, with its items and the jobs below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub kind: usize,
    pub dedupe_key: Option<usize>,
    pub max_failures: usize,
    pub final_stage: bool,
    pub sealed: bool,
    pub callback: bool,
    pub feed: Option<Value>,
    pub items: Vec<NewItem>,
    pub children: Vec<Node>,
}

impl Node {
    /// Returns the node and all below it: each parent before its children, in the order of the request.
    pub fn all(&self) -> Vec<&Node> {
        let mut nodes = vec![self];
        for child in &self.children {
            nodes.extend(child.all());
        }
        nodes
    }

    /// Returns the index of each node's parent within [`Node::all`].
    pub fn parents(&self) -> Vec<Option<usize>> {
        let mut parents = vec![None];
        for child in &self.children {
            let first = parents.len();
            parents.extend(child.parents().into_iter().map(|parent| Some(parent.map_or(0, |index| index + first))));
        }
        parents
    }
}

/// An item to create.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewItem {
    pub payload: Value,
    pub dedupe_key: Option<usize>,
    pub serialize_key: Option<usize>,
    pub priority: i16,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// `token`: the idempotency key.
    Create {
        node: Node,
        token: usize,
    },
    Add {
        job: Job,
        items: Vec<NewItem>,
        token: usize,
    },
    Seal {
        job: Job,
    },
    Delete {
        job: Job,
    },
    Claim {
        worker: usize,
        kinds: Vec<usize>,
        max: usize,
    },
    Assign {
        worker: usize,
        item: Item,
    },
    Succeed {
        assignment: Assignment,
        result: Value,
    },
    /// `worker_clock`: the error of the worker's clock. It must not matter.
    Fail {
        assignment: Assignment,
        retry_in: Option<Time>,
        worker_clock: Time,
    },
    Settle {
        successes: Vec<(Assignment, Value)>,
        failures: Vec<Assignment>,
    },
    Heartbeat {
        assignments: Vec<Assignment>,
        worker_clock: Time,
    },
    Release {
        assignments: Vec<Assignment>,
    },
    Status {
        job: Job,
    },
    /// Leases the callbacks that are due.
    Callbacks,
    Delivered {
        event: Event,
    },
    /// The periodic work of a server.
    Sweep,
}

/// The end that a worker proposes for an assignment.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Success(Value),
    Failure(Option<Time>),
}

impl Operation {
    /// Returns the ends that this call proposes, in the order of its answer.
    pub fn outcomes(&self) -> Vec<(Assignment, Outcome)> {
        match self {
            Operation::Succeed { assignment, result } => vec![(*assignment, Outcome::Success(result.clone()))],
            Operation::Fail { assignment, retry_in, .. } => vec![(*assignment, Outcome::Failure(*retry_in))],
            Operation::Settle { successes, failures } => {
                let successes = successes.iter().map(|(one, result)| (*one, Outcome::Success(result.clone())));
                successes.chain(failures.iter().map(|one| (*one, Outcome::Failure(None)))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job, item or assignment.
    Missing,
    Sealed,
    /// Another job of the type has the dedupe key.
    Duplicate(Job),
    Assigned,
    Done,
    RetryAt,
    SerializeKey,
}

/// An item that a worker was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    pub assignment: Assignment,
    pub item: Item,
    pub job: Job,
    pub payload: Value,
}

/// The answer to the end of one assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Success,
    /// `None`: the failure is final.
    Failure {
        retry_at: Option<Time>,
    },
    /// The answer to a batch does not say more.
    Ok,
    Stale,
}

impl Settled {
    /// Returns true if the end was accepted.
    pub fn is_ok(self) -> bool {
        self != Settled::Stale
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Created { jobs: Vec<Job>, items: Vec<Item> },
    Added(Vec<Item>),
    Done,
    Assigned(Vec<Assigned>),
    Settled(Vec<Settled>),
    Stale(Vec<Assignment>),
    Status(Status),
    Callbacks(Vec<(Event, Job)>),
    Refused(Refusal),
}

/// The progress of a job and of those below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub job: Job,
    pub sealed: bool,
    pub complete: bool,
    pub final_stage: bool,
    pub added: usize,
    pub succeeded: usize,
    pub failed: usize,
    pub pending: usize,
    pub assigned: usize,
    pub tree_complete: bool,
    pub children: Vec<Status>,
}

impl Status {
    /// Returns this status and all below it.
    pub fn all(&self) -> Vec<&Status> {
        let mut all = vec![self];
        for child in &self.children {
            all.extend(child.all());
        }
        all
    }
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Assigned,
    Succeeded,
    Failed,
}

/// An item as the service lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemView {
    pub item: Item,
    pub job: Job,
    pub payload: Value,
    pub state: State,
    pub result: Value,
    pub failures: usize,
    pub dedupe_key: Option<usize>,
    pub serialize_key: Option<usize>,
}

/// The end of a run, as the service shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The trees that are not deleted.
    pub trees: Vec<Status>,
    /// Their items, those of each job in the order of their insertion.
    pub items: Vec<ItemView>,
    /// The succeeded items of jobs whose results are results of the tree.
    pub results: Vec<Item>,
}
