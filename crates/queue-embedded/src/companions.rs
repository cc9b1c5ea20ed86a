//! Checks that the companions of the queue's file, `-wal` and `-shm`, belong to the file at the queue's path.
//!
//! SQLite finds the companions only by their names. If the queue's file was moved without its companions, the
//! companions belong to the moved file. For a new file at the path, SQLite would delete the companions. For another
//! existing file at the path, SQLite would read the companions into that file. In both cases, the messages in the
//! companions would be lost.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Flock, FlockType, fcntl_getlk};

/// Maximum time to wait for another process that is opening or closing the queue.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between checks while another process may be opening or closing the queue.
const LOOK: Duration = Duration::from_millis(2);

/// Number of bytes to compare at once.
const BLOCK: usize = 65536;

/// Maximum number of symbolic links to follow. Equals the kernel's limit.
const MAX_LINKS: usize = 40;

/// The first bytes of a `-wal` file. The last bit of the last byte is cleared here, because it indicates the byte order
/// of checksums.
const WAL_MAGIC: [u8; 4] = [0x37, 0x7f, 0x06, 0x82];

/// Device number and inode number of a file. They change if the file at a path is replaced by another file.
type Identity = (u64, u64);

/// A queue file that this process has open.
#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Number of connections to the file.
    connections: usize,
}

/// The queue files that this process has open.
///
/// When a process closes any descriptor of a file, the kernel releases all of the process's locks on that file,
/// including the locks of SQLite. A file in this map is therefore never opened again to check it, and is closed only after
/// its last connection.
static OPEN: Mutex<BTreeMap<Identity, OpenFile>> = Mutex::new(BTreeMap::new());

/// A connection's claim on a queue file that this process has open or is about to open.
#[derive(Debug)]
pub(super) struct Claim(Identity);

impl Claim {
    /// Returns `true` if the metadata `file` belongs to the claimed file.
    pub(super) fn is_of(&self, file: &Metadata) -> bool {
        identity(file) == self.0
    }

    /// Returns `true` if the claimed file was deleted, and `path` has no file or an exact copy. The `-wal` then holds the
    /// only messages that are not in the copy. The `-wal` would damage any other file.
    pub(super) fn needs_wal_of_deleted(&self, path: &Path) -> bool {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(claimed) = open.get(&self.0) else { return false };
        if !claimed.file.metadata().is_ok_and(|file| file.nlink() == 0) {
            return false;
        }
        match fs::metadata(path) {
            Ok(file) if file.is_file() && !open.contains_key(&identity(&file)) => {
                File::open(path).and_then(|copy| is_copy(&copy, &claimed.file)).unwrap_or_default()
            }
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claimed) = open.get_mut(&self.0) {
            claimed.connections -= 1;
            if claimed.connections == 0 {
                open.remove(&self.0);
            }
        }
    }
}

/// The error for a queue file that cannot be claimed.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// The companions belong to another file.
    Foreign(Foreign),
    /// The file at this path cannot be opened or created. It is the queue's file or a companion.
    Io(PathBuf, io::Error),
}

/// Claims the queue's file at `path` for one more connection of this process. If the file is missing, creates it so
/// that only the current user can read it. Waits up to [`PATIENCE`] while another process opens or closes the file.
///
/// # Errors
/// [`ClaimError`] if the companions belong to another file, or if the file cannot be opened or created.
pub(super) fn claim(path: &Path) -> Result<Claim, ClaimError> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let io = |error| ClaimError::Io(path.to_owned(), error);
    if let Ok(file) = fs::metadata(path)
        && let Some(claimed) = open.get_mut(&identity(&file))
    {
        claimed.connections += 1;
        return Ok(Claim(identity(&file)));
    }
    check(path)?;
    // If SQLite created the file, other users could read it. SQLite gives the companions the same permissions as the file.
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe or a device")));
    }
    let identity = identity(&metadata);
    open.entry(identity).or_insert(OpenFile { file, connections: 0 }).connections += 1;
    Ok(Claim(identity))
}

