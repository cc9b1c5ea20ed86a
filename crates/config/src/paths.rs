//! Finds conflicts between the files that hostler writes.

use std::path::{Path, PathBuf};

/// Suffixes of the files written for a health file: the file itself, its lock file, and the temporary file that
/// replaces it.
const HEALTH: [&str; 3] = ["", ".lock", ".tmp"];

/// Suffixes of the files of an SQLite database: the database itself, its write-ahead log, the index of the log, and its
/// rollback journal.
const QUEUE: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// Returns the path of a file that both the health file and the queue would use. `None`: there is no conflict. Symbolic
/// links and dots are resolved in folders that exist.
pub(super) fn shared_file(health: &Path, queue: &Path) -> Option<PathBuf> {
    let queue: Vec<PathBuf> = QUEUE.iter().map(|ending| resolved(&with_ending(queue, ending))).collect();
    HEALTH.iter().map(|ending| resolved(&with_ending(health, ending))).find(|file| queue.contains(file))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Resolves a path, even if parts of it do not exist. Follows symbolic links in folders that exist.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => resolved(folder).join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_known_by_all_of_its_paths() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        std::fs::write(at("real/there.db"), "").unwrap();
        for (health, queue, shared) in [
            ("real/q.db", "real/q.db", Some("real/q.db")),
            ("link/q.db", "real/q.db", Some("real/q.db")),
            ("link/there.db", "real/there.db", Some("real/there.db")),
            ("real/../real/q.db", "link/q.db", Some("real/q.db")),
            ("real/new/q.db", "link/new/q.db", Some("real/new/q.db")),
            ("real/q.db-wal", "real/q.db", Some("real/q.db-wal")),
            ("real/q.db-shm", "real/q.db", Some("real/q.db-shm")),
            ("real/h", "real/h.lock", Some("real/h.lock")),
            ("real/h", "real/h.tmp", Some("real/h.tmp")),
            ("real/h.json", "real/q.db", None),
            ("q.db", "real/q.db", None),
        ] {
            let root = folder.path().canonicalize().unwrap();
            let expected = shared.map(|file| root.join(file));
            assert_eq!(shared_file(&at(health), &at(queue)), expected, "{health} {queue}");
        }
    }
}
