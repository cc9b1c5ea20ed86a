//! Clients of a service: producers, workers, a courier of callbacks, an observer, and servers with their sweeps.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::call::{Answer, Assigned, Assignment, Operation, Refusal};
use crate::scenario::{Action, KINDS, TreePlan};
use crate::site::{Port, Site};

/// Creates a tree, carries out the steps of its plan, and seals its root.
pub async fn produce<P: Port>(site: &Site<P>, plan: &TreePlan) {
    site.rest(plan.at).await;
    let answer = site.insist(Operation::Create { node: plan.node.clone(), token: site.token() }).await;
    let Answer::Created { jobs, items } = answer else { return };
    site.items.lock().unwrap().extend(items);
    site.roots.lock().unwrap().insert(jobs[0]);
    for step in &plan.steps {
        site.rest(step.after).await;
        let job = jobs[step.node];
        match &step.action {
            Action::Add(items) => {
                let answer = site.insist(Operation::Add { job, items: items.clone(), token: site.token() }).await;
                if let Answer::Added(items) = answer {
                    site.items.lock().unwrap().extend(items);
                }
            }
            Action::Seal => drop(site.insist(Operation::Seal { job }).await),
            Action::Delete => drop(site.insist(Operation::Delete { job }).await),
        }
    }
    site.insist(Operation::Seal { job: jobs[0] }).await;
}

/// Sweeps, once a heartbeat.
pub async fn serve<P: Port>(site: &Site<P>, mut rng: Rng) {
    while !site.is_over() {
        site.rest(rng.u64(80..120)).await;
        site.call(Operation::Sweep).await;
    }
}

/// Reads the status of trees.
pub async fn observe<P: Port>(site: &Site<P>, mut rng: Rng) {
    while !site.is_over() {
        site.rest(rng.u64(20..150)).await;
        let roots: Vec<_> = site.roots.lock().unwrap().iter().copied().collect();
        if let Some(job) = rng.choice(&roots) {
            site.call(Operation::Status { job: *job }).await;
        }
    }
}

/// Takes callbacks and delivers most of them. The others are due again later.
pub async fn carry<P: Port>(site: &Site<P>, mut rng: Rng) {
    while !site.is_over() {
        site.rest(rng.u64(50..100)).await;
        let Some(Answer::Callbacks(due)) = site.call(Operation::Callbacks).await else { continue };
        for (event, _) in due {
            if !site.is_chaotic() || rng.u32(..3) > 0 {
                site.call(Operation::Delivered { event }).await;
            }
        }
    }
}

/// A worker.
pub struct Worker<'a, P> {
    pub site: &'a Site<P>,
    pub worker: usize,
    pub rng: Rng,
    /// The error of its clock, in milliseconds.
    pub clock: i64,
}

