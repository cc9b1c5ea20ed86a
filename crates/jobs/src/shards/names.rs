//! Ids that clients chose. They say nothing about the database, so they are looked up in all of them.

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use hostler_postgres::{Param, Type};

use crate::ids::ItemRef;
use crate::limits;
use crate::shards::Shards;
use crate::shards::route::home;
use crate::store::{Store, StoreError};
use crate::types::{NewItem, NewJob};

/// The ids that a client chose for a tree or for items.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen<'c> {
    jobs: Vec<&'c str>,
    items: Vec<&'c str>,
}

impl<'c> Chosen<'c> {
    /// The ids of a tree.
    pub(super) fn of_tree(root: &'c NewJob) -> Chosen<'c> {
        let mut chosen = Chosen::default();
        chosen.add(root);
        chosen
    }

    /// The ids of items.
    pub(super) fn of_items(items: &'c [NewItem]) -> Chosen<'c> {
        Chosen { jobs: Vec::new(), items: items.iter().filter_map(|item| item.id.as_deref()).collect() }
    }

    fn add(&mut self, job: &'c NewJob) {
        self.jobs.extend(job.id.as_deref());
        self.items.extend(job.items.iter().filter_map(|item| item.id.as_deref()));
        for child in &job.children {
            self.add(child);
        }
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.items.is_empty()
    }
}

impl Shards {
    /// The database of a job: its home, unless a client chose the id of a child.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if no database has it; [`StoreError::Database`] if one that may have it does not answer.
    pub(super) async fn of_job(&self, id: &str) -> Result<usize, StoreError> {
        let missing = || StoreError::NotFound { what: "job", id: id.to_owned() };
        limits::key("id", id).map_err(|_| missing())?;
        let first = home(id, self.count());
        let at_home = self.ask(first, has_job(self.store(first)?, id)).await;
        if matches!(at_home, Ok(true)) {
            return Ok(first);
        }
        let others = (0..self.count()).filter(|number| *number != first);
        match self.first_of(others, |store| has_job(store, id)).await? {
            Some(number) => Ok(number),
            None => Err(at_home.err().unwrap_or_else(missing)),
        }
    }

    /// The database of an item, whose id is the client's or names it.
    ///
    /// # Errors
    /// As [`Self::of_job`].
    pub(super) async fn of_item(&self, id: &str) -> Result<usize, StoreError> {
        if let Some(item) = ItemRef::parse(id) {
            return Ok(super::route::of_item(item));
        }
        let found = self.first_of(0..self.count(), |store| async move { Ok(store.item_ref(id).await?.is_some()) });
        found.await?.ok_or_else(|| StoreError::NotFound { what: "item", id: id.to_owned() })
    }

    /// Refuses ids that another database has. Two requests at the same moment may still choose the same id.
    pub(super) async fn refuse_taken(&self, shard: usize, chosen: &Chosen<'_>) -> Result<(), StoreError> {
        if chosen.is_empty() {
            return Ok(());
        }
        let others = self.stores().iter().enumerate().filter(|(number, _)| *number != shard);
        for answer in join_all(others.map(|(number, store)| self.ask(number, taken(store, chosen)))).await {
            if let Some(job_id) = answer? {
                return Err(StoreError::Conflict { reason: "id", job_id });
            }
        }
        Ok(())
    }

    /// Asks databases at once. Returns the first that has something.
    async fn first_of<'s, F>(
        &'s self,
        numbers: impl Iterator<Item = usize>,
        ask: impl Fn(&'s Store) -> F,
    ) -> Result<Option<usize>, StoreError>
    where
        F: Future<Output = Result<bool, StoreError>>,
    {
        let stores = numbers.filter_map(|number| Some((number, self.stores().get(number)?)));
        let asked = stores.map(|(number, store)| {
            let answer = self.ask(number, ask(store));
            async move { (number, answer.await) }
        });
        let (mut asked, mut failed) = (asked.collect::<FuturesUnordered<_>>(), None);
        while let Some((number, answer)) = asked.next().await {
            match answer {
                Ok(true) => return Ok(Some(number)),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

async fn has_job(store: &Store, id: &str) -> Result<bool, StoreError> {
    let rows = store.call("SELECT EXISTS (SELECT FROM hostler_jobs.job WHERE id = $1)", &[(&id, Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Returns whether a database has one of the ids, with the job if it is a job's.
async fn taken(store: &Store, chosen: &Chosen<'_>) -> Result<Option<Option<String>>, StoreError> {
    let sql = "SELECT id FROM (SELECT j.id FROM hostler_jobs.job j WHERE j.id = ANY ($1) \
        UNION ALL SELECT NULL FROM hostler_jobs.item_id i WHERE i.id = ANY ($2)) t LIMIT 1";
    let params: [Param<'_>; 2] = [(&chosen.jobs, Type::TEXT_ARRAY), (&chosen.items, Type::TEXT_ARRAY)];
    let rows = store.call(sql, &params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_of_the_whole_tree_are_chosen() {
        let tree = json!({"type": "a", "items": [{"payload": 1, "id": "i"}, {"payload": 2}],
            "children": [{"type": "b", "id": "j", "items": [{"payload": 1, "id": "k"}]}]});
        let tree: NewJob = serde_json::from_str(&tree.to_string()).unwrap();
        let chosen = Chosen::of_tree(&tree);
        assert_eq!((chosen.jobs.as_slice(), chosen.items.as_slice()), (&["j"][..], &["i", "k"][..]));
        assert!(!chosen.is_empty() && Chosen::of_items(&[]).is_empty());
    }
}
