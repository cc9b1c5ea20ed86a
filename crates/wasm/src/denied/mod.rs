//! Log lines for operations that WASI itself denies: access to files outside the granted folders, and sockets.
//!
//! If a path is outside every granted folder, the guest's WASI library rejects the path without calling the host. If no
//! folder is granted, the only call that hostler can observe is the guest's request for the list of granted folders. The
//! runtimes of many languages always request this list, so a request alone is no denial. [`Denials`] logs it only if the
//! handler then fails.

mod component;
mod preview1;

pub(super) use component::add;
pub(super) use preview1::add as add_preview1;

use super::denial::Denials;

/// Maximum number of characters of a guest's path in a log line.
const SHOWN: usize = 256;

/// Logs that access to the file at `path` was denied. `writes`: `true` if the guest requested write access.
fn file(denials: &Denials, path: &str, writes: bool) {
    let shown: String = path.chars().take(SHOWN).collect();
    let cure = if writes {
        "grant its folder in the consumer's allow.dirs, with mode = \"rw\""
    } else {
        "grant the folder that it is really in, in the consumer's allow.dirs"
    };
    denials.tell(&format!("file {shown:?}"), cure);
}
