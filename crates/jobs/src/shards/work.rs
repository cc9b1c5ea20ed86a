//! Calls on assignments, whose ids name the database.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use crate::limits::MAX_ASSIGNMENTS;
use crate::shards::Shards;
use crate::shards::route::of_assignment;
use crate::store::settle::check;
use crate::store::{Settlement, Store, StoreError};
use crate::types::{Assigned, Failure, Progress, Settled, SettledStatus, Success};

/// The results and failures of a request for one database, with their positions in the request.
#[derive(Default)]
struct Part {
    places: Vec<usize>,
    results: Vec<Success>,
    failures: Vec<Failure>,
}

/// Splits results and failures by database. Positions count results first.
fn parts(results: Vec<Success>, failures: Vec<Failure>) -> BTreeMap<usize, Part> {
    let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
    let total = results.len();
    for (place, result) in results.into_iter().enumerate() {
        let part = parts.entry(of_assignment(&result.assignment_id)).or_default();
        part.places.push(place);
        part.results.push(result);
    }
    for (place, failure) in failures.into_iter().enumerate() {
        let part = parts.entry(of_assignment(&failure.assignment_id)).or_default();
        part.places.push(total + place);
        part.failures.push(failure);
    }
    parts
}

/// Splits ids of assignments by database.
fn split(ids: &[String]) -> BTreeMap<usize, Vec<String>> {
    let mut parts: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for id in ids {
        parts.entry(of_assignment(id)).or_default().push(id.clone());
    }
    parts
}

impl Shards {
    /// Assigns available items to a worker: one database is asked after the other, each time beginning with another, until there are
    /// `max`. A database that does not answer within 2 s is left out until it does.
    ///
    /// # Errors
    /// As [`Store::claim`], if no database answered.
    pub async fn claim(&self, types: &[String], worker: &str, max: usize) -> Result<Vec<Assigned>, StoreError> {
        if let Some(store) = self.single() {
            return store.claim(types, worker, max).await;
        }
        let (mut given, mut answered, mut failed) = (Vec::new(), false, None);
        for number in self.claim_order(fastrand::usize(..self.count())) {
            // A claim that is given up gives its items back.
            let asked = self.store(number)?.claim(types, worker, max - given.len());
            match self.patiently(number, asked).await {
                Ok(more) => {
                    given.extend(more);
                    answered = true;
                }
                Err(error @ StoreError::Invalid { .. }) => return Err(error),
                Err(error) => failed = Some(error),
            }
            if given.len() >= max {
                break;
            }
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => Ok(given),
        }
    }

    /// Assigns an item to a worker.
    ///
    /// # Errors
    /// As [`Store::assign`].
    pub async fn assign(&self, item: &str, worker: &str) -> Result<Assigned, StoreError> {
        match self.single() {
            Some(store) => store.assign(item, worker).await,
            None => self.store(self.of_item(item).await?)?.assign(item, worker).await,
        }
    }