impl<P: Port> Worker<'_, P> {
    fn percent(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    /// Returns true in some per cent of the calls, as long as clients misbehave.
    fn mischief(&mut self, percent: u32) -> bool {
        self.site.is_chaotic() && self.percent(percent)
    }

    /// Claims and processes items until all is over.
    pub async fn work(mut self) {
        while !self.site.is_over() {
            if self.mischief(5) {
                self.clock = self.rng.i64(-2..=2) * 80 * self.site.heartbeat;
            }
            let held = self.take().await;
            if held.is_empty() {
                let pause = self.rng.u64(30..70);
                self.site.rest(pause).await;
            } else {
                self.process(held.iter().map(|one| one.assignment).collect()).await;
            }
        }
    }

    async fn take(&mut self) -> Vec<Assigned> {
        let known = self.site.items.lock().unwrap().clone();
        let pick = self.rng.choice(&known).copied();
        let operation = match pick {
            Some(item) if self.mischief(15) => Operation::Assign { worker: self.worker, item },
            _ => {
                let is_picky = self.worker > 0 && self.percent(30);
                let kinds = if is_picky { vec![self.rng.usize(..KINDS)] } else { (0..KINDS).collect() };
                Operation::Claim { worker: self.worker, kinds, max: self.rng.usize(1..=4) }
            }
        };
        match self.site.call(operation).await {
            Some(Answer::Assigned(held)) => held,
            _ => Vec::new(),
        }
    }

    /// Processes assignments one after the other, with heartbeats for all. A worker that crashes abandons the rest.
    async fn process(&mut self, mut held: Vec<Assignment>) {
        if held.len() > 1 && self.percent(25) {
            return self.settle_together(held).await;
        }
        while !held.is_empty() {
            if self.mischief(6) {
                let pause = self.rng.u64(20..200);
                return self.site.rest(pause).await;
            }
            let lost = self.keep_alive(&held).await;
            let assignment = held.remove(0);
            // A worker cancels work that it lost, unless it does not notice.
            if !lost.contains(&assignment) || self.percent(30) {
                self.finish(assignment).await;
            }
            held.retain(|one| !lost.contains(one));
        }
    }

    /// Works for a while and sends heartbeats, or none at all. Returns the assignments that were lost.
    async fn keep_alive(&mut self, held: &[Assignment]) -> Vec<Assignment> {
        if self.mischief(8) {
            let hang = self.rng.u64(100..500);
            self.site.rest(hang).await;
            return Vec::new();
        }
        let mut left = if self.mischief(8) { self.rng.u64(300..600) } else { self.rng.u64(5..120) };
        let mut lost = Vec::new();
        loop {
            let step = left.min(90);
            self.site.rest(step).await;
            left -= step;
            if left == 0 {
                return lost;
            }
            for _ in 0..if self.mischief(10) { 2 } else { 1 } {
                let assignments = held.to_vec();
                let beat = Operation::Heartbeat { assignments, worker_clock: self.clock };
                if let Some(Answer::Stale(stale)) = self.site.call(beat).await {
                    lost.extend(stale);
                }
            }
        }
    }

    fn result(&mut self, assignment: Assignment) -> Value {
        if self.percent(10) { Value::Null } else { json!({ "r": assignment }) }
    }

    /// Ends an assignment in one of many ways.
    async fn finish(&mut self, assignment: Assignment) {
        let draw = if self.site.is_chaotic() { self.rng.u32(..100) } else { self.rng.u32(..60) };
        let result = self.result(assignment);
        let success = Operation::Succeed { assignment, result };
        let retry_in = self.percent(60).then(|| self.rng.i64(0..4) * self.site.heartbeat / 2);
        let failure = Operation::Fail { assignment, retry_in, worker_clock: self.clock };
        let wait = self.rng.u64(5..500);
        match draw {
            0..50 => self.persist(success).await,
            50..72 => self.persist(failure).await,
            72..76 => {
                self.persist(success.clone()).await;
                self.site.rest(wait).await;
                self.persist(success).await;
            }
            76..80 => {
                self.persist(failure.clone()).await;
                self.site.rest(wait).await;
                self.persist(failure).await;
            }
            80..83 => {
                self.persist(success).await;
                self.persist(failure).await;
            }
            83..86 => {
                self.persist(failure).await;
                self.site.rest(wait).await;
                self.persist(success).await;
            }
            86..92 => {
                self.persist(Operation::Release { assignments: vec![assignment] }).await;
                self.site.rest(wait / 4).await;
                if self.percent(50) {
                    self.persist(success).await;
                }
            }
            92..96 => {
                self.persist(success).await;
                let beat = Operation::Heartbeat { assignments: vec![assignment], worker_clock: self.clock };
                self.persist(beat).await;
            }
            // A worker that comes back from a long pause.
            _ => {
                self.site.rest(150 + wait).await;
                self.persist(success).await;
            }
        }
    }

    async fn settle_together(&mut self, held: Vec<Assignment>) {
        self.keep_alive(&held).await;
        let (failures, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|_| self.rng.u32(..100) < 20);
        let successes = rest.into_iter().map(|assignment| (assignment, self.result(assignment))).collect();
        self.persist(Operation::Settle { successes, failures }).await;
    }

    /// Repeats a call some times if its answer is lost.
    async fn persist(&mut self, operation: Operation) {
        for _ in 0..4 {
            if self.site.call(operation.clone()).await.is_some() {
                return;
            }
        }
    }
}

/// Waits until all trees are complete and no callback is due, for some heartbeats at most. Then stops all clients.
pub async fn finish<P: Port>(site: &Site<P>, heartbeats: u64) {
    site.calm();
    for _ in 0..heartbeats * 2 {
        let roots: Vec<_> = site.roots.lock().unwrap().iter().copied().collect();
        let mut is_done = true;
        for job in roots {
            match site.call(Operation::Status { job }).await {
                Some(Answer::Status(status)) => is_done &= status.tree_complete,
                Some(Answer::Refused(Refusal::Missing)) => {}
                _ => is_done = false,
            }
        }
        site.rest(50).await;
        if is_done {
            break;
        }
    }
    // The courier has time to deliver what it failed to deliver before.
    site.rest(350).await;
    site.stop();
}
