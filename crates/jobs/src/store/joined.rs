//! Ends of single assignments that go into the database together: those that requests bring while a transaction is under way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostler_postgres::DatabaseError;
use tokio::sync::oneshot;

use crate::store::ending::Ending;
use crate::store::{Settlement, Store, StoreError};
use crate::types::{Failure, Success};

/// Most transactions of a process that end single assignments at a time. More would be smaller ones.
const RUNNERS: usize = 2;

/// Most ends in a transaction.
const MOST: usize = 100;

/// Most bytes of results and errors in a transaction, beyond its first end.
const MOST_BYTES: usize = 1 << 20;

/// The end of an assignment.
pub(crate) enum End {
    Result(Success),
    Failure(Failure),
}

impl End {
    /// Returns it as the database's functions take it. `None`: there is no such assignment.
    fn ending(&self) -> Option<Ending<'_>> {
        match self {
            End::Result(success) => Ending::of_result(success),
            End::Failure(failure) => Ending::of_failure(failure),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            End::Result(success) => success.result.text().len(),
            End::Failure(failure) => failure.error.text().len(),
        }
    }
}

type Ended = Result<Settlement, StoreError>;

/// An end, and the request that waits for it.
struct Waiting {
    end: End,
    request: oneshot::Sender<Ended>,
}

/// Ends that wait for a transaction.
#[derive(Default)]
pub(crate) struct Joined {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    runners: usize,
}

impl Joined {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an end. Returns a runner if another one may run.
    fn add(self: &Arc<Self>, waiting: Waiting) -> Option<Runner> {
        let mut state = self.state();
        state.waiting.push_back(waiting);
        if state.runners == RUNNERS {
            return None;
        }
        state.runners += 1;
        Some(Runner { joined: Arc::clone(self) })
    }
}

/// The right to run a transaction after another, as long as ends wait. Dropping it gives the right back.
struct Runner {
    joined: Arc<Joined>,
}

impl Runner {
    /// Takes the ends of the next transaction. `None`: none waits.
    fn next(self) -> Option<(Runner, Vec<Waiting>)> {
        let mut state = self.joined.state();
        let mut bytes = 0;
        let fitting = |one: &&Waiting| {
            bytes += one.end.bytes();
            bytes <= MOST_BYTES
        };
        let count = state.waiting.iter().take(MOST).take_while(fitting).count().max(1).min(state.waiting.len());
        let next: Vec<Waiting> = state.waiting.drain(..count).collect();
        if next.is_empty() {
            // With the lock held, so that whoever adds an end next sees that a runner is missing.
            state.runners -= 1;
            drop(state);
            std::mem::forget(self);
            return None;
        }
        drop(state);
        Some((self, next))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.joined.state().runners -= 1;
    }
}

impl Store {
    /// Ends an assignment in a transaction with others.
    pub(crate) async fn end_with_others(&self, end: End) -> Ended {
        let (request, ended) = oneshot::channel();
        if let Some(runner) = self.joined.add(Waiting { end, request }) {
            // In a task of its own: the others' ends do not depend on this request.
            tokio::spawn(self.clone().run(runner));
        }
        ended.await.unwrap_or_else(|_| Err(StoreError::Database(DatabaseError::Deadline)))
    }

    async fn run(self, mut runner: Runner) {
        while let Some((same, next)) = runner.next() {
            runner = same;
            self.end_together(next).await;
        }
    }

    async fn end_together(&self, all: Vec<Waiting>) {
        let (ends, requests): (Vec<End>, Vec<_>) = all.into_iter().map(|one| (one.end, one.request)).unzip();
        let endings: Vec<Option<Ending<'_>>> = ends.iter().map(End::ending).collect();
        let known: Vec<Ending<'_>> = ends.iter().filter_map(End::ending).collect();
        let answers = match self.end(&known, None).await {
            Ok(settled) => spread(&endings, settled),
            // One of them is at fault, or the database is: no other is to suffer from the first.
            Err(StoreError::Database(DatabaseError::Refused { .. }) | StoreError::Unexpected(_)) if known.len() > 1 => {
                self.end_apart(endings).await
            }
            Err(StoreError::Database(error)) => {
                endings.iter().map(|_| Err(StoreError::Database(error.clone()))).collect()
            }
            Err(error) => {
                let text = error.to_string();
                endings.iter().map(|_| Err(StoreError::Unexpected(text.clone()))).collect()
            }
        };
        for (request, answer) in requests.into_iter().zip(answers) {
            // A client that went away asks again, and is answered as before.
            drop(request.send(answer));
        }
    }

    /// Ends assignments one after the other.
    async fn end_apart(&self, endings: Vec<Option<Ending<'_>>>) -> Vec<Ended> {
        let mut answers = Vec::new();
        for ending in endings {
            answers.push(match ending {
                Some(ending) => self.end(&[ending], None).await.map(first),
                None => Ok(Settlement::Stale),
            });
        }
        answers
    }
}

fn first(settled: Vec<Settlement>) -> Settlement {
    settled.into_iter().next().unwrap_or(Settlement::Stale)
}

/// Gives each end its settlement. Those of unknown assignments are stale.
fn spread(endings: &[Option<Ending<'_>>], settled: Vec<Settlement>) -> Vec<Ended> {
    let mut settled = settled.into_iter();
    let of = |ending: &Option<Ending<'_>>| ending.as_ref().and_then(|_| settled.next());
    endings.iter().map(of).map(|settlement| Ok(settlement.unwrap_or(Settlement::Stale))).collect()
}