    /// Ends assignments by results and failures: one transaction in each database, all at once.
    ///
    /// # Errors
    /// As [`Store::settle`]. If one database fails, what the others accepted stays: the same call may be repeated.
    pub async fn settle(&self, results: Vec<Success>, failures: Vec<Failure>) -> Result<Vec<Settled>, StoreError> {
        if let Some(store) = self.single() {
            return store.settle(results, failures).await;
        }
        check(&results, &failures)?;
        let has_keys = self.has_applets() || results.iter().any(adds_keys);
        let ids = results.iter().map(|one| &one.assignment_id).chain(failures.iter().map(|one| &one.assignment_id));
        let mut settled: Vec<Settled> =
            ids.map(|id| Settled { assignment_id: id.clone(), status: SettledStatus::Stale }).collect();
        let parts = parts(results, failures);
        let shards: Vec<usize> = parts.keys().copied().collect();
        let calls = parts.into_iter().map(|(number, part)| async move {
            let ended = self.unless_away(number, self.store(number)?.settle(part.results, part.failures)).await?;
            Ok::<_, StoreError>((part.places, ended))
        });
        let mut failed = None;
        for answer in join_all(calls).await {
            match answer {
                Ok((places, ended)) => {
                    for (place, one) in places.into_iter().zip(ended) {
                        if let Some(entry) = settled.get_mut(place) {
                            *entry = one;
                        }
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        self.note_end(shards.into_iter().filter(|_| has_keys)).await;
        failed.map_or(Ok(settled), Err)
    }

    /// Ends an assignment by a result, which may add items to jobs of its tree and seal some.
    ///
    /// # Errors
    /// As [`Store::end_by_result`].
    pub async fn end_by_result(&self, success: Success) -> Result<Settlement, StoreError> {
        if let Some(store) = self.single() {
            return store.end_by_result(success).await;
        }
        let (number, has_keys) = (of_assignment(&success.assignment_id), self.has_applets() || adds_keys(&success));
        let ended = self.store(number)?.end_by_result(success).await;
        self.note_end(has_keys.then_some(number).into_iter()).await;
        ended
    }

    /// Ends an assignment by a failure, which may be final.
    ///
    /// # Errors
    /// As [`Store::end_by_failure`].
    pub async fn end_by_failure(&self, failure: Failure) -> Result<Settlement, StoreError> {
        if let Some(store) = self.single() {
            return store.end_by_failure(failure).await;
        }
        let ended = self.store(of_assignment(&failure.assignment_id))?.end_by_failure(failure).await;
        self.note_change();
        ended
    }

    /// Extends assignments. Returns those that have ended.
    ///
    /// # Errors
    /// As [`Store::heartbeat`].
    pub async fn heartbeat(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> {
        self.heartbeat_with(assignments, &BTreeMap::new()).await
    }

    /// Extends assignments, and notes the progress of some of them. Returns those that have ended.
    ///
    /// # Errors
    /// As [`Store::heartbeat_with`]. If one database fails, the others' assignments are extended all the same.
    pub async fn heartbeat_with(
        &self,
        assignments: &[String],
        progress: &BTreeMap<String, Progress>,
    ) -> Result<Vec<String>, StoreError> {
        if let Some(store) = self.single() {
            return store.heartbeat_with(assignments, progress).await;
        }
        self.of_all(assignments, |store, ids| async move {
            let told = |id: &String| Some((id.clone(), progress.get(id)?.clone()));
            let told: BTreeMap<String, Progress> = ids.iter().filter_map(told).collect();
            store.heartbeat_with(&ids, &told).await
        })
        .await
    }

    /// Gives items back without a failure. Returns the assignments that had ended.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub async fn release(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> {
        self.release_after(assignments, Duration::ZERO).await
    }

    /// Gives items back without a failure, to be claimed after a delay. Returns the assignments that had ended.
    ///
    /// # Errors
    /// As [`Store::release_after`].
    pub async fn release_after(&self, assignments: &[String], delay: Duration) -> Result<Vec<String>, StoreError> {
        if let Some(store) = self.single() {
            return store.release_after(assignments, delay).await;
        }
        self.of_all(assignments, |store, ids| async move { store.release_after(&ids, delay).await }).await
    }

    /// Calls all databases at once, each with its assignments. Returns what they return, in the order of the request.
    async fn of_all<'s, F>(
        &'s self,
        assignments: &[String],
        call: impl Fn(&'s Store, Vec<String>) -> F,
    ) -> Result<Vec<String>, StoreError>
    where
        F: Future<Output = Result<Vec<String>, StoreError>>,
    {
        if assignments.len() > MAX_ASSIGNMENTS {
            return Err(StoreError::invalid("assignment_ids", format!("has {MAX_ASSIGNMENTS} entries at most")));
        }
        let mut calls = Vec::new();
        for (number, ids) in split(assignments) {
            calls.push(self.unless_away(number, call(self.store(number)?, ids)));
        }
        let mut stale = std::collections::HashSet::new();
        for ended in join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()? {
            stale.extend(ended);
        }
        Ok(assignments.iter().filter(|id| stale.contains(*id)).cloned().collect())
    }

    /// Notes that items have ended, and takes the tickets of those that were added.
    async fn note_end(&self, added: impl Iterator<Item = usize>) {
        for number in added {
            self.take_tickets(number).await;
        }
        self.note_change();
    }
}

/// Set if a result adds items with serialize keys.
fn adds_keys(success: &Success) -> bool {
    success.add_items.iter().any(|added| added.items.iter().any(|item| item.serialize_key.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AssignmentRef, ItemRef};

    fn id(shard: i64, token: i64) -> String {
        AssignmentRef { item: ItemRef { day: 1, seq: (shard << 48) + 1 }, token }.to_string()
    }

    #[test]
    fn requests_are_split_by_database_with_their_positions() {
        let success = |id| Success { assignment_id: id, ..Success::default() };
        let results = vec![success(id(1, 0)), success("none".to_owned()), success(id(1, 1))];
        let failure = Failure {
            assignment_id: id(1, 2),
            error: crate::json::RawJson::null(),
            retry_in_seconds: None,
            is_final: false,
        };
        let parts = parts(results, vec![failure]);
        let places: Vec<(usize, Vec<usize>)> =
            parts.iter().map(|(number, part)| (*number, part.places.clone())).collect();
        assert_eq!(places, [(0, vec![1]), (1, vec![0, 2, 3])]);
        assert_eq!(split(&[id(2, 0), id(0, 0), id(2, 1)])[&2], [id(2, 0), id(2, 1)]);
    }
}
