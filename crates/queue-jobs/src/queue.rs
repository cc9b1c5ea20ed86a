//! The queue of the items of one type of jobs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::buffers::Buffers;
use crate::client::{CallError, Client};
use crate::item::{assignment, delivery, duration, heartbeat};
use crate::reports::{Ending, request};
use crate::shapes::{Assigned, Claim, Claimed, Heartbeat, Ids, Progress, Settled, Stale, body};
use crate::{PATIENCE, SYSTEM};

/// Limits of the calls. The service takes larger batches, but the items of a claim lie in memory at once.
const LIMITS: Limits = Limits {
    receive_batch: 64,
    settle_batch: 256,
    settle_linger: Duration::from_millis(5),
    max_wait: Duration::from_secs(20),
    // The service extends an assignment for as long as it is asked to.
    max_lease: Duration::from_secs(365 * 86_400),
    parallel_receives: 2,
    max_release: Duration::from_secs(12 * 60 * 60),
};

/// Longest wait of one request for items. A request that is given up may leave an assignment behind, so a stop waits for its
/// answer.
const POLL: Duration = Duration::from_secs(2);

/// Longest time to rest after an item was given back because of a limit of the host.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Size at which the results of a batch are split into several requests. The service takes 64 MiB.
const LARGEST: usize = 16 * 1024 * 1024;

/// The queue of one type.
pub(crate) struct JobQueue {
    client: Arc<Client>,
    kind: String,
    worker: String,
    /// Time before which nothing is claimed, because the host has reached a limit.
    rests_until: Mutex<Option<Instant>>,
    buffers: Buffers,
}

/// The entries of one settle call that share a request: their places, and their ends.
type Batch = Vec<(usize, Ending)>;

impl JobQueue {
    pub(crate) fn new(client: Arc<Client>, kind: &str, worker: &str) -> Self {
        Self {
            client,
            kind: kind.to_owned(),
            worker: worker.to_owned(),
            rests_until: Mutex::default(),
            buffers: Buffers::default(),
        }
    }

    /// Returns the time before which nothing is to be claimed.
    fn held_until(&self) -> Option<Instant> {
        let rests = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        rests.max(self.client.held_until()).filter(|until| *until > Instant::now())
    }

    fn rest_for(&self, delay: Duration) {
        let until = Instant::now() + delay.min(LONGEST_REST);
        let mut rests = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        *rests = (*rests).max(Some(until));
    }

