//! The second world, one call at a time: each event is applied to the model and to the real store, and all answers, listings and
//! states have to be equal.
//!
//! Time passes by moving the times in the database into the past. No event happens while a deadline is near, so that the time
//! that the calls take does not matter.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use hostler_jobs::types::{ItemQuery, ItemState};
use hostler_postgres::Database;

use crate::call::{Answer, Assigned, Item, ItemView, Job, Operation, Settled, Status, Time};
use crate::events::Chooser;
use crate::model::{Model, Periods};
use crate::renumber;
use crate::store_port::StorePort;

/// The periods of both sides.
pub const PERIODS: Periods = Periods { heartbeat: 60_000, backoff: 60_000, callback_lease: 300_000 };
/// The difference between the times of both sides, in milliseconds.
const TOLERANCE: Time = 2_000;
/// No deadline may be as near as this when an event happens, in milliseconds.
const NEAR: Time = 4_000;
/// Number of events of a seed, before all trees are completed.
const EVENTS: usize = 60;

/// A difference between both sides, or an error of the store.
pub type Difference = String;

/// A run of both sides.
pub struct Lockstep {
    port: StorePort,
    db: Database,
    model: Model,
    chooser: Chooser,
    /// Numbers of the store and those of the model.
    to_model: HashMap<usize, usize>,
    to_store: HashMap<usize, usize>,
    /// Items whose next attempt is at a time that only the store knows yet.
    unsure: BTreeSet<Item>,
    pub trace: Vec<String>,
}

impl Lockstep {
    /// Makes a run of a seed over an empty store.
    pub fn new(port: StorePort, db: Database, seed: u64) -> Self {
        let model = Model::new(PERIODS, None);
        let (to_model, to_store) = (HashMap::new(), HashMap::new());
        let chooser = Chooser::new(seed);
        Self { port, db, model, chooser, to_model, to_store, unsure: BTreeSet::new(), trace: Vec::new() }
    }

    /// Applies all events of the seed. Returns the first difference.
    pub async fn run(&mut self) -> Result<(), Difference> {
        for _ in 0..EVENTS {
            let operation = self.chooser.next(&self.model);
            self.apply(&operation).await?;
            if self.chooser.lets_time_pass() {
                let by = self.chooser.duration();
                self.pass(by).await?;
            }
        }
        self.complete().await
    }

    /// Completes all trees, and deletes them.
    async fn complete(&mut self) -> Result<(), Difference> {
        for _ in 0..100 {
            let trees = self.model.snapshot().trees;
            let Some(open) = trees.iter().find(|tree| !tree.tree_complete) else { break };
            if !open.sealed {
                self.apply(&Operation::Seal { job: open.job }).await?;
            }
            self.pass(Duration::from_secs(3_000)).await?;
            let kinds = (0..crate::scenario::KINDS).collect();
            self.apply(&Operation::Claim { worker: 9, kinds, max: 100 }).await?;
            for (assignment, _) in self.model.live() {
                let result = serde_json::json!({ "r": assignment });
                self.apply(&Operation::Succeed { assignment, result }).await?;
            }
        }
        self.apply(&Operation::Callbacks).await?;
        for tree in self.model.snapshot().trees {
            if !tree.tree_complete {
                return Err(format!("the tree is not complete: {tree:?}"));
            }
            self.apply(&Operation::Delete { job: tree.job }).await?;
        }
        Ok(())
    }

    /// Lets time pass.
    async fn pass(&mut self, by: Duration) -> Result<(), Difference> {
        self.trace.push(format!("{by:?} pass"));
        let seconds = by.as_secs();
        let sql = format!(
            "UPDATE hostler_jobs.assignment SET beat_at = beat_at - interval '{seconds} s';
             UPDATE hostler_jobs.later SET due = due - interval '{seconds} s';
             UPDATE hostler_jobs.failure SET at = at - interval '{seconds} s', retry_at = retry_at - interval '{seconds} s';
             UPDATE hostler_jobs.outbox SET due = due - interval '{seconds} s';"
        );
        let client = self.db.client().await.map_err(|error| error.to_string())?;
        client.batch(&sql).await.map_err(|error| error.to_string())?;
        self.port.shift(by);
        self.sweep().await
    }

    /// Lets time pass until no deadline is near.
    async fn leave_deadlines(&mut self) -> Result<(), Difference> {
        for _ in 0..100 {
            let now = self.port.now();
            if !self.model.timers().iter().any(|at| (at - now).abs() < NEAR) {
                return Ok(());
            }
            Box::pin(self.pass(Duration::from_secs(5))).await?;
        }
        Ok(())
    }

