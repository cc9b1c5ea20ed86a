//! The stores of all instances in one folder: `<folder>/<uuid>/queue.db`, each locked by its instance for as long as that
//! lives. A store whose lock is free belongs to nobody: an instance that starts takes it over, and one that runs adopts
//! its messages and removes it.
//!
//! An adoption can end at any moment, and be continued by another instance. The file `adopter` in a store names the
//! instance that has begun. Only that instance continues, or the one that has its store now, because the last batch may
//! be in both stores (`queue-embedded/owned/moving.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use fs2::FileExt as _;
use uuid::Uuid;

use hostler_queue::QueueError;
use hostler_queue_embedded::{Batch, EmbeddedBroker, Options, Sharing};

/// Name of the queue's file in a store.
pub const QUEUE: &str = "queue.db";

const LOCK: &str = "lock";
const ADOPTER: &str = "adopter";

/// Number of messages that are moved in one transaction.
const MESSAGES: usize = 5_000;

/// A store, locked by this process.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    id: Uuid,
    /// Dropping the file releases the lock.
    _lock: File,
}

/// How an instance adopts stores.
struct Adoption<'a> {
    /// Number of messages that are moved in one transaction.
    batch: usize,
    /// The queue of the instance.
    own: &'a EmbeddedBroker,
    /// Asked before each batch.
    go_on: &'a (dyn Fn() -> bool + Sync),
    /// Called after each batch.
    moved: &'a mut (dyn FnMut(usize) + Send),
}

/// The result of an adoption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Number of stores that were removed.
    pub stores: usize,
    /// Number of messages that were moved.
    pub messages: usize,
}

