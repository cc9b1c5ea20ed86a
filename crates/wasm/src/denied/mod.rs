//! Log lines for operations that WASI itself denies: access to files outside the granted folders, and sockets.
//!
//! If a path is outside every granted folder, the guest's WASI library rejects the path without calling the host. If no
//! folder is granted, the only call that hostler can log is the guest's request for the list of granted folders. Many
//! guests request this list at the start without needing any folder, so hostler logs the request only once per handler.

mod component;
mod preview1;

pub(super) use component::add;
pub(super) use preview1::add as add_preview1;

use std::sync::Once;

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

/// Logs that a guest requested the list of granted folders although there are none. Logs this only once per handler:
/// each handler has its own `told`, which records that the line was logged.
fn no_folders(told: &Once, denials: &Denials) {
    told.call_once(|| {
        let cure = "if it needs files, grant their folder in the consumer's allow.dirs";
        let consumer = denials.consumer();
        tracing::info!(consumer, cure, "the handler asks for folders, but none is granted");
    });
}
