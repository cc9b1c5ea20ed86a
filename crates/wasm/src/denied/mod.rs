//! Denials by WASI itself, with a log line: files outside of the granted folders, and sockets.
//!
//! A path outside of every granted folder never gets here: the guest's own library fails it. If no folder is granted, the log
//! can only say that the guest looks for folders. Many guests look when they start and need none, so it is logged once.

mod component;
mod preview1;

pub(super) use component::add;
pub(super) use preview1::add as add_preview1;

use std::sync::Once;

use super::denial::Denials;

/// The longest part of a guest's path in a log line, in characters.
const SHOWN: usize = 256;

/// Logs that a file was denied.
fn file(denials: &Denials, path: &str, writes: bool) {
    let shown: String = path.chars().take(SHOWN).collect();
    let cure = match writes {
        true => "grant its folder in the consumer's allow.dirs, with mode = \"rw\"",
        false => "grant the folder that it is really in, in the consumer's allow.dirs",
    };
    denials.tell(&format!("file {shown:?}"), cure);
}

/// Logs, once, that a guest looks for folders although none is granted.
fn no_folders(told: &Once, denials: &Denials) {
    told.call_once(|| {
        let cure = "if it needs files, grant their folder in the consumer's allow.dirs";
        let consumer = denials.consumer();
        tracing::info!(consumer, cure, "the handler looks for folders, and none is granted");
    });
}
