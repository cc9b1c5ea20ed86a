//! What WASI denies by itself, told in the log: files outside of the granted folders, and sockets.
//!
//! A path that no granted folder could hold never gets here: the guest's own library fails it. Where no folder is granted,
//! all that can be told is that the guest looks for some. Many look when they start and need none, so it is told once.

mod component;
mod preview1;

pub(super) use component::add;
pub(super) use preview1::add as add_preview1;

use std::sync::Once;

use super::denial::Denials;

/// What a line says of a guest's path, in characters.
const SHOWN: usize = 256;

/// Tells of a file that was denied.
fn file(denials: &Denials, path: &str, writes: bool) {
    let shown: String = path.chars().take(SHOWN).collect();
    let cure = match writes {
        true => "grant its folder in the consumer's allow.dirs, with mode = \"rw\"",
        false => "grant the folder that it is really in, in the consumer's allow.dirs",
    };
    denials.tell(&format!("file {shown:?}"), cure);
}

/// Tells, once, that a guest looks for folders where none is granted.
fn no_folders(told: &Once, denials: &Denials) {
    told.call_once(|| {
        let cure = "if it needs files, grant their folder in the consumer's allow.dirs";
        let consumer = denials.consumer();
        tracing::info!(consumer, cure, "the handler looks for folders, and none is granted");
    });
}
