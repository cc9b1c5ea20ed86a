//! Pages of jobs and items: first those of the first database, then those of the next.

use crate::shards::Shards;
use crate::store::StoreError;
use crate::types::{ItemPage, ItemQuery, JobPage, JobQuery};

/// A place in the lists of all databases: `<database>.<cursor>`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    shard: usize,
    /// The cursor in that database; `None`: its beginning.
    cursor: Option<String>,
}

impl Place {
    /// Reads a cursor.
    fn parse(text: Option<&str>, count: usize) -> Result<Place, StoreError> {
        let Some(text) = text else { return Ok(Place { shard: 0, cursor: None }) };
        let fault = || StoreError::invalid("cursor", "is not the `next` of a page");
        let (shard, cursor) = text.split_once('.').ok_or_else(fault)?;
        let shard = shard.parse().ok().filter(|shard| *shard < count).ok_or_else(fault)?;
        Ok(Place { shard, cursor: (!cursor.is_empty()).then(|| cursor.to_owned()) })
    }

    /// The place after a page of a database, whose own `next` is given. `None`: this was the last page.
    fn after(shard: usize, next: Option<String>, last: usize) -> Option<Place> {
        match next {
            Some(next) => Some(Place { shard, cursor: Some(next) }),
            None if shard < last => Some(Place { shard: shard + 1, cursor: None }),
            None => None,
        }
    }

    fn text(&self) -> String {
        format!("{}.{}", self.shard, self.cursor.as_deref().unwrap_or_default())
    }
}

impl Shards {
    /// A page of jobs. In each database they come in the order of their creation. A page is short where a database ends.
    ///
    /// # Errors
    /// As [`crate::store::Store::jobs`].
    pub async fn jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        if let Some(store) = self.single() {
            return store.jobs(query).await;
        }
        let (mut place, last) = self.range(query.root_id.as_deref(), query.cursor.as_deref()).await?;
        loop {
            let own = JobQuery { cursor: place.cursor.take(), ..query.clone() };
            let page = self.store(place.shard)?.jobs(&own).await?;
            match Place::after(place.shard, page.next, last) {
                Some(next) if page.jobs.is_empty() => place = next,
                next => return Ok(JobPage { jobs: page.jobs, next: next.map(|next| next.text()) }),
            }
        }
    }

    /// A page of items. In each database they come in the order of their creation. A page is short where a database ends.
    ///
    /// # Errors
    /// As [`crate::store::Store::items`].
    pub async fn items(&self, query: &ItemQuery) -> Result<ItemPage, StoreError> {
        if let Some(store) = self.single() {
            return store.items(query).await;
        }
        let tree = query.job_id.as_deref().or(query.root_id.as_deref());
        let (mut place, last) = self.range(tree, query.cursor.as_deref()).await?;
        loop {
            let own = ItemQuery { cursor: place.cursor.take(), ..query.clone() };
            let page = self.store(place.shard)?.items(&own).await?;
            match Place::after(place.shard, page.next, last) {
                // A page without items that goes on in its database has looked at many: it is the caller's to go on.
                Some(next) if page.items.is_empty() && next.shard > place.shard => place = next,
                next => return Ok(ItemPage { items: page.items, next: next.map(|next| next.text()) }),
            }
        }
    }

    /// The place of a page's beginning, and the last database of the list: the only one if a job is named.
    async fn range(&self, job: Option<&str>, cursor: Option<&str>) -> Result<(Place, usize), StoreError> {
        let place = Place::parse(cursor, self.count())?;
        let Some(job) = job else { return Ok((place, self.count() - 1)) };
        let shard = match self.of_job(job).await {
            // The first database answers as it does for jobs that do not exist.
            Err(StoreError::NotFound { .. }) => 0,
            shard => shard?,
        };
        let cursor = if place.shard == shard { place.cursor } else { None };
        Ok((Place { shard, cursor }, shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written() {
        for place in [Place { shard: 3, cursor: None }, Place { shard: 0, cursor: Some("4e2a-1".to_owned()) }] {
            assert_eq!(Place::parse(Some(&place.text()), 4).unwrap(), place);
        }
        for text in ["", "4.", "-1.", "x.1", "12"] {
            assert!(matches!(Place::parse(Some(text), 4), Err(StoreError::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn a_database_follows_the_one_before() {
        let next =
            |shard, cursor: Option<&str>| Place::after(shard, cursor.map(str::to_owned), 3).map(|next| next.text());
        assert_eq!(next(1, Some("a")).as_deref(), Some("1.a"));
        assert_eq!(next(1, None).as_deref(), Some("2."));
        assert_eq!(next(3, None), None);
    }
}
