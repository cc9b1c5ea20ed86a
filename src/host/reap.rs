//! Reaping: as PID 1, hostler is the parent of every orphan in its container.

use rustix::process::{WaitOptions, wait};

/// Takes the exit status of every dead child, so that none stays a zombie. hostler has no children of its own.
pub(super) fn orphans() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
