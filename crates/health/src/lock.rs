//! The lock beside the health file (`<file>.lock`, flock), waited for with a limit, and opened without following links.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use hostler_types::Backoff;

/// A holder needs microseconds, so the first retries come quickly and the later ones cost next to nothing.
const PAUSE: Backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));

/// The path of the lock that guards `file`.
pub(super) fn path_for(file: &Path) -> PathBuf {
    file.with_added_extension("lock")
}

/// Options that refuse a symbolic link in the last place, and do not hang on a named pipe put there.
pub(super) fn no_follow() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Whether an open with [`no_follow`] failed at a symbolic link.
pub(super) fn is_symlink(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Calls `try_lock` on `file` until it holds the lock (true) or `limit` has passed (false). Closing the file unlocks.
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
        #[allow(clippy::disallowed_methods, reason = "a file lock of another process tells nobody when it goes")]
        thread::sleep(PAUSE.ceiling(tries).min(left));
        tries = tries.saturating_add(1);
    }
}
