//! Connections that add, claim and settle items side by side, as fast as the service answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::{Client, Taken};
use crate::failure::Failure;

/// Maximum time that a claim waits for a first item, in seconds.
const WAIT: f64 = 0.5;

/// The part of the cycle that the connections do.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    /// Each connection adds a batch, claims one and settles it, in turn.
    Whole,
    /// The same, but each item is assigned by its id.
    Assign,
    /// The connections only add.
    Add,
    /// The connections only claim and settle.
    Drain,
}

/// The work of all connections.
#[derive(Clone)]
pub struct Plan {
    pub part: Part,
    /// Number of items in all.
    pub items: u64,
    /// Maximum number of items in a call.
    pub batch: u64,
    pub connections: usize,
    /// Number of serialize keys. 0: the items have none.
    pub keys: u64,
    /// Times at which the items are due: not added before, and latencies are taken from then on. `None`: as soon as possible.
    pub schedule: Option<Schedule>,
}

/// The times at which items are due: a chunk of them at a time.
#[derive(Clone, Copy)]
pub struct Schedule {
    pub begin: Instant,
    /// Items in a second.
    pub rate: u64,
    /// Items that are due together.
    pub chunk: u64,
}

impl Schedule {
    /// Returns the time at which an item is due.
    pub fn due(&self, number: u64) -> Instant {
        let chunk = number / self.chunk;
        self.begin + Duration::from_micros(chunk * self.chunk * 1_000_000 / self.rate)
    }
}

/// The connections at work.
pub struct Flow {
    shared: Arc<Shared>,
    ended: Receiver<Result<Instant, Failure>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    plan: Plan,
    host: String,
    jobs: Vec<String>,
    /// The first item that no connection has begun to add.
    next: AtomicU64,
    added: AtomicU64,
    settled: AtomicU64,
    stop: AtomicBool,
    /// Time between the item's due time and the answer to its result, in microseconds.
    latencies: Mutex<Vec<u64>>,
}

impl Flow {
    /// Starts the connections. Batches are added to `jobs` in turn. Without any, each batch is a sealed tree of its own.
    pub fn start(host: &str, plan: Plan, jobs: Vec<String>) -> Self {
        let connections = plan.connections;
        let shared = Arc::new(Shared {
            plan,
            host: host.to_owned(),
            jobs,
            next: AtomicU64::new(0),
            added: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            latencies: Mutex::default(),
        });
        let (end, ended) = channel();
        let spawn = |_| {
            let (shared, end) = (Arc::clone(&shared), end.clone());
            std::thread::spawn(move || {
                if let Err(failure) = shared.work(&end) {
                    // The first report counts; nobody waits for further ones.
                    let _ = end.send(Err(failure));
                }
            })
        };
        let threads = (0..connections).map(spawn).collect();
        Self { shared, ended, threads }
    }

    /// Returns the number of items that are settled.
    pub fn settled(&self) -> u64 {
        self.shared.settled.load(Relaxed)
    }

    /// Waits until all items are through, but no longer than `patience`. Returns the time of the last one.
    ///
    /// # Errors
    /// [`Failure`] of the first call that failed; [`Failure::Lost`] if the patience is over.
    pub fn wait(&self, patience: Duration) -> Result<Instant, Failure> {
        self.poll(patience)?.ok_or_else(|| {
            Failure::Lost(format!("{} of {} items were settled in time", self.settled(), self.shared.plan.items))
        })
    }

    /// Waits for a time. Returns the time of the last item if all are through before.
    ///
    /// # Errors
    /// [`Failure`] of the first call that failed.
    pub fn poll(&self, time: Duration) -> Result<Option<Instant>, Failure> {
        match self.ended.recv_timeout(time) {
            Ok(ended) => ended.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Lost("all connections have ended".to_owned())),
        }
    }

    /// Ends the connections after their calls. Returns the latencies in microseconds, the shortest first.
    pub fn stop(self) -> Vec<u64> {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads {
            // A thread that failed has reported it.
            let _ = thread.join();
        }
        let mut latencies = std::mem::take(&mut *self.shared.latencies.lock().unwrap_or_else(PoisonError::into_inner));
        latencies.sort_unstable();
        latencies
    }
}

impl Shared {
    /// Does a connection's part, until all items are through or the flow is stopped.
    fn work(&self, end: &Sender<Result<Instant, Failure>>) -> Result<(), Failure> {
        let mut client = Client::open(&self.host)?;
        while !self.stop.load(Relaxed) {
            let added = self.add(&mut client, end)?;
            let taken = match self.plan.part {
                Part::Add if added.is_empty() => return Ok(()),
                Part::Add => continue,
                Part::Assign => added.iter().map(|item| client.assign(item)).collect::<Result<_, _>>()?,
                Part::Whole | Part::Drain => {
                    client.claim(self.plan.batch, if added.is_empty() { WAIT } else { 0.0 })?
                }
            };
            self.settle(&mut client, &taken, end)?;
            if self.settled.load(Relaxed) >= self.plan.items || (self.plan.part == Part::Assign && added.is_empty()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds a batch. Returns the ids of its items: none if all have been added.
    fn add(&self, client: &mut Client, end: &Sender<Result<Instant, Failure>>) -> Result<Vec<String>, Failure> {
        let Plan { part, items, batch, keys, schedule, .. } = self.plan;
        if part == Part::Drain {
            return Ok(Vec::new());
        }
        let first = self.next.fetch_add(batch, Relaxed);
        let last = items.min(first.saturating_add(batch));
        if first >= last {
            return Ok(Vec::new());
        }
        if let Some(schedule) = schedule {
            pause(schedule.due(first).saturating_duration_since(Instant::now()));
        }
        let ids = if self.jobs.is_empty() {
            client.create_with(first..last)?
        } else {
            let place = usize::try_from(first / batch).unwrap_or_default() % self.jobs.len();
            client.add(&self.jobs[place], first..last, keys)?
        };
        if self.added.fetch_add(last - first, Relaxed) + last - first == items && part == Part::Add {
            let _ = end.send(Ok(Instant::now()));
        }
        Ok(ids)
    }

    fn settle(
        &self,
        client: &mut Client,
        taken: &[Taken],
        end: &Sender<Result<Instant, Failure>>,
    ) -> Result<(), Failure> {
        if taken.is_empty() {
            return Ok(());
        }
        client.settle(taken)?;
        let now = Instant::now();
        if let Some(schedule) = self.plan.schedule {
            let latency = |one: &Taken| now.saturating_duration_since(schedule.due(one.number)).as_micros();
            let latencies = taken.iter().map(|one| u64::try_from(latency(one)).unwrap_or(u64::MAX));
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).extend(latencies);
        }
        let count = u64::try_from(taken.len()).unwrap_or(u64::MAX);
        if self.settled.fetch_add(count, Relaxed) + count == self.plan.items {
            let _ = end.send(Ok(now));
        }
        Ok(())
    }
}

/// Waits for the time at which a call is due.
#[expect(clippy::disallowed_methods, reason = "the load follows the clock")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_a_chunk_are_due_together() {
        let begin = Instant::now();
        let schedule = Schedule { begin, rate: 1_000, chunk: 10 };
        assert_eq!(schedule.due(9), begin);
        assert_eq!(schedule.due(25), begin + Duration::from_millis(20));
    }
}