    /// Sweeps on both sides, and compares all that can be seen.
    async fn sweep(&mut self) -> Result<(), Difference> {
        self.model.now = self.port.now();
        let before: HashMap<Item, usize> =
            self.model.snapshot().items.iter().map(|view| (view.item, view.failures)).collect();
        self.perform(&Operation::Sweep).await?;
        self.model.apply(&Operation::Sweep);
        let views = self.model.snapshot().items;
        let failed =
            views.iter().filter(|view| before.get(&view.item).is_some_and(|failures| *failures < view.failures));
        self.unsure.extend(failed.map(|view| view.item));
        self.compare_trees().await
    }

    async fn perform(&self, operation: &Operation) -> Result<Answer, Difference> {
        let number = |number: usize| self.to_store.get(&number).copied().unwrap_or(0);
        let operation = renumber::operation(operation, &number);
        match self.port.perform(&operation).await {
            Ok(answer) => Ok(answer),
            Err(error) => self.port.refusal(&operation, &error).ok_or_else(|| error.to_string()),
        }
    }

    /// Applies an event to both sides.
    async fn apply(&mut self, operation: &Operation) -> Result<(), Difference> {
        self.leave_deadlines().await?;
        self.trace.push(format!("{operation:?}"));
        let real = self.perform(operation).await?;
        self.model.now = self.port.now();
        self.model.next_retry_at = chosen_retry(operation, &real);
        let batch: Vec<_> =
            if let Operation::Settle { failures, .. } = operation { failures.clone() } else { Vec::new() };
        self.unsure.extend(self.model.live().iter().filter(|(one, _)| batch.contains(one)).map(|(_, item)| *item));
        let mut wanted = self.model.apply(operation);
        self.model.next_retry_at = None;
        self.pair(&real, &wanted);
        let mut real = renumber::answer(&real, &|number| self.model_number(number));
        self.trace.push(format!("    {real:?}"));
        forget_order(operation, &mut real, &mut wanted);
        if !is_same(&real, &wanted) {
            return Err(format!("{operation:?}: the store answers {real:?}, the model {wanted:?}"));
        }
        self.chooser.learn(operation, &wanted);
        self.sweep().await
    }

    fn model_number(&self, number: usize) -> usize {
        self.to_model.get(&number).copied().unwrap_or(usize::MAX)
    }

    fn bind(&mut self, real: usize, model: usize) {
        self.to_model.entry(real).or_insert(model);
        self.to_store.entry(model).or_insert(real);
    }

    /// Learns the numbers of what both sides created.
    fn pair(&mut self, real: &Answer, wanted: &Answer) {
        match (real, wanted) {
            (Answer::Created { jobs, items }, Answer::Created { jobs: ours, items: our_items }) => {
                jobs.iter()
                    .zip(ours)
                    .chain(items.iter().zip(our_items))
                    .for_each(|(real, model)| self.bind(*real, *model));
            }
            (Answer::Added(items), Answer::Added(ours)) => {
                items.iter().zip(ours).for_each(|(real, model)| self.bind(*real, *model));
            }
            (Answer::Assigned(assigned), Answer::Assigned(ours)) => {
                for one in assigned {
                    let item = self.model_number(one.item);
                    if let Some(our) = ours.iter().find(|our| our.item == item) {
                        self.bind(one.assignment, our.assignment);
                    }
                }
            }
            (Answer::Callbacks(due), Answer::Callbacks(ours)) => {
                for (event, root) in due {
                    let root = self.model_number(*root);
                    if let Some((our, _)) = ours.iter().find(|(_, our)| *our == root) {
                        self.bind(*event, *our);
                    }
                }
            }
            _ => {}
        }
    }

    /// Compares the status, the items and the results of all trees.
    async fn compare_trees(&mut self) -> Result<(), Difference> {
        let snapshot = self.model.snapshot();
        for tree in &snapshot.trees {
            let root = self.to_store.get(&tree.job).map(|root| self.port.text(*root));
            let Answer::Status(status) = self.perform(&Operation::Status { job: tree.job }).await? else {
                return Err(format!("job {} is missing", tree.job));
            };
            let status = renumber::status(&status, &|number| self.model_number(number));
            if status != *tree {
                return Err(format!("the store shows {status:?}, the model {tree:?}"));
            }
            let jobs: Vec<Job> = tree.all().into_iter().map(|one: &Status| one.job).collect();
            let mut ours: Vec<&ItemView> = snapshot.items.iter().filter(|view| jobs.contains(&view.job)).collect();
            // The items of a tree are listed job by job.
            ours.sort_by_key(|view| (view.job, view.item));
            self.compare_items(root.clone(), &ours).await?;
            if !self.trace.len().is_multiple_of(6) {
                continue;
            }
            let query = ItemQuery {
                root_id: root,
                state: Some(ItemState::Succeeded),
                final_stage: Some(true),
                ..ItemQuery::default()
            };
            let rows = self.port.list(query).await.map_err(|error| error.to_string())?;
            let found: Vec<Item> = rows.iter().map(|row| self.model_number(self.port.number(&row.id))).collect();
            let wanted: Vec<Item> =
                ours.iter().map(|view| view.item).filter(|item| snapshot.results.contains(item)).collect();
            if found != wanted {
                return Err(format!("results of {}: the store lists {found:?}, the model {wanted:?}", tree.job));
            }
        }
        self.unsure.clear();
        Ok(())
    }

