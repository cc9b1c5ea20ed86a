//! Adoption: moves the messages of stores that belong to nobody into the store of this instance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Names, Store, adopter, ids, open, sweep};
use crate::scheduler::Millis;
use hostler_queue::{Admin as _, QueueError};
use hostler_queue_embedded::{Batch, EmbeddedBroker};

/// Number of messages that are moved in one transaction.
pub(super) const MESSAGES: usize = 5_000;

/// News of an adoption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// So many messages were added to the store of this instance.
    Moved(usize),
    /// Subjects are closed until these times, by the clock of this instance's store.
    Closed(Vec<(String, Millis)>),
    /// A store was adopted whole, and is removed.
    Adopted(Uuid),
}

/// Adopts stores for one instance.
pub struct Adopter {
    store: Arc<Store>,
    /// The queue of the instance.
    own: Arc<EmbeddedBroker>,
    names: Names,
    /// Number of messages that are moved in one transaction.
    batch: usize,
    /// Time for which a store must belong to nobody before it is adopted. An instance that restarts takes it over meanwhile.
    patience: Duration,
    /// Stores that nobody has, with the time at which that was found.
    free: HashMap<Uuid, Instant>,
    /// Stores that could not be adopted, with the error that was logged.
    failed: HashMap<Uuid, String>,
}

/// Watches a round.
pub(super) struct Watcher<'a> {
    /// Asked before each batch.
    pub(super) go_on: &'a (dyn Fn() -> bool + Sync),
    /// Takes the news.
    pub(super) tell: &'a mut (dyn FnMut(Progress) + Send),
}

impl Adopter {
    /// Creates an adopter for `store`, whose queue is `own`. `patience`: time for which a store must belong to nobody before it
    /// is adopted.
    pub fn new(store: Arc<Store>, own: Arc<EmbeddedBroker>, names: Names, patience: Duration) -> Self {
        Self { store, own, names, batch: MESSAGES, patience, free: HashMap::new(), failed: HashMap::new() }
    }

    #[cfg(test)]
    pub(super) fn in_batches_of(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Returns the number of stores that could not be adopted.
    #[cfg(test)]
    pub(super) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Adopts the stores that have belonged to nobody for long enough: moves their messages into the store of this
    /// instance, and removes them. A store that cannot be adopted is logged and left, and does not keep others from being
    /// adopted. Also gives messages of priorities that the config no longer has the default priority. `go_on`: asked before
    /// each batch. Blocks, so that it needs a thread of its own.
    ///
    /// # Errors
    /// The folder of the stores cannot be read, or the store of this instance fails.
    pub async fn round(
        &mut self,
        go_on: &(dyn Fn() -> bool + Sync),
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), String> {
        let mut watcher = Watcher { go_on, tell };
        self.gather(&mut watcher).await.map_err(text)?;
        sweep(&self.store.folder);
        let found = ids(&self.store.folder).map_err(text)?;
        self.free.retain(|id, _| found.contains(id));
        self.failed.retain(|id, _| found.contains(id));
        for id in found {
            if id == self.store.id || !(watcher.go_on)() {
                continue;
            }
            match self.adopt_free(id, &mut watcher).await {
                Ok(()) => drop(self.failed.remove(&id)),
                Err(error) if self.failed.get(&id) == Some(&error) => {}
                Err(error) => {
                    let store = self.store.folder.join(id.to_string());
                    tracing::error!(
                        store = %store.display(),
                        error,
                        "cannot adopt the store of another instance; its messages wait"
                    );
                    self.failed.insert(id, error);
                }
            }
        }
        Ok(())
    }

    async fn adopt_free(&mut self, id: Uuid, watcher: &mut Watcher<'_>) -> Result<(), String> {
        let Some(store) = Store::lock(&self.store.folder, id).map_err(text)? else {
            self.free.remove(&id);
            return Ok(());
        };
        if self.free.entry(id).or_insert_with(Instant::now).elapsed() < self.patience {
            return Ok(());
        }
        self.adopt_one(store, watcher).await
    }

    /// Adopts one store, after those whose adoption its instance has begun. Does nothing if it is another instance's turn.
    async fn adopt_one(&self, store: Store, watcher: &mut Watcher<'_>) -> Result<(), String> {
        if let Some(adopter) = store.adopter().map_err(text)?
            && adopter != self.store.id
            && self.store.folder.join(adopter.to_string()).try_exists().map_err(text)?
        {
            return Ok(());
        }
        for id in ids(&self.store.folder).map_err(text)? {
            match adopter(&self.store.folder, id) {
                Ok(adopter) if adopter == Some(store.id) => {}
                Ok(_) => continue,
                // It may never be readable, and must not keep others from being adopted.
                Err(error) => {
                    tracing::warn!(
                        store = %id,
                        %error,
                        "cannot read the adopter of a store: up to {MESSAGES} of its messages may be delivered twice if the \
                         fault is mended"
                    );
                    continue;
                }
            }
            let Some(inherited) = Store::lock(&self.store.folder, id).map_err(text)? else { return Ok(()) };
            self.inherit(&store, &inherited).await?;
            match self.move_all(inherited, watcher).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // From now on, it is this instance that adopts it, so that the others need not wait for it.
                Err(error) => tracing::error!(store = %id, error, "cannot adopt a store whose adopter has ended too"),
            }
        }
        self.move_all(store, watcher).await.map(drop)
    }