    /// Claims up to `max` items, and waits up to `wait` for the first.
    async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        let (worker_id, wait_seconds) = (&*self.worker, wait.as_secs_f64());
        let claim = Claim { types: [&self.kind], worker_id, max, wait_seconds };
        let asked_at = Instant::now();
        let claimed: Claimed = self.client.post("/claim", body(&claim), wait + PATIENCE).await?;
        let (assigned, leased_at) = self.confirmed(claimed.assignments, asked_at).await;
        let now = SystemTime::now();
        let enter = |one| {
            let (delivery, job) = delivery(one, &self.kind, leased_at, now);
            self.buffers.enter(delivery.receipt.as_str(), &job);
            delivery
        };
        Ok(assigned.into_iter().map(enter).collect())
    }

    /// Returns assignments, and a time before which their leases did not begin. The service may have assigned the items at any
    /// time during the request. If it took long, too little would be left of the leases, so they are extended at once.
    async fn confirmed(&self, assigned: Vec<Assigned>, asked_at: Instant) -> (Vec<Assigned>, Instant) {
        let shortest = assigned.iter().map(|one| Duration::from_secs(one.heartbeat_seconds.max(1))).min();
        let Some(interval) = shortest.filter(|interval| asked_at.elapsed() > *interval / 2) else {
            return (assigned, asked_at);
        };
        let extended_at = Instant::now();
        let ids = assigned.iter().map(|one| &*one.assignment_id);
        match self.extended(ids, BTreeMap::new(), interval.min(PATIENCE)).await {
            Ok(stale) => {
                let lives = |one: &Assigned| !stale.contains(&one.assignment_id);
                (assigned.into_iter().filter(lives).collect(), extended_at)
            }
            Err(error) => {
                // The leases may have ended, and nobody works on the items yet.
                tracing::debug!(%error, "cannot extend the leases of items that were just received; giving them back");
                let ids: Vec<&str> = assigned.iter().map(|one| &*one.assignment_id).collect();
                self.release(&ids).await;
                (Vec::new(), asked_at)
            }
        }
    }

    /// Extends assignments, and tells the progress of some. Returns those that have ended.
    async fn extended<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
        progress: BTreeMap<&'a str, Progress>,
        patience: Duration,
    ) -> Result<HashSet<String>, CallError> {
        let heartbeat = body(&Heartbeat { assignment_ids: ids.collect(), progress });
        let answer: Stale = self.client.post("/heartbeat", heartbeat, patience).await?;
        Ok(answer.stale.into_iter().collect())
    }

    /// Gives items back. Returns the result of each, in their order.
    async fn release(&self, handles: &[&str]) -> Vec<Result<(), LeaseError>> {
        let ids = body(&Ids { assignment_ids: handles.iter().map(|handle| assignment(handle)).collect() });
        match self.client.post::<Stale>("/release", ids, PATIENCE).await {
            Ok(Stale { stale }) => {
                let stale: HashSet<String> = stale.into_iter().collect();
                let result = |handle: &&str| if stale.contains(assignment(handle)) { Err(lost()) } else { Ok(()) };
                handles.iter().map(result).collect()
            }
            Err(error) => vec![Err(error.into()); handles.len()],
        }
    }

    /// Reports results and failures, and writes the result of each entry to `results`. If the service refuses a request as not
    /// valid, reports its entries in smaller requests, so that one of them cannot hold up the others.
    async fn report(&self, handles: &[&str], endings: Batch, results: &mut [Result<(), LeaseError>]) {
        let mut batches = split_by_size(endings);
        while let Some(mut batch) = batches.pop() {
            let ends = batch.iter().map(|(at, ending)| (handles[*at], ending));
            let sent = self.client.post::<Settled>("/settle", body(&request(ends)), PATIENCE).await;
            match sent {
                Ok(Settled { settled }) => {
                    let told: HashMap<_, _> =
                        settled.iter().map(|one| (&*one.assignment_id, one.status == "ok")).collect();
                    for (at, ending) in batch {
                        results[at] = match told.get(assignment(handles[at])) {
                            Some(true) => Ok(()),
                            Some(false) => Err(lost()),
                            None => Err(LeaseError::Retry("the job service did not answer for it".to_owned())),
                        };
                        if let (Ending::Result(_, buffered), Err(LeaseError::Retry(_))) = (ending, &results[at]) {
                            self.buffers.put_back(handles[at], buffered);
                        }
                    }
                }
                Err(CallError::Invalid(_)) if batch.len() > 1 => {
                    let rest = batch.split_off(batch.len() / 2);
                    batches.extend([rest, batch]);
                }
                Err(error) => {
                    for (at, ending) in batch {
                        let instead = match &error {
                            CallError::Invalid(why) => ending.instead(why),
                            CallError::Away(_) | CallError::Denied(_) => None,
                        };
                        if let (Ending::Result(_, buffered), None) = (ending, &instead) {
                            self.buffers.put_back(handles[at], buffered);
                        }
                        match instead {
                            Some(ending) => batches.push(vec![(at, ending)]),
                            None => results[at] = Err(error.clone().into()),
                        }
                    }
                }
            }
        }
    }
}

