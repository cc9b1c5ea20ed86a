//! What WASI denies by itself, told in the log: files outside of the granted folders, and sockets.
//!
//! A path that no granted folder could hold never gets here: the guest's own C library fails it.

mod component;
mod preview1;

pub(super) use component::add;
pub(super) use preview1::{Preview1, add as add_preview1};

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
