//! Checks whether a folder beside the health file can be trusted.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::geteuid;

/// Returns the reason why a folder may contain files that another user has placed there. `None`: the folder can be
/// trusted.
pub(super) fn fault(folder: &Metadata) -> Option<&'static str> {
    if !folder.is_dir() {
        Some("it is not a folder")
    } else if !is_ours(folder.uid()) {
        Some("it belongs to another user; run this as the user that runs hostler")
    } else if folder.mode() & 0o022 != 0 {
        Some("others may write to it")
    } else {
        None
    }
}

/// Returns `true` if the owner is this process's user or root. Root can change every file in any case.
pub(super) fn is_ours(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}
