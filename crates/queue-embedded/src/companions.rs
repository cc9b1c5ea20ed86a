//! The companions of the queue's file, `-wal` and `-shm`: checks that they belong to the file at its path.
//!
//! SQLite finds them by their names alone. Where the queue's file was moved without them, they belong to the moved file. SQLite
//! would delete them for a new file, or read them into another one, and the messages in them would be lost.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Flock, FlockType, fcntl_getlk};

/// The longest time for which another process may be between the two steps that open or close a queue.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two looks at files that do not fit together.
const LOOK: Duration = Duration::from_millis(2);

/// The most symbolic links that lead to a file, as for the kernel.
const MAX_LINKS: usize = 40;

/// Device and inode, which distinguish two files at the same path.
type Identity = (u64, u64);

/// The queues that this process has open, with the number of their connections.
///
/// To close any descriptor of a file gives up all locks that this process holds on it, and with them SQLite's. So a file that is
/// open here is not opened again to look at it.
static OPEN: Mutex<BTreeMap<Identity, usize>> = Mutex::new(BTreeMap::new());

/// A queue's file that this process has open, or is about to open.
#[derive(Debug)]
pub(super) struct Claim(Identity);

impl Claim {
    /// Reports `true` if this is the metadata of the claimed file.
    pub(super) fn is_of(&self, file: &Metadata) -> bool {
        identity(file) == self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.0);
            }
        }
    }
}

/// A reason not to open the file.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// Its companions, as they are now, belong to another file.
    Foreign(Foreign),
    /// The system refuses to open or create it.
    Io(io::Error),
}

impl From<io::Error> for ClaimError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Creates the file at `path` if there is none, readable by this user only, and claims it for a connection. Blocks for up to
/// [`PATIENCE`] while another process opens or closes it.
pub(super) fn claim(path: &Path) -> Result<Claim, ClaimError> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_open = |identity: &Identity| open.contains_key(identity);
    if !fs::metadata(path).is_ok_and(|file| is_open(&identity(&file))) {
        check(path).map_err(ClaimError::Foreign)?;
        // SQLite would create the file readable by others. Its companions take over these permissions.
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    }
    let identity = identity(&fs::metadata(path)?);
    *open.entry(identity).or_default() += 1;
    Ok(Claim(identity))
}

/// Checks that nothing at the companions' paths belongs to another file than the one at `path`, which may be missing.
pub(super) fn check(path: &Path) -> Result<(), Foreign> {
    let path = without_links(path);
    let begin = Instant::now();
    loop {
        let Some(foreign) = Seen::now(&path).foreign() else { return Ok(()) };
        // Another process that opens the file locks it shortly before its companion, and closes it in the reverse order.
        if !foreign.may_pass() || begin.elapsed() > PATIENCE {
            return Err(foreign);
        }
        #[allow(clippy::disallowed_methods, reason = "a file lock of another process tells nobody when it goes")]
        thread::sleep(LOOK);
    }
}

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino())
}

/// Follows links, as SQLite does before it names the companions. The last target may be missing.
fn without_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// Returns the path of a companion.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Reports `true` if another process holds a lock of SQLite on this file. Each connection holds one on the queue's file, and one
/// on the `-shm` file, for as long as it is open.
fn is_locked(path: &Path) -> bool {
    // A pipe would block until somebody writes to it.
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file());
    let file = if is_file { File::open(path).ok() } else { None };
    file.and_then(|file| fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok().flatten()).is_some()
}

/// The three files at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// The `-wal` file has content.
    wal_is_filled: bool,
    /// Another process has the companions open.
    companions_are_used: bool,
    /// The queue's file has content.
    file_is_filled: bool,
    /// Another process has the queue's file open.
    file_is_used: bool,
}

impl Seen {
    fn now(path: &Path) -> Self {
        let is_filled = |path: &Path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
        // The companions come first: before SQLite creates them, it writes to the file.
        let wal_is_filled = is_filled(&beside(path, "-wal"));
        let companions_are_used = is_locked(&beside(path, "-shm"));
        Self { wal_is_filled, companions_are_used, file_is_filled: is_filled(path), file_is_used: is_locked(path) }
    }