/// Checks that existing companions belong to the file at `path`. The file may be missing. Waits up to [`PATIENCE`]
/// while another process opens or closes the file.
///
/// # Errors
/// [`ClaimError`] if the companions belong to another file, or if the locks of a file cannot be read.
pub(super) fn check(path: &Path) -> Result<(), ClaimError> {
    let path = without_links(path);
    let begin = Instant::now();
    loop {
        let Some(foreign) = Seen::now(&path)?.foreign() else { return Ok(()) };
        // A process that opens the queue locks the file shortly before the companion. A process that closes the queue
        // unlocks both in the reverse order. Between the two steps, the companion does not seem to belong to the file.
        if !foreign.may_pass() || begin.elapsed() > PATIENCE {
            return Err(ClaimError::Foreign(foreign));
        }
        #[allow(clippy::disallowed_methods, reason = "the release of another process's file lock causes no event")]
        thread::sleep(LOOK);
    }
}

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino())
}

/// Returns `true` if the files have the same content.
fn is_copy(one: &File, other: &File) -> io::Result<bool> {
    let length = one.metadata()?.len();
    if other.metadata()?.len() != length {
        return Ok(false);
    }
    let mut blocks = [vec![0; BLOCK], vec![0; BLOCK]];
    for at in (0..length).step_by(BLOCK) {
        let size = usize::try_from(length - at).map_or(BLOCK, |rest| rest.min(BLOCK));
        for (file, block) in [one, other].into_iter().zip(&mut blocks) {
            file.read_exact_at(&mut block[..size], at)?;
        }
        if blocks[0][..size] != blocks[1][..size] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Follows symbolic links to the path from which SQLite derives the names of the companions. The last target may be
/// missing.
fn without_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// The content of a `-wal` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalState {
    Missing,
    /// SQLite has written nothing yet, a checkpoint has moved all messages and truncated the file, or another program
    /// has emptied the file.
    Empty,
    Filled,
    /// The header was not written by SQLite. If another program empties the file, a writer that has the file open
    /// continues at its old position, which leaves a hole at the beginning.
    Overwritten,
}

impl WalState {
    /// Returns the state of the `-wal` file that belongs to the queue's file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        Self::at(&beside(&without_links(path), "-wal"))
    }

    fn at(wal: &Path) -> Self {
        match fs::metadata(wal) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            // SQLite locks no `-wal`, so closing this descriptor releases no lock.
            Ok(file) if file.is_file() => Self::of_file(&file, || File::open(wal)),
            Ok(file) if file.len() > 0 => Self::Filled,
            Ok(_) | Err(_) => Self::Empty,
        }
    }

    /// Returns the state of a `-wal` file. `open` is called only if the file is not empty.
    fn of_file<F: Borrow<File>>(metadata: &Metadata, open: impl FnOnce() -> io::Result<F>) -> Self {
        if metadata.len() == 0 {
            return Self::Empty;
        }
        let mut start = [0; 4];
        let is_read = open().and_then(|file| file.borrow().read_exact_at(&mut start, 0)).is_ok();
        start[3] &= !1;
        if is_read && start != WAL_MAGIC { Self::Overwritten } else { Self::Filled }
    }
}

/// The `-wal` file that a connection has open. SQLite never removes or replaces a `-wal` that is open.
#[derive(Debug)]
pub(super) struct Wal {
    path: PathBuf,
    file: File,
    identity: Identity,
}

impl Wal {
    /// Opens the current `-wal` of the queue's file at `path`. `None`: there is no `-wal`.
    ///
    /// # Errors
    /// [`ClaimError::Io`] if the `-wal` exists, but cannot be opened.
    pub(super) fn of(path: &Path) -> Result<Option<Self>, ClaimError> {
        let path = beside(&without_links(path), "-wal");
        // Opening a pipe would block until another process opens the pipe for writing.
        if !fs::metadata(&path).is_ok_and(|file| file.is_file()) {
            return Ok(None);
        }
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((metadata, file)) => Ok(Some(Self { path, file, identity: identity(&metadata) })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ClaimError::Io(path, error)),
        }
    }

    /// Returns the state of this `-wal`. [`WalState::Missing`]: the file is no longer at its path.
    pub(super) fn state(&self) -> WalState {
        match fs::metadata(&self.path) {
            Ok(file) if identity(&file) == self.identity => WalState::of_file(&file, || Ok(&self.file)),
            Ok(_) => WalState::Missing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => WalState::Missing,
            Err(_) => WalState::Empty,
        }
    }
}

