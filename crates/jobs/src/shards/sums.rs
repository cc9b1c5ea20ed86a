//! Counts and checks over all databases.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::shards::Shards;
use crate::store::{Counts, Store, StoreError};

/// The counts of those databases that answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Summed<'s> {
    /// Their sum. `None`: no database answers.
    pub counts: Option<Counts>,
    /// `host:port/name` of each database, and `true` if it answered.
    pub up: Vec<(&'s str, bool)>,
}

impl Shards {
    /// Counts for metrics, of all databases that answer.
    pub async fn counts(&self) -> Summed<'_> {
        let answers = join_all((0..self.count()).map(|number| self.counts_of(number))).await;
        let up = self.stores().iter().map(Store::place).zip(answers.iter().map(Result::is_ok)).collect();
        Summed { counts: answers.into_iter().flatten().reduce(add), up }
    }

    async fn counts_of(&self, number: usize) -> Result<Counts, StoreError> {
        if let Some(store) = self.single() {
            return store.counts().await;
        }
        let store = self.store(number)?;
        // Counting may take long in a sound database. This call does not, so that one that hangs costs little time.
        self.ask(number, store.ping()).await?;
        self.unless_away(number, store.counts()).await
    }

    /// Checks that one of the databases answers at least.
    ///
    /// # Errors
    /// [`StoreError::Database`]: none answers.
    pub async fn ping_any(&self) -> Result<(), StoreError> {
        let answers = join_all(self.stores().iter().map(Store::ping)).await;
        answers.into_iter().reduce(Result::or).unwrap_or(Ok(()))
    }

    /// Checks that the databases have the schema of this version, and that one of them answers at least.
    ///
    /// # Errors
    /// As [`Store::check_schema`]: that of a wrong schema, or the last one if no database answers.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        if let Some(store) = self.single() {
            return store.check_schema().await;
        }
        let asked = self.stores().iter().enumerate().map(|(number, store)| self.ask(number, store.check_schema()));
        let answers = join_all(asked).await;
        let answers_some = answers.iter().any(Result::is_ok);
        let mut failed = Ok(());
        for answer in answers {
            match answer {
                Err(StoreError::Database(_)) if answers_some => {}
                Err(error) => failed = Err(error),
                Ok(()) => {}
            }
        }
        failed
    }

    /// The seconds since each sweep of this process last ended well, by name: of the database where that is longest ago.
    pub fn sweep_lags(&self) -> Vec<(&'static str, f64)> {
        let mut lags: BTreeMap<&'static str, f64> = BTreeMap::new();
        for (name, lag) in self.stores().iter().flat_map(Store::sweep_lags) {
            let longest = lags.entry(name).or_default();
            *longest = longest.max(lag);
        }
        lags.into_iter().collect()
    }
}

/// Adds the counts of two databases.
fn add(sum: Counts, more: Counts) -> Counts {
    Counts {
        pending: merge(sum.pending, more.pending),
        ready: merge(sum.ready, more.ready),
        later: merge(sum.later, more.later),
        assigned: merge(sum.assigned, more.assigned),
        waiting: sum.waiting + more.waiting,
        open_trees: sum.open_trees + more.open_trees,
        open_jobs: sum.open_jobs + more.open_jobs,
        callbacks: sum.callbacks + more.callbacks,
        dead_callbacks: sum.dead_callbacks + more.dead_callbacks,
        oldest_ready_seconds: sum.oldest_ready_seconds.max(more.oldest_ready_seconds),
    }
}

/// Adds counts by type.
fn merge(sum: Vec<(String, u64)>, more: Vec<(String, u64)>) -> Vec<(String, u64)> {
    let mut merged: BTreeMap<String, u64> = BTreeMap::new();
    for (kind, count) in sum.into_iter().chain(more) {
        *merged.entry(kind).or_default() += count;
    }
    merged.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_by_type() {
        let counts = |kind: &str, count, oldest| Counts {
            ready: vec![(kind.to_owned(), count)],
            waiting: count,
            oldest_ready_seconds: oldest,
            ..Counts::default()
        };
        let sum =
            [counts("b", 1, 2.0), counts("a", 2, 5.0), counts("b", 3, 1.0)].into_iter().fold(Counts::default(), add);
        assert_eq!(sum.ready, [("a".to_owned(), 2), ("b".to_owned(), 4)]);
        assert_eq!((sum.waiting, sum.oldest_ready_seconds), (6, 5.0));
    }
}