    /// Returns the way in which the companions do not belong to the file.
    fn foreign(self) -> Option<Foreign> {
        let Self { wal_is_filled, companions_are_used, file_is_filled, file_is_used } = self;
        match (file_is_filled, file_is_used) {
            (false, true) if wal_is_filled || companions_are_used => Some(Foreign::Emptied),
            (false, false) if companions_are_used => Some(Foreign::Moved),
            (false, false) if wal_is_filled => Some(Foreign::LeftBehind),
            (true, false) if companions_are_used => Some(Foreign::Replaced),
            (true, true) if !companions_are_used => Some(Foreign::Elsewhere),
            _ => None,
        }
    }
}

/// A way in which the companions do not belong to the queue's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// The file was emptied while another process has it open.
    Emptied,
    /// The file is missing or empty. Another process has the companions open, so it has the file open that was here.
    Moved,
    /// The file is missing or empty. Nobody has its companions open, and they hold messages.
    LeftBehind,
    /// Another process has the companions open, but not this file.
    Replaced,
    /// Another process has this file open, but not these companions.
    Elsewhere,
}

impl Foreign {
    /// Reports `true` if another process that is just opening or closing the file looks like this.
    fn may_pass(self) -> bool {
        matches!(self, Self::Replaced | Self::Elsewhere)
    }

    /// Describes the fault and its cure.
    pub(super) fn text(self, path: &Path) -> String {
        let real = without_links(path);
        let (wal, shm) = (beside(&real, "-wal"), beside(&real, "-shm"));
        let (path, wal, shm) = (path.display(), wal.display(), shm.display());
        match self {
            Self::Emptied => format!(
                "the queue `{path}` was emptied while a hostler had it open: stop that hostler, then put a sound copy in its place, \
                 or remove it with `{wal}` and `{shm}` to start with an empty one"
            ),
            Self::Moved => format!(
                "the queue `{path}` was moved or removed while a hostler has it open, and `{wal}` and `{shm}` are in use for the file \
                 that was there: move that file back; or, to start with an empty queue, stop that hostler first"
            ),
            Self::LeftBehind => format!(
                "the queue `{path}` is missing or empty, and `{wal}` holds messages of the file that was there: move that file back; \
                 or, to start with an empty queue without them, remove `{wal}` and `{shm}`"
            ),
            Self::Replaced => format!(
                "the queue `{path}` is another file than the one that `{wal}` and `{shm}` belong to, which a running hostler has \
                 open: put the former file back, or stop that hostler and remove `{wal}` and `{shm}`"
            ),
            Self::Elsewhere => format!(
                "the queue `{path}` is open in another process without `{wal}` and `{shm}`, so perhaps under the path that it had \
                 before it was moved: move it back there, or stop that process"
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
        let seen = |wal_is_filled, companions_are_used, file_is_filled, file_is_used| {
            Seen { wal_is_filled, companions_are_used, file_is_filled, file_is_used }.foreign()
        };
        for wal in [false, true] {
            assert_eq!(seen(wal, false, true, false), None, "nobody has it open; a crash may have left the log");
            assert_eq!(seen(wal, true, true, true), None, "somebody has it open");
            assert_eq!(seen(wal, true, false, false), Some(Foreign::Moved));
            assert_eq!(seen(wal, true, true, false), Some(Foreign::Replaced));
            assert_eq!(seen(wal, false, true, true), Some(Foreign::Elsewhere));
            assert_eq!(seen(wal, true, false, true), Some(Foreign::Emptied));
        }
        assert_eq!(seen(false, false, false, false), None, "a new file");
        assert_eq!(seen(false, false, false, true), None, "somebody creates it");
        assert_eq!(seen(true, false, false, false), Some(Foreign::LeftBehind));
        assert_eq!(seen(true, false, false, true), Some(Foreign::Emptied));
    }

    #[test]
    fn companions_are_beside_the_file_that_links_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("data")).unwrap();
        symlink("data/queue.db", path("link")).unwrap();
        symlink(path("link"), path("queue.db")).unwrap();
        assert_eq!(without_links(&path("queue.db")), path("data/queue.db"));
        assert_eq!(check(&path("queue.db")), Ok(()));
        fs::write(path("data/queue.db-wal"), "messages").unwrap();
        assert_eq!(check(&path("queue.db")), Err(Foreign::LeftBehind));
        assert!(matches!(claim(&path("queue.db")), Err(ClaimError::Foreign(Foreign::LeftBehind))));
        assert!(!path("data/queue.db").exists(), "nothing is created");
    }
}
