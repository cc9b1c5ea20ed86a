//! Helpers of several fuzz targets: a temporary file, and the check of a config against a schema.

pub mod guest;
pub mod schema;

use std::path::PathBuf;

/// Path at which a target may write a file of this name. It lasts as long as `TMPDIR`, which `tests/fuzz.sh` creates and removes.
pub fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hostler-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder.join(name)
}

/// A number out of the input's bytes, so that what it chooses can be mutated: the low bytes first, missing ones are 0.
pub fn take(input: &mut &[u8]) -> u8 {
    let (first, rest) = input.split_first().map_or((0, *input), |(first, rest)| (*first, rest));
    *input = rest;
    first
}
