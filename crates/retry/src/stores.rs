//! The stores of all instances in one folder: `<folder>/<uuid>/queue.db`, each locked by its instance for as long as that
//! lives. A store whose lock is free belongs to nobody: an instance that starts takes it over, and one that runs adopts
//! its messages and removes it.
//!
//! An adoption can end at any moment, and be continued by another instance. The file `adopter` in a store names the
//! instance that has begun. Only that instance continues, or the one that has its store now, because the last batch may
//! be in both stores (`queue-embedded/owned/moving.rs`).

mod adoption;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fs2::FileExt as _;
use uuid::Uuid;

use hostler_queue::QueueError;
use hostler_queue_embedded::{EmbeddedBroker, Options, OwnedQueues, Sharing};
use hostler_types::channel::Channel;

pub use adoption::{Adopter, Progress};

/// Name of the queue's file in a store.
pub const QUEUE: &str = "queue.db";

const LOCK: &str = "lock";
const ADOPTER: &str = "adopter";

/// Beginnings of the names of folders that are not yet stores, and that are stores no longer.
const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// Age after which such a folder is a remnant of a process that was killed.
const REMNANT: Duration = Duration::from_secs(60);

/// The queues of a store.
#[derive(Debug, Clone)]
pub struct Names {
    /// Queues of the priorities, in their order.
    pub priorities: Vec<Channel>,
    /// Queue of the default priority, which also takes the messages of priorities that are no longer in the config.
    pub default: Channel,
    /// Queue of the dead letters.
    pub dead_letters: Channel,
}

impl Names {
    /// Returns `true` for a queue of a priority that the config no longer has.
    fn is_stray(&self, queue: &Channel) -> bool {
        let of_service = queue
            .queue()
            .strip_prefix(self.default.queue())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        of_service && queue.of_dead_letters().is_none() && !self.priorities.contains(queue)
    }
}

/// A store that this process has claimed, with its queues.
#[derive(Debug)]
pub struct Claimed {
    /// The store.
    pub store: Store,
    /// The queue's file.
    pub broker: EmbeddedBroker,
    /// The queues that this process schedules.
    pub queues: OwnedQueues,
}

/// Takes over a store that belongs to nobody, or creates one. `folder`: the folder of all stores. A store that cannot be
/// used is logged and left for an operator. May block for long on a network file system.
///
/// # Errors
/// The text names the folder and the fault.
pub async fn claim(folder: &Path, names: &Names) -> Result<Claimed, String> {
    let fault = |error: io::Error| {
        let folder = folder.display();
        format!("retry.store: cannot use the folder {folder}: {error}; it must be writable for this user")
    };
    fs::create_dir_all(folder).map_err(fault)?;
    sweep(folder);
    for id in ids(folder).map_err(fault)? {
        let Some(store) = Store::free(folder, id) else { continue };
        match open_queues(&store, names).await {
            Ok((broker, queues)) => return Ok(Claimed { store, broker, queues }),
            Err(error) => tracing::error!(
                store = %folder.join(id.to_string()).display(),
                %error,
                "a store cannot be used, and its messages wait: mend the fault, or move the folder of the store away"
            ),
        }
    }
    let store = Store::create(folder).map_err(fault)?;
    let (broker, queues) = open_queues(&store, names).await.map_err(|error| error.to_string())?;
    Ok(Claimed { store, broker, queues })
}

/// Checks that stores can be created in a folder. Leaves the folder as it is, unless it is missing.
///
/// # Errors
/// The folder cannot be written.
pub fn check(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let probe = folder.join(format!("{NEW}{}", Uuid::now_v7()));
    fs::create_dir(&probe)?;
    fs::remove_dir(probe)
}

async fn open_queues(store: &Store, names: &Names) -> Result<(EmbeddedBroker, OwnedQueues), QueueError> {
    let broker = open(&store.queue())?;
    let queues = broker.own(&names.priorities, &names.dead_letters).await?;
    Ok((broker, queues))
}

/// A store, locked by this process.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    id: Uuid,
    /// Dropping the file releases the lock.
    _lock: File,
}

impl Store {
    /// Locks a store that belongs to nobody. `None`: it belongs to another process, is being adopted, or cannot be locked.
    fn free(folder: &Path, id: Uuid) -> Option<Self> {
        // A store whose adoption has begun is not taken over: part of its messages are elsewhere.
        let is_adopted = || folder.join(id.to_string()).join(ADOPTER).try_exists();
        let free = || -> io::Result<Option<Self>> {
            if is_adopted()? {
                return Ok(None);
            }
            let locked = Self::lock(folder, id)?;
            // The adoption may have begun and been killed in between.
            Ok(if is_adopted()? { None } else { locked })
        };
        free().unwrap_or_else(|error| {
            tracing::error!(
                store = %folder.join(id.to_string()).display(),
                %error,
                "a store cannot be locked, and its messages wait; its files must be writable for this user"
            );
            None
        })
    }

