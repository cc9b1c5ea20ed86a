//! The lock file beside the health file (`<file>.lock`, `flock`). Acquiring the lock has a time limit. If the lock file
//! is a symbolic link, opening it fails.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use hostler_types::Backoff;

/// Pauses between attempts to acquire the lock. The lock is usually held only for microseconds, so the first pauses are
/// short.
const PAUSE: Backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));

/// Returns the path of the lock file for `file`.
pub(super) fn path_for(file: &Path) -> PathBuf {
    file.with_added_extension("lock")
}

/// Returns options for opening a file without following a symbolic link. If the last component of the path is a
/// symbolic link, opening fails. Opening a named pipe does not block.
pub(super) fn no_follow() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Returns `true` if opening a file with [`no_follow`] failed because of a symbolic link.
pub(super) fn is_symlink(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Calls `try_lock` on `file` until the lock is acquired or `limit` has passed. Returns `true` if the lock is acquired.
/// Closing the file releases the lock.
pub(super) fn acquire(file: &File, try_lock: fn(&File) -> io::Result<()>, limit: Duration) -> io::Result<bool> {
    let begin = Instant::now();
    let mut tries = 0;
    loop {
        match try_lock(file) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome.map(|()| true),
        }
        let left = limit.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        #[allow(clippy::disallowed_methods, reason = "the release of another process's file lock causes no event")]
        thread::sleep(PAUSE.ceiling(tries).min(left));
        tries = tries.saturating_add(1);
    }
}