#[async_trait]
impl Queue for JobQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    /// The service itself assigns only the oldest item of a serialize key.
    fn is_ordered(&self) -> bool {
        false
    }

    fn decides_retries(&self) -> bool {
        true
    }

    fn duration_of(&self, lease: &LeaseHandle, asked: Duration) -> Duration {
        duration(lease).unwrap_or(asked)
    }

    fn origin(&self) -> Origin {
        Origin { system: SYSTEM, address: Some(format!("{}/{}", self.client.address(), self.kind).into()) }
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let end = Instant::now() + request.wait.min(LIMITS.max_wait);
        let max = request.max.clamp(1, LIMITS.receive_batch);
        loop {
            if stop.is_cancelled() {
                return Ok(Vec::new());
            }
            if let Some(until) = self.held_until() {
                if stop.run_until_cancelled(sleep_until(until.min(end))).await.is_none() || until >= end {
                    return Ok(Vec::new());
                }
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            let received = self.claim(max, left.min(POLL)).await?;
            if !received.is_empty() || Instant::now() >= end {
                return Ok(received);
            }
        }
    }

    async fn extend(&self, leases: &[LeaseHandle], _: Duration) -> Vec<Result<(), LeaseError>> {
        // An answer after the next heartbeat would be too late to be of use.
        let shortest = leases.iter().filter_map(|lease| heartbeat(lease.as_str())).min();
        let patience = shortest.map_or(PATIENCE, |interval| interval.min(PATIENCE));
        let told = leases.iter().filter_map(|lease| {
            let progress = self.buffers.progress(lease.as_str())?;
            Some((assignment(lease.as_str()), Progress { fraction: progress.fraction, text: progress.text }))
        });
        let ids = leases.iter().map(|lease| assignment(lease.as_str()));
        match self.extended(ids, told.collect(), patience).await {
            Ok(stale) => {
                let result = |lease: &LeaseHandle| match stale.contains(assignment(lease.as_str())) {
                    true => Err(lost()),
                    false => Ok(()),
                };
                leases.iter().map(result).collect()
            }
            // A request with ids and progress is valid, so a refusal is not about the leases.
            Err(error) => vec![Err(LeaseError::Retry(error.to_string())); leases.len()],
        }
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let mut results = vec![Ok(()); batch.len()];
        let handles: Vec<_> = batch.iter().map(|settlement| settlement.receipt().as_str()).collect();
        let with_buffer = |settlement: &Settlement| match Ending::of(settlement) {
            Ending::Result(result, _) => Ending::Result(result, self.buffers.take(settlement.receipt().as_str())),
            other => other,
        };
        let endings = batch.iter().map(with_buffer).enumerate();
        let (back, endings): (Batch, Batch) = endings.partition(|(_, ending)| matches!(ending, Ending::Release));
        self.report(&handles, endings, &mut results).await;
        if !back.is_empty() {
            let of_back: Vec<_> = back.iter().map(|(at, _)| handles[*at]).collect();
            let released = self.release(&of_back).await;
            back.iter().zip(released).for_each(|((at, _), result)| results[*at] = result);
            let delays = back.iter().filter_map(|(at, _)| match &batch[*at] {
                Settlement::GiveBack(_, delay) => Some(*delay),
                _ => None,
            });
            if let Some(delay) = delays.max().filter(|delay| !delay.is_zero()) {
                self.rest_for(delay);
            }
        }
        let is_over = |result: &Result<(), LeaseError>| result.as_ref().err().is_none_or(LeaseError::is_final);
        handles
            .iter()
            .zip(&results)
            .filter(|(_, result)| is_over(result))
            .for_each(|(handle, _)| self.buffers.forget(handle));
        let unsettled = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(results).map(unsettled).collect()
    }
}

/// Splits a batch so that no request is too large.
fn split_by_size(endings: Batch) -> Vec<Batch> {
    let (mut batches, mut size) = (Vec::<Batch>::new(), 0);
    for entry in endings {
        let added = entry.1.size();
        match batches.last_mut() {
            Some(batch) if size + added <= LARGEST => {
                size += added;
                batch.push(entry);
            }
            _ => {
                size = added;
                batches.push(vec![entry]);
            }
        }
    }
    batches
}

fn lost() -> LeaseError {
    LeaseError::Lost("the assignment has ended, or its job was deleted".to_owned())
}

#[cfg(test)]
mod tests;