    /// Creates a store. Nobody sees it before it is locked.
    fn create(folder: &Path) -> io::Result<Self> {
        let id = Uuid::now_v7();
        let (hidden, shown) = (folder.join(format!("{NEW}{id}")), folder.join(id.to_string()));
        fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        let lock = OpenOptions::new().write(true).create_new(true).open(hidden.join(LOCK))?;
        lock.try_lock_exclusive()?;
        fs::rename(&hidden, &shown)?;
        File::open(folder)?.sync_all()?;
        Ok(Self { folder: folder.to_owned(), id, _lock: lock })
    }

    /// Locks an existing store. `None`: it belongs to another process, or is gone.
    ///
    /// # Errors
    /// The folder is not a store, or cannot be used. The text names it.
    fn lock(folder: &Path, id: Uuid) -> io::Result<Option<Self>> {
        let store = folder.join(id.to_string());
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", store.display()));
        let Some(lock) = open_lock(&store).map_err(named)? else { return Ok(None) };
        let path = store.join(LOCK);
        match lock.try_lock_exclusive() {
            Err(error) if error.kind() == fs2::lock_contended_error().kind() => return Ok(None),
            locked => locked.map_err(named)?,
        }
        // The owner may have removed the store between the two calls.
        let is_same = fs::metadata(&path).is_ok_and(|found| lock.metadata().is_ok_and(|own| own.ino() == found.ino()));
        Ok(is_same.then(|| Self { folder: folder.to_owned(), id, _lock: lock }))
    }

    /// Returns the id of the store.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the folder of all stores.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the queue's file.
    pub fn queue(&self) -> PathBuf {
        self.path(QUEUE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.id.to_string()).join(name)
    }

    fn adopter(&self) -> io::Result<Option<Uuid>> {
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

    /// Removes the store, whose queue must be closed. Files that remain, such as those that a network file system keeps while
    /// they are open, are removed later.
    fn remove(self) -> io::Result<()> {
        let gone = self.folder.join(format!("{OLD}{}", self.id));
        fs::rename(self.folder.join(self.id.to_string()), &gone)?;
        if let Err(error) = fs::remove_dir_all(&gone) {
            tracing::debug!(folder = %gone.display(), %error, "an adopted store is removed later");
        }
        Ok(())
    }
}

/// Opens the lock of a store. Makes the file if only that is missing, such as in a store that was copied: nobody has locked
/// it. `None`: the store is gone.
fn open_lock(store: &Path) -> io::Result<Option<File>> {
    let (lock, queue) = (store.join(LOCK), store.join(QUEUE));
    // A pipe would block whoever opens it.
    for file in [&lock, &queue] {
        if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other(format!("{} is not a regular file", file.display())));
        }
    }
    if !lock.try_exists()? && !queue.try_exists()? {
        let text = format!("the folder has neither `{LOCK}` nor `{QUEUE}`");
        return if store.try_exists()? { Err(io::Error::other(text)) } else { Ok(None) };
    }
    match OpenOptions::new().write(true).create(true).truncate(false).open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Removes what processes have left that were killed while they created or removed a store.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_remnant = name.to_str().is_some_and(|name| name.starts_with(NEW) || name.starts_with(OLD));
        let changed = entry.metadata().and_then(|found| found.modified());
        let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
        if !is_remnant || age.is_none_or(|age| age < REMNANT) {
            continue;
        }
        let lock = OpenOptions::new().write(true).open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock_exclusive().is_err()) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::debug!(folder = %entry.path().display(), %error, "a remnant of a store cannot be removed");
        }
    }
}

/// Opens the queue of a store that this process has locked. Works on network file systems too.
///
/// # Errors
/// The file cannot be opened.
pub fn open(queue: &Path) -> Result<EmbeddedBroker, QueueError> {
    let sharing = Sharing::at(queue.parent().unwrap_or(queue));
    EmbeddedBroker::open_with(queue, Options { sharing, ..Options::default() })
}

/// Returns `true` if a running instance has the store of a queue's file.
pub fn is_in_use(queue: &Path) -> bool {
    let lock = queue.parent().map(|folder| OpenOptions::new().write(true).open(folder.join(LOCK)));
    matches!(lock, Some(Ok(lock)) if lock.try_lock_exclusive().is_err())
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
///
/// # Errors
/// The file cannot be read, so nothing is known of an adoption.
fn adopter(folder: &Path, id: Uuid) -> io::Result<Option<Uuid>> {
    let text = match fs::read(folder.join(id.to_string()).join(ADOPTER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    Ok(std::str::from_utf8(&text).ok().and_then(|text| Uuid::parse_str(text.trim()).ok()))
}

#[cfg(test)]
mod tests;