    /// Compares the items of a tree, with their order. Learns the numbers of items that feeds made.
    async fn compare_items(&mut self, root_id: Option<String>, ours: &[&ItemView]) -> Result<(), Difference> {
        let query = ItemQuery { root_id, ..ItemQuery::default() };
        let rows = self.port.list(query).await.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for row in &rows {
            let (mut view, retry_at) = self.port.view(row);
            view.job = self.model_number(view.job);
            let known: BTreeSet<usize> = self.to_store.keys().copied().collect();
            let is_it =
                |our: &&&ItemView| !known.contains(&our.item) && our.job == view.job && our.payload == view.payload;
            if !self.to_model.contains_key(&view.item)
                && let Some(our) = ours.iter().find(is_it)
            {
                self.bind(view.item, our.item);
            }
            view.item = self.model_number(view.item);
            self.compare_retry(view.item, retry_at)?;
            found.push(view);
        }
        if found.iter().ne(ours.iter().copied()) {
            let wrong = found.iter().zip(ours).find(|(one, our)| one != *our);
            return Err(format!("items {} and {}, first difference {wrong:?}", found.len(), ours.len()));
        }
        Ok(())
    }

    /// Compares the time of an item's next attempt, and takes over the one that the store chose.
    fn compare_retry(&mut self, item: Item, real: Option<Time>) -> Result<(), Difference> {
        let now = self.model.now;
        let model = self.model.retry_at(item).filter(|at| *at > now);
        let is_unsure = self.unsure.contains(&item);
        let is_same = match (real.filter(|at| *at > now), model) {
            (Some(real), Some(model)) if is_unsure => real <= model + TOLERANCE,
            (Some(real), Some(model)) => (real - model).abs() <= TOLERANCE,
            (None, Some(model)) => is_unsure || model < now + TOLERANCE,
            (Some(real), None) => real < now + TOLERANCE,
            (None, None) => true,
        };
        if model.is_some() {
            self.model.set_retry_at(item, real);
        }
        if is_same { Ok(()) } else { Err(format!("item {item}: retry_at {real:?}, in the model {model:?}, now {now}")) }
    }
}

/// Returns the time of the next attempt, if the store chose it.
fn chosen_retry(operation: &Operation, real: &Answer) -> Option<Time> {
    match (operation, real) {
        (Operation::Fail { retry_in: None, .. }, Answer::Settled(settled)) => {
            settled.first().and_then(|one| if let Settled::Failure { retry_at } = one { *retry_at } else { None })
        }
        _ => None,
    }
}

/// Sorts what has no order.
fn forget_order(operation: &Operation, real: &mut Answer, wanted: &mut Answer) {
    for answer in [real, wanted] {
        match (operation, answer) {
            (Operation::Claim { kinds, .. }, Answer::Assigned(assigned)) if kinds.len() > 1 => {
                assigned.sort_by_key(|one: &Assigned| one.item);
            }
            (_, Answer::Callbacks(due)) => due.sort_unstable(),
            (_, Answer::Stale(stale)) => stale.sort_unstable(),
            _ => {}
        }
    }
}

/// Compares answers. Times may differ a little.
fn is_same(real: &Answer, wanted: &Answer) -> bool {
    let near = |one: &Settled, other: &Settled| match (one, other) {
        (Settled::Failure { retry_at: Some(real) }, Settled::Failure { retry_at: Some(model) }) => {
            (real - model).abs() <= TOLERANCE
        }
        (one, other) => one == other,
    };
    match (real, wanted) {
        (Answer::Settled(real), Answer::Settled(wanted)) => {
            real.len() == wanted.len() && real.iter().zip(wanted).all(|(one, other)| near(one, other))
        }
        (real, wanted) => real == wanted,
    }
}
