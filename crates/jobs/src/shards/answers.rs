//! The databases that do not answer: calls leave them out, and a probe asks each until it answers again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hostler_postgres::DatabaseError;
use tokio::time::{sleep, timeout};

use crate::shards::Shards;
use crate::store::{Store, StoreError};

/// The longest time for which a call that needs one of several databases waits for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two probes of a database that does not answer.
pub(super) const PROBE: Duration = Duration::from_millis(500);

/// The numbers of databases, each with the time since which it does not answer.
pub(super) type Numbers = BTreeMap<usize, Instant>;

/// The databases that do not answer. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Away(Arc<Mutex<Numbers>>);

impl Away {
    /// Adds a database. Returns `false` if it was known to be away.
    pub(super) fn add(&self, number: usize) -> bool {
        match locked(&self.0).entry(number) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Instant::now());
                true
            }
        }
    }

    /// Removes a database that answers.
    pub(super) fn remove(&self, number: usize) {
        locked(&self.0).remove(&number);
    }

    /// Refers to the databases for as long as others do.
    pub(super) fn weak(&self) -> Weak<Mutex<Numbers>> {
        Arc::downgrade(&self.0)
    }
}

impl From<Arc<Mutex<Numbers>>> for Away {
    fn from(numbers: Arc<Mutex<Numbers>>) -> Away {
        Away(numbers)
    }
}

fn locked(away: &Mutex<Numbers>) -> MutexGuard<'_, Numbers> {
    away.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shards {
    /// Returns `true` if a database did not answer lately.
    pub(super) fn is_away(&self, number: usize) -> bool {
        locked(&self.away.0).contains_key(&number)
    }

    /// Returns `true` if a database has not answered for longer than [`PATIENCE`]. One that starts anew is back before.
    pub(super) fn is_long_away(&self, number: usize) -> bool {
        locked(&self.away.0).get(&number).is_some_and(|since| since.elapsed() > PATIENCE)
    }

    /// The places of the databases that do not answer, in their order.
    pub fn away(&self) -> Vec<&str> {
        let away = locked(&self.away.0);
        away.keys().filter_map(|number| self.stores.get(*number)).map(Store::place).collect()
    }

    /// Notes that a database did not answer. From now on it is left out, until a probe finds that it answers.
    pub(super) fn note_away(&self, number: usize, error: &StoreError) {
        let Some(store) = self.stores.get(number).cloned() else { return };
        if !self.away.add(number) {
            return;
        }
        store.note_silence(error);
        // Ends with the last of those that would ask the database.
        let away = self.away.weak();
        tokio::spawn(async move {
            if probe(&store, &away).await
                && let Some(away) = away.upgrade()
            {
                Away(away).remove(number);
                store.note_answer();
            }
        });
    }

    /// Notes the outcome of a call to a database.
    pub(super) fn note<T>(&self, number: usize, outcome: &Result<T, StoreError>) {
        if let Err(error) = outcome
            && is_no_answer(error)
        {
            self.note_away(number, error);
        }
    }

    /// Makes a call to a database, if it answers in time. One that is away fails it at once.
    ///
    /// # Errors
    /// [`DatabaseError::Deadline`] if the database is away or does not answer within [`PATIENCE`]; otherwise that of the call.
    pub(super) async fn ask<T>(
        &self,
        number: usize,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.unless_away(number, in_time(call)).await
    }

    /// Makes a call to a database, also if it is away.
    ///
    /// # Errors
    /// [`DatabaseError::Deadline`] if the database does not answer within [`PATIENCE`]; otherwise that of the call.
    pub(super) async fn patiently<T>(
        &self,
        number: usize,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let outcome = in_time(call).await;
        self.note(number, &outcome);
        outcome
    }

    /// Makes a call to a database that may take long. One that is away fails it at once.
    ///
    /// # Errors
    /// [`DatabaseError::Deadline`] if the database is away; otherwise that of the call.
    pub(super) async fn unless_away<T>(
        &self,
        number: usize,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if self.is_away(number) {
            return Err(StoreError::Database(DatabaseError::Deadline));
        }
        let outcome = call.await;
        self.note(number, &outcome);
        outcome
    }

    /// The databases that claims ask, from `first` on: those that answer, or the first if none does.
    pub(super) fn claim_order(&self, first: usize) -> Vec<usize> {
        order(first, self.count(), &locked(&self.away.0))
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(PATIENCE, call).await.unwrap_or(Err(StoreError::Database(DatabaseError::Deadline)))
}

/// The databases that answer, from `first` on; only the first if none does.
fn order(first: usize, count: usize, away: &Numbers) -> Vec<usize> {
    let all = (0..count).map(|n| (first + n) % count);
    let answering: Vec<usize> = all.filter(|number| !away.contains_key(number)).collect();
    if answering.is_empty() { vec![first] } else { answering }
}

/// Returns `true` for an error after which a database is left out.
pub(super) fn is_no_answer(error: &StoreError) -> bool {
    matches!(error, StoreError::Database(DatabaseError::Unreachable { .. } | DatabaseError::Deadline))
}

/// Asks a database until it answers. Returns `false` if nobody needs it any more.
async fn probe(store: &Store, away: &Weak<Mutex<Numbers>>) -> bool {
    while away.strong_count() > 0 {
        if let Ok(Ok(())) = timeout(PATIENCE, store.ping()).await {
            return true;
        }
        sleep(PROBE).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_are_away_are_left_out() {
        let of = |away: &[usize]| order(2, 4, &away.iter().map(|number| (*number, Instant::now())).collect());
        assert_eq!(of(&[]), [2, 3, 0, 1]);
        assert_eq!(of(&[3, 0]), [2, 1]);
        assert_eq!(of(&[0, 1, 2, 3]), [2]);
    }

    #[test]
    fn only_a_database_without_an_answer_is_left_out() {
        let refused = DatabaseError::Refused { code: "22P02".to_owned(), message: "no".to_owned() };
        assert!(is_no_answer(&StoreError::Database(DatabaseError::Deadline)));
        assert!(!is_no_answer(&StoreError::Database(refused)) && !is_no_answer(&StoreError::Gone));
    }
}