impl Store {
    /// Takes over a store that belongs to nobody, or creates one. `folder`: the folder of all stores.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn claim(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for id in ids(folder)? {
            // A store whose adoption has begun is not taken over: part of its messages are elsewhere.
            if !folder.join(id.to_string()).join(ADOPTER).exists()
                && let Some(store) = Self::lock(folder, id)?
                && !store.path(ADOPTER).exists()
            {
                return Ok(store);
            }
        }
        Self::create(folder)
    }

    /// Creates a store. Nobody sees it before it is locked.
    fn create(folder: &Path) -> io::Result<Self> {
        let id = Uuid::now_v7();
        let (hidden, shown) = (folder.join(format!(".new-{id}")), folder.join(id.to_string()));
        fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        let lock = OpenOptions::new().write(true).create_new(true).open(hidden.join(LOCK))?;
        lock.try_lock_exclusive()?;
        fs::rename(&hidden, &shown)?;
        File::open(folder)?.sync_all()?;
        Ok(Self { folder: folder.to_owned(), id, _lock: lock })
    }

    /// Locks an existing store. `None`: it belongs to another process, or is gone.
    fn lock(folder: &Path, id: Uuid) -> io::Result<Option<Self>> {
        let path = folder.join(id.to_string()).join(LOCK);
        let lock = match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        match lock.try_lock_exclusive() {
            Err(error) if error.kind() == fs2::lock_contended_error().kind() => return Ok(None),
            locked => locked?,
        }
        // The owner may have removed the store between the two calls.
        let is_same = fs::metadata(&path).is_ok_and(|found| lock.metadata().is_ok_and(|own| own.ino() == found.ino()));
        Ok(is_same.then(|| Self { folder: folder.to_owned(), id, _lock: lock }))
    }

    /// Returns the id of the store.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the path of the queue's file.
    pub fn queue(&self) -> PathBuf {
        self.path(QUEUE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.id.to_string()).join(name)
    }

    fn adopter(&self) -> Option<Uuid> {
        adopter(&self.folder, self.id)
    }

    /// Names this store's adopter, on the disk.
    fn name_adopter(&self, adopter: Uuid) -> io::Result<()> {
        let (hidden, shown) = (self.path(".adopter"), self.path(ADOPTER));
        let mut file = File::create(&hidden)?;
        file.write_all(adopter.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(hidden, shown)?;
        File::open(self.folder.join(self.id.to_string()))?.sync_all()
    }

    /// Removes the store. The lock is the last file, so that nobody takes over what is left.
    fn remove(self) -> io::Result<()> {
        let folder = self.folder.join(self.id.to_string());
        // The queue's file goes before its `-wal`, without which it might show messages that were moved.
        match fs::remove_file(folder.join(QUEUE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name() != LOCK {
                fs::remove_file(entry.path())?;
            }
        }
        fs::remove_file(folder.join(LOCK))?;
        fs::remove_dir(folder)
    }

    /// Adopts the stores that belong to nobody: moves their messages into `own`, the queue of this store, and removes
    /// them. `moved` is called after each batch, with the number of its messages. A store that cannot be adopted is logged
    /// and left, and does not keep others from being adopted. `go_on`: asked before each batch.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn adopt(
        &self,
        own: &EmbeddedBroker,
        go_on: &(dyn Fn() -> bool + Sync),
        moved: &mut (dyn FnMut(usize) + Send),
    ) -> io::Result<Adopted> {
        self.adopt_all(Adoption { batch: MESSAGES, own, go_on, moved }).await
    }

    async fn adopt_all(&self, mut adoption: Adoption<'_>) -> io::Result<Adopted> {
        let mut total = Adopted::default();
        for id in ids(&self.folder)? {
            if id == self.id || !(adoption.go_on)() {
                continue;
            }
            let Some(store) = Self::lock(&self.folder, id)? else { continue };
            if let Err(error) = self.adopt_one(store, &mut adoption, &mut total).await {
                tracing::error!(store = %id, error, "cannot adopt the store of another instance; its messages wait");
            }
        }
        Ok(total)
    }

    /// Adopts one store, after those whose adoption its instance has begun. Does nothing if it is another instance's turn.
    async fn adopt_one(&self, store: Self, adoption: &mut Adoption<'_>, total: &mut Adopted) -> Result<(), String> {
        let is_of_another = |adopter: Uuid| adopter != self.id && self.folder.join(adopter.to_string()).exists();
        if store.adopter().is_some_and(is_of_another) {
            return Ok(());
        }
        for id in ids(&self.folder).map_err(text)? {
            if adopter(&self.folder, id) != Some(store.id) {
                continue;
            }
            // Its last batch may be in `store` too.
            let Some(inherited) = Self::lock(&self.folder, id).map_err(text)? else { return Ok(()) };
            if store.queue().exists() {
                let theirs = open(&store.queue()).map_err(text)?;
                let last = theirs.stored_from(&id.to_string()).await.map_err(text)?;
                adoption.own.remember_stored_from(&id.to_string(), last).await.map_err(text)?;
            }
            if !self.move_all(inherited, adoption, total).await? {
                return Ok(());
            }
        }
        self.move_all(store, adoption, total).await.map(drop)
    }

    /// Moves all messages of a store, and removes it. Returns `false` if it was told to stop.
    async fn move_all(&self, store: Self, adoption: &mut Adoption<'_>, total: &mut Adopted) -> Result<bool, String> {
        store.name_adopter(self.id).map_err(text)?;
        let name = store.id.to_string();
        if store.queue().exists() {
            let theirs = open(&store.queue()).map_err(text)?;
            let mut removed = Batch::default();
            loop {
                if !(adoption.go_on)() {
                    return Ok(false);
                }
                let batch = theirs.read_batch(adoption.batch).await.map_err(text)?;
                if batch.messages.is_empty() {
                    break;
                }
                let stored = adoption.own.store_batch(&name, batch.clone(), removed).await.map_err(text)?;
                total.messages += stored;
                (adoption.moved)(stored);
                theirs.remove_batch(&batch).await.map_err(text)?;
                removed = batch;
            }
        }
        store.remove().map_err(text)?;
        total.stores += 1;
        tracing::info!(store = name, "adopted the store of an instance that has ended");
        adoption.own.forget_stored_from(&name).await.map_err(text)?;
        Ok(true)
    }

    #[cfg(test)]
    async fn adopt_in_batches_of(&self, batch: usize, own: &EmbeddedBroker, moved: &mut (dyn FnMut(usize) + Send)) {
        self.adopt_all(Adoption { batch, own, go_on: &|| true, moved }).await.unwrap();
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Opens the queue of a store that this process has locked. Works on network file systems too.
///
/// # Errors
/// The file cannot be opened.
pub fn open(queue: &Path) -> Result<EmbeddedBroker, QueueError> {
    let sharing = Sharing::at(queue.parent().unwrap_or(queue));
    EmbeddedBroker::open_with(queue, Options { sharing, ..Options::default() })
}

/// Returns the files of all stores in a folder, oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn queues(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let queues = ids(folder)?.into_iter().map(|id| folder.join(id.to_string()).join(QUEUE));
    Ok(queues.filter(|queue| queue.exists()).collect())
}

/// Returns the ids of all stores in the folder, oldest first.
fn ids(folder: &Path) -> io::Result<Vec<Uuid>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(folder)? {
        ids.extend(entry?.file_name().to_str().and_then(|name| Uuid::parse_str(name).ok()));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Returns the instance that has begun to adopt a store.
fn adopter(folder: &Path, id: Uuid) -> Option<Uuid> {
    let text = fs::read_to_string(folder.join(id.to_string()).join(ADOPTER)).ok()?;
    Uuid::parse_str(text.trim()).ok()
}

#[cfg(test)]
mod tests;
