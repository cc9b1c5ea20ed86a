//! Searches for other names (hard links) of a file. A guest can change a file if another name of the file is in a folder that the
//! guest can write to.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::located::{Identity, identity};

/// Maximum number of directory entries that a search examines. The maximum is rarely reached: a search starts only if a protected
/// file has several names, which is rare, and granted folders with this many entries are even rarer.
const MOST: usize = 100_000;

/// Result of a search for another name of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Search {
    /// Another name of the file.
    Found(PathBuf),
    /// No other name exists in the folder.
    None,
    /// The folder has too many entries, so another name may exist.
    Unfinished,
}

/// Returns the identity of the file at this path if the file has several names. `None`: the file has one name, the path is a
/// folder, or no file exists.
pub(super) fn linked(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.nlink() > 1).then(|| identity(&metadata))
}

/// Searches a folder and its subfolders for another name of the file.
pub(super) fn search(folder: &Path, file: Identity) -> Search {
    search_most(folder, file, MOST)
}

fn search_most(folder: &Path, file: Identity, most: usize) -> Search {
    let (mut folders, mut left) = (vec![folder.to_owned()], most);
    while let Some(folder) = folders.pop() {
        // All names of a file are in the same file system.
        let Ok(metadata) = fs::metadata(&folder) else { continue };
        if metadata.dev() != file.0 {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Some(fewer) = left.checked_sub(1) else { return Search::Unfinished };
            left = fewer;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && entry.metadata().is_ok_and(|metadata| identity(&metadata) == file) {
                return Search::Found(entry.path());
            }
        }
    }
    Search::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_of_a_file_is_found() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("data/deep")).unwrap();
        fs::write(at("app.wasm"), "").unwrap();
        assert_eq!(linked(&at("app.wasm")), None);
        fs::hard_link(at("app.wasm"), at("beside.wasm")).unwrap();
        let file = linked(&at("app.wasm")).unwrap();
        fs::write(at("data/other"), "").unwrap();
        assert_eq!(search(&at("data"), file), Search::None);
        fs::hard_link(at("app.wasm"), at("data/deep/again")).unwrap();
        assert_eq!(search(&at("data"), file), Search::Found(at("data/deep/again")));
        assert_eq!(search_most(&at("data"), file, 1), Search::Unfinished);
        assert_eq!(search(&at("data"), (file.0 + 1, file.1)), Search::None);
        assert_eq!(linked(&at("data")), None);
    }
}
