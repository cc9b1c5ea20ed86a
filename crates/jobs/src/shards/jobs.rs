//! Calls on jobs: each goes to the database that has the tree.

use crate::limits;
use crate::shards::Shards;
use crate::shards::names::Chosen;
use crate::shards::route;
use crate::store::{IdempotencyKey, StoreError};
use crate::types::{Created, NewItem, NewJob, Status};

impl Shards {
    /// Creates a tree, in the database that its root's own id, its dedupe key or the idempotency key names, or in any.
    ///
    /// # Errors
    /// As [`crate::store::Store::create`]. Among several databases, [`StoreError::Invalid`] for a dedupe key of a child, or of a root
    /// with an id of its own: no database alone could see to its uniqueness.
    pub async fn create(&self, mut job: NewJob, idempotency: Option<IdempotencyKey>) -> Result<Created, StoreError> {
        if let Some(store) = self.single() {
            return store.create(job, idempotency).await;
        }
        limits::flatten(&job)?;
        if let Some(field) = route::lost_dedupe_key(&job) {
            let detail = "with several databases, only a root without an id of its own may have a dedupe key";
            return Err(StoreError::invalid(field, detail));
        }
        let place = route::of_tree(&job, idempotency.as_ref().map(|key| key.key.as_str()), self.count());
        let shard = place.unwrap_or_else(|| self.any());
        self.refuse_taken(shard, &Chosen::of_tree(&job)).await?;
        route::fill_ids(&mut job, shard, self.count());
        let has_keys = route::tree_has_keys(&job);
        // After a failure, the next one goes elsewhere, if it may.
        let created = self.unless_away(shard, self.store(shard)?.create(job, idempotency)).await;
        if has_keys && created.is_ok() {
            self.take_tickets(shard).await;
        }
        created
    }

    /// Adds items to a job.
    ///
    /// # Errors
    /// As [`crate::store::Store::add_items`].
    pub async fn add_items(
        &self,
        job: &str,
        items: Vec<NewItem>,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Vec<String>, StoreError> {
        if let Some(store) = self.single() {
            return store.add_items(job, items, idempotency).await;
        }
        limits::items(&items)?;
        let shard = self.of_job(job).await?;
        self.refuse_taken(shard, &Chosen::of_items(&items)).await?;
        let has_keys = route::has_keys(&items);
        let ids = self.store(shard)?.add_items(job, items, idempotency).await?;
        if has_keys {
            self.take_tickets(shard).await;
        }
        Ok(ids)
    }

    /// Seals a job.
    ///
    /// # Errors
    /// As [`crate::store::Store::seal`].
    pub async fn seal(&self, job: &str) -> Result<(), StoreError> {
        match self.single() {
            Some(store) => store.seal(job).await,
            None => self.store(self.of_job(job).await?)?.seal(job).await,
        }
    }

    /// Deletes a job and the tree below it.
    ///
    /// # Errors
    /// As [`crate::store::Store::delete`].
    pub async fn delete(&self, job: &str) -> Result<(), StoreError> {
        if let Some(store) = self.single() {
            return store.delete(job).await;
        }
        let deleted = self.store(self.of_job(job).await?)?.delete(job).await;
        self.note_change();
        deleted
    }

    /// Makes the failed items of a job pending again. Among several databases, those with serialize keys take new tickets.
    ///
    /// # Errors
    /// As [`crate::store::Store::retry`].
    pub async fn retry(&self, job: &str) -> Result<u64, StoreError> {
        if let Some(store) = self.single() {
            return store.retry(job).await;
        }
        let retried = self.store(self.of_job(job).await?)?.retry(job).await;
        self.note_change();
        retried
    }

    /// The progress of a job and of those below it.
    ///
    /// # Errors
    /// As [`crate::store::Store::status`].
    pub async fn status(&self, job: &str) -> Result<Status, StoreError> {
        match self.single() {
            Some(store) => store.status(job).await,
            None => self.store(self.of_job(job).await?)?.status(job).await,
        }
    }

    /// Any database that answered lately.
    fn any(&self) -> usize {
        self.claim_order(fastrand::usize(..self.count())).first().copied().unwrap_or_default()
    }
}