/// Returns the path of the companion of `path` with the given suffix.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Returns `true` if another process holds a lock on the file at `path`. An open connection of SQLite always holds a
/// lock on the queue's file and a lock on the `-shm` file.
///
/// # Errors
/// [`ClaimError::Io`] if the file exists but cannot be opened. Its locks are then unknown. If it were treated as
/// unlocked, the companions would seem to belong to another file.
fn is_locked(path: &Path) -> Result<bool, ClaimError> {
    // Opening a pipe would block until another process opens the pipe for writing.
    if !fs::metadata(path).is_ok_and(|file| file.is_file()) {
        return Ok(false);
    }
    match File::open(path) {
        Ok(file) => Ok(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok().flatten().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ClaimError::Io(path.to_owned(), error)),
    }
}

/// The state of the queue's file and of its companions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    wal: WalState,
    /// Set if another process has the companions open.
    companions_are_used: bool,
    /// Set if the queue's file is not empty.
    file_is_filled: bool,
    /// Set if another process has the queue's file open.
    file_is_used: bool,
}

impl Seen {
    fn now(path: &Path) -> Result<Self, ClaimError> {
        let is_filled = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
        // Reads the state of the companions first. SQLite writes to the file before it creates the companions, so
        // existing companions of the same file imply that the file is not empty.
        let wal = WalState::at(&beside(path, "-wal"));
        let companions_are_used = is_locked(&beside(path, "-shm"))?;
        let (file_is_filled, file_is_used) = (is_filled(path), is_locked(path)?);
        Ok(Self { wal, companions_are_used, file_is_filled, file_is_used })
    }

    /// Returns the reason why the companions do not belong to the file. `None`: the companions belong to the file, or
    /// there are no companions.
    fn foreign(self) -> Option<Foreign> {
        let Self { wal, companions_are_used, file_is_filled, file_is_used } = self;
        let wal_is_filled = matches!(wal, WalState::Filled | WalState::Overwritten);
        match (file_is_filled, file_is_used) {
            (false, true) if wal_is_filled || companions_are_used => Some(Foreign::Emptied),
            (false, false) if companions_are_used => Some(Foreign::Moved),
            (false, false) if wal_is_filled => Some(Foreign::LeftBehind),
            (true, false) if companions_are_used => Some(Foreign::Replaced),
            (true, true) if !companions_are_used => Some(Foreign::Elsewhere),
            (true, true) if wal == WalState::Missing => Some(Foreign::WalRemoved),
            (true, true) if wal == WalState::Overwritten => Some(Foreign::WalEmptied),
            _ => None,
        }
    }
}

/// The reason why the companions do not belong to the queue's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// The file was emptied while another process has the file open.
    Emptied,
    /// The file is missing or empty. Another process has the companions open, and therefore also the file that was at
    /// this path before.
    Moved,
    /// The file is missing or empty. The companions contain messages, and no other process has them open.
    LeftBehind,
    /// Another process has the companions open, but not the file.
    Replaced,
    /// Another process has the file open, but not the companions.
    Elsewhere,
    /// The `-wal` was removed or replaced while a process has it open. That process still reads and writes the removed
    /// file.
    WalRemoved,
    /// The `-wal` was emptied while a process has it open.
    WalEmptied,
}

impl Foreign {
    /// Returns `true` if this reason may be temporary, because another process may be opening or closing the file.
    fn may_pass(self) -> bool {
        matches!(self, Self::Replaced | Self::Elsewhere | Self::WalRemoved)
    }