    /// Becomes the adopter of `inherited`, whose adoption the instance of `store` had begun. Its last batch may be in `store`
    /// too.
    async fn inherit(&self, store: &Store, inherited: &Store) -> Result<(), String> {
        if store.queue().try_exists().map_err(text)? {
            let name = inherited.id.to_string();
            match stored_from(store, &name).await {
                Ok(last) => self.own.remember_stored_from(&name, last).await.map_err(text)?,
                Err(QueueError::Refused(error)) => tracing::error!(
                    store = %store.id,
                    error,
                    "a store is damaged, and does not say which messages it had adopted: up to {MESSAGES} of them may be \
                     delivered twice if it is mended"
                ),
                Err(error) => return Err(error.to_string()),
            }
        }
        inherited.name_adopter(self.store.id).map_err(text)
    }

    /// Moves all messages of a store, and removes it. Returns `false` if it was told to stop.
    async fn move_all(&self, store: Store, watcher: &mut Watcher<'_>) -> Result<bool, String> {
        store.name_adopter(self.store.id).map_err(text)?;
        let name = store.id.to_string();
        // Absence only: a file that cannot be looked at has messages, which the removal of the store would lose.
        if store.queue().try_exists().map_err(text)? {
            let theirs = open(&store.queue()).map_err(text)?;
            let moved = self.move_queue(&theirs, &name, watcher).await.map_err(text);
            // Before the file is removed.
            theirs.close().await;
            if !moved? {
                return Ok(false);
            }
        }
        let id = store.id;
        store.remove().map_err(text)?;
        tracing::info!(store = name, "adopted the store of an instance that has ended");
        (watcher.tell)(Progress::Adopted(id));
        self.own.forget_stored_from(&name).await.map_err(text)?;
        Ok(true)
    }

    async fn move_queue(
        &self,
        theirs: &EmbeddedBroker,
        name: &str,
        watcher: &mut Watcher<'_>,
    ) -> Result<bool, QueueError> {
        let closed = theirs.closed_subjects().await?;
        if !closed.is_empty() {
            (watcher.tell)(Progress::Closed(self.own.close_subjects(closed).await?));
        }
        let mut removed = Arc::<Batch>::default();
        loop {
            if !(watcher.go_on)() {
                return Ok(false);
            }
            let batch = Arc::new(theirs.read_batch(self.batch).await?);
            if batch.messages.is_empty() {
                return Ok(true);
            }
            let stored = self.own.store_batch(name, Arc::clone(&batch), removed).await?;
            self.gather(watcher).await?;
            (watcher.tell)(Progress::Moved(stored));
            theirs.remove_batch(&batch).await?;
            removed = batch;
        }
    }

    /// Moves the messages of queues that nobody schedules, because their priorities are no longer in the config, to the queue
    /// of the default priority.
    async fn gather(&self, watcher: &mut Watcher<'_>) -> Result<(), QueueError> {
        for queue in self.own.channels().await?.into_iter().filter(|queue| self.names.is_stray(queue)) {
            while (watcher.go_on)() {
                let moved = self.own.move_entries(queue.queue(), self.names.default.queue(), self.batch).await?;
                if moved == 0 {
                    break;
                }
                tracing::info!(queue = %queue, messages = moved, "messages of a priority that the config lacks get the default one");
                (watcher.tell)(Progress::Moved(moved));
            }
        }
        Ok(())
    }
}

async fn stored_from(store: &Store, name: &str) -> Result<Vec<Vec<u8>>, QueueError> {
    let theirs = open(&store.queue())?;
    let last = theirs.stored_from(name).await;
    theirs.close().await;
    last
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
