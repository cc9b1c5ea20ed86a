//! Ends of single assignments that go into the database together: those that requests bring while a transaction is under way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hostler_postgres::DatabaseError;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::store::ending::Ending;
use crate::store::{Settlement, Store, StoreError};
use crate::types::{Failure, Success};

/// Most transactions of a process that end single assignments at a time. More would be smaller ones.
const RUNNERS: usize = 2;

/// Most ends in a transaction.
const MOST: usize = 100;

/// Most bytes of results and errors in a transaction, beyond its first end.
const MOST_BYTES: usize = 1 << 20;

/// Most ends that wait. Workers beyond that are told to try again.
const MOST_WAITING: usize = 2_000;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The end of an assignment.
pub(crate) enum End {
    Result(Success),
    Failure(Failure),
}

impl End {
    /// Returns it as the database's functions take it. `None`: there is no such assignment; none of those that wait is one.
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

impl Waiting {
    fn answer(self, ended: Ended) {
        // A client that went away asks again, and is answered as before.
        drop(self.request.send(ended));
    }
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
    ///
    /// # Errors
    /// [`DatabaseError::Busy`] if too many wait.
    fn add(self: &Arc<Self>, waiting: Waiting) -> Result<Option<Runner>, DatabaseError> {
        let mut state = self.state();
        if state.waiting.len() >= MOST_WAITING {
            let message = format!("{MOST_WAITING} results and failures wait for it already");
            return Err(DatabaseError::Busy { code: String::new(), message });
        }
        state.waiting.push_back(waiting);
        if state.runners == RUNNERS {
            return Ok(None);
        }
        state.runners += 1;
        Ok(Some(Runner { joined: Some(Arc::clone(self)) }))
    }
}

/// The right to run a transaction after another, as long as ends wait. Dropping it gives the right back.
struct Runner {
    /// `None`: the right was given back.
    joined: Option<Arc<Joined>>,
}

impl Runner {
    /// Takes the ends of the next transaction. Empty: none waits, and the right is given back.
    fn next(&mut self) -> Vec<Waiting> {
        let Some(joined) = self.joined.take() else { return Vec::new() };
        let mut state = joined.state();
        // Nobody is there to be answered.
        state.waiting.retain(|one| !one.request.is_closed());
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
        } else {
            self.joined = Some(Arc::clone(&joined));
        }
        drop(state);
        next
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(joined) = &self.joined {
            joined.state().runners -= 1;
        }
    }
}

impl Store {
    /// Ends an assignment in a transaction with others. Without an answer within 30 s, the worker has to ask again.
    pub(crate) async fn end_with_others(&self, end: End) -> Ended {
        if end.ending().is_none() {
            return Ok(Settlement::Stale);
        }
        let (request, ended) = oneshot::channel();
        if let Some(runner) = self.joined.add(Waiting { end, request })? {
            // In a task of its own: the others' ends do not depend on this request.
            tokio::spawn(self.clone().run(runner));
        }
        match timeout(PATIENCE, ended).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) | Err(_) => Err(StoreError::Database(DatabaseError::Deadline)),
        }
    }

    async fn run(self, mut runner: Runner) {
        loop {
            let next = runner.next();
            if next.is_empty() {
                return;
            }
            self.end_together(next).await;
        }
    }

    async fn end_together(&self, all: Vec<Waiting>) {
        let endings: Vec<Ending<'_>> = all.iter().filter_map(|one| one.end.ending()).collect();
        match self.end_without_extras(&endings).await {
            Ok(settled) => {
                for (one, settled) in all.into_iter().zip(settled) {
                    match settled {
                        Some(settlement) => one.answer(Ok(settlement)),
                        // What it feeds, by applets too, is not for the others to wait for.
                        None => drop(tokio::spawn(self.clone().end_alone(one))),
                    }
                }
            }
            // One of them is at fault: the others are not to suffer.
            Err(StoreError::Database(DatabaseError::Refused { .. })) if endings.len() > 1 => {
                for one in all {
                    tokio::spawn(self.clone().end_alone(one));
                }
            }
            Err(StoreError::Database(error)) => {
                for one in all {
                    one.answer(Err(StoreError::Database(error.clone())));
                }
            }
            Err(error) => {
                let text = error.to_string();
                for one in all {
                    one.answer(Err(StoreError::Unexpected(text.clone())));
                }
            }
        }
    }

    async fn end_alone(self, one: Waiting) {
        let ended = self.end_one(one.end.ending()).await;
        one.answer(ended);
    }
}