    /// Returns the error message, which names the fault and tells the operator how to fix it.
    pub(super) fn text(self, path: &Path) -> String {
        let real = without_links(path);
        let (wal, shm) = (beside(&real, "-wal"), beside(&real, "-shm"));
        let (path, wal, shm) = (path.display(), wal.display(), shm.display());
        match self {
            Self::Emptied => format!(
                "the queue `{path}` was emptied while a hostler had it open: stop that hostler, then put a sound copy in its place; \
                 or, to give up the messages in `{wal}` and start with an empty queue, move it away with `{wal}` and `{shm}`"
            ),
            Self::Moved => format!(
                "the queue `{path}` was moved or removed while a hostler has it open, and `{wal}` and `{shm}` are in use for the file \
                 that was there: move that file back; or, to start with an empty queue, stop that hostler first"
            ),
            Self::LeftBehind => format!(
                "the queue `{path}` is missing or empty, and `{wal}` holds messages of the file that was there: move that file back; \
                 or, to give up the messages in `{wal}` and start with an empty queue, move `{wal}` and `{shm}` away"
            ),
            Self::Replaced => format!(
                "the queue `{path}` is another file than the one that `{wal}` and `{shm}` belong to, which a running hostler has \
                 open: put the former file back; or, to give up the messages in `{wal}`, stop that hostler and move `{wal}` and \
                 `{shm}` away"
            ),
            Self::Elsewhere => format!(
                "the queue `{path}` is open in another process without `{wal}` and `{shm}`: perhaps under the path that it had \
                 before it was moved, or because both were removed: move it back there; or stop that process with SIGTERM, so that \
                 it writes its messages into the file"
            ),
            Self::WalRemoved => format!(
                "`{wal}`, which holds messages of the queue `{path}`, was removed or replaced while a hostler has it open: stop that \
                 hostler with SIGTERM, so that it writes the messages into the queue, and start it again"
            ),
            Self::WalEmptied => format!(
                "`{wal}`, which held messages of the queue `{path}`, was emptied while a hostler had it open: restart that hostler to \
                 go on with what `{path}` holds without them, or stop it and put a sound copy of all files in their place"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn companions_belong_to_a_file_that_is_used_as_they_are() {
        use WalState::{Empty, Filled, Missing, Overwritten};
        let seen = |wal, companions_are_used, file_is_filled, file_is_used| {
            Seen { wal, companions_are_used, file_is_filled, file_is_used }.foreign()
        };
        for wal in [Missing, Empty, Filled, Overwritten] {
            assert_eq!(seen(wal, false, true, false), None, "nobody has it open; a crash may have left the log");
            assert_eq!(seen(wal, true, false, false), Some(Foreign::Moved));
            assert_eq!(seen(wal, true, true, false), Some(Foreign::Replaced));
            assert_eq!(seen(wal, false, true, true), Some(Foreign::Elsewhere));
            assert_eq!(seen(wal, true, false, true), Some(Foreign::Emptied));
        }
        for wal in [Empty, Filled] {
            assert_eq!(seen(wal, true, true, true), None, "somebody has it open");
        }
        assert_eq!(seen(Missing, true, true, true), Some(Foreign::WalRemoved));
        assert_eq!(seen(Overwritten, true, true, true), Some(Foreign::WalEmptied));
        assert_eq!(seen(Missing, false, false, false), None, "a new file");
        assert_eq!(seen(Missing, false, false, true), None, "somebody creates it");
        assert_eq!(seen(Filled, false, false, false), Some(Foreign::LeftBehind));
        assert_eq!(seen(Filled, false, false, true), Some(Foreign::Emptied));
    }

    #[test]
    fn companions_are_beside_the_file_that_links_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("data")).unwrap();
        symlink("data/queue.db", path("link")).unwrap();
        symlink(path("link"), path("queue.db")).unwrap();
        assert_eq!(without_links(&path("queue.db")), path("data/queue.db"));
        assert!(check(&path("queue.db")).is_ok());
        fs::write(path("data/queue.db-wal"), "messages").unwrap();
        assert!(matches!(check(&path("queue.db")), Err(ClaimError::Foreign(Foreign::LeftBehind))));
        assert!(matches!(claim(&path("queue.db")), Err(ClaimError::Foreign(Foreign::LeftBehind))));
        assert!(!path("data/queue.db").exists(), "nothing is created");
    }

    #[test]
    fn a_cure_that_moves_the_log_away_says_that_it_holds_messages() {
        let all = [
            Foreign::Emptied,
            Foreign::Moved,
            Foreign::LeftBehind,
            Foreign::Replaced,
            Foreign::Elsewhere,
            Foreign::WalRemoved,
            Foreign::WalEmptied,
        ];
        for text in all.map(|foreign| foreign.text(Path::new("q.db"))) {
            assert!(!text.contains("remove `"), "{text}");
            if let Some(cure) = text.find("move `q.db-wal`").or(text.find("move it away with")) {
                assert!(text[..cure].contains("to give up the messages in `q.db-wal`"), "{text}");
            }
        }
    }
}
