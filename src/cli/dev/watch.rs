//! Detects changed files by comparing their modification times and sizes at intervals.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

/// Interval between two snapshots.
const PAUSE: Duration = Duration::from_millis(300);

/// Names of folders that tools write to. Changes in these folders do not count.
const OF_TOOLS: [&str; 5] = ["target", "build", "dist", "node_modules", "__pycache__"];

/// Endings of the names of files that builds and hosts write, and of texts for people. Changes of files with these endings do
/// not count.
const NO_SOURCES: [&str; 7] = [".wasm", ".cwasm", ".db", ".db-wal", ".db-shm", ".log", ".md"];

/// Endings of the names of files that editors write beside a file: swap files, backups, and new versions before they replace
/// the file.
const OF_EDITORS: [&str; 9] = ["~", "#", ".swp", ".swo", ".swx", ".bak", ".tmp", "___jb_tmp___", "___jb_old___"];

/// Name of a file that Vim creates to find out whether it may write to a folder.
const OF_VIM: &str = "4913";

/// Files to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Files, and folders with source files. In a folder, only the names that [`is_source`] accepts count.
    pub(super) sources: Vec<PathBuf>,
    /// Files that count regardless of their names.
    pub(super) files: Vec<PathBuf>,
}

/// Modification time and size of each file.
type Snapshot = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// Starts a thread that calls `changed` with the path of a changed file. Send a new list of files to the returned sender to
/// replace the watched files. Drop the sender to end the thread.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(wanted: Wanted, changed: impl Fn(PathBuf) + Send + 'static) -> io::Result<Sender<Wanted>> {
    let (sender, replaced) = channel();
    // Takes the first snapshot here. The thread therefore detects every change after this call.
    let changes = Changes::new(snapshot(&wanted));
    thread::Builder::new().name("hostler-watch".into()).spawn(move || watch(wanted, changes, &replaced, changed))?;
    Ok(sender)
}

fn watch(mut wanted: Wanted, mut changes: Changes, replaced: &Receiver<Wanted>, changed: impl Fn(PathBuf)) {
    loop {
        match replaced.recv_timeout(PAUSE) {
            Ok(new) if new == wanted => {}
            Ok(new) => {
                wanted = new;
                changes.replace(snapshot(&wanted));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(path) = changes.look(snapshot(&wanted)) {
                    changed(path);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Compares successive snapshots.
struct Changes {
    /// Snapshot whose changes have all been reported.
    known: Snapshot,
    /// Latest snapshot.
    last: Snapshot,
}

impl Changes {
    fn new(snapshot: Snapshot) -> Self {
        Self { last: snapshot.clone(), known: snapshot }
    }

    /// Returns a changed file if this snapshot equals the previous one. An editor may write several files, or one file in several
    /// steps. Waiting for two equal snapshots avoids a report before the editor has written everything.
    fn look(&mut self, now: Snapshot) -> Option<PathBuf> {
        let settled = now == self.last;
        self.last = now;
        if !settled || self.last == self.known {
            return None;
        }
        let changed = first_difference(&self.known, &self.last);
        self.known = self.last.clone();
        changed
    }

    /// Replaces the watched files. Files that were already watched before the call keep their last reported state, so that a
    /// change since then is still reported.
    fn replace(&mut self, now: Snapshot) {
        let keep = |(path, stamp): (PathBuf, _)| {
            let stamp = self.known.get(&path).copied().unwrap_or(stamp);
            (path, stamp)
        };
        self.known = now.clone().into_iter().map(keep).collect();
        self.last = now;
    }
}

fn first_difference(before: &Snapshot, after: &Snapshot) -> Option<PathBuf> {
    let new = after.iter().find(|(path, stamp)| before.get(*path) != Some(*stamp));
    let gone = || before.iter().find(|(path, _)| !after.contains_key(*path));
    new.or_else(gone).map(|(path, _)| path.clone())
}

/// Takes a snapshot of the files.
fn snapshot(wanted: &Wanted) -> Snapshot {
    let mut found = Snapshot::new();
    for path in wanted.sources.iter().chain(&wanted.files) {
        add(path, &mut found);
    }
    found
}

fn add(path: &Path, found: &mut Snapshot) {
    // A missing file, or a link to a missing file, is not part of the snapshot.
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_source)) {
            // Skips links to folders, which could form a cycle.
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink() || entry.path().is_file()) {
                add(&entry.path(), found);
            }
        }
    } else {
        found.insert(path.to_owned(), (metadata.modified().ok(), metadata.len()));
    }
}

/// Returns true if changes of a file or folder with this name count. Returns false for hidden names, for texts, and for names
/// that tools or editors write to.
fn is_source(name: &str) -> bool {
    let other = name.starts_with('.') || OF_TOOLS.contains(&name) || name == OF_VIM;
    !other && !NO_SOURCES.iter().chain(&OF_EDITORS).any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_a_folder_count() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "main.go",
            "hostler/a.go",
            ".git/HEAD",
            "target/x",
            "node_modules/x",
            "build/x",
            "a.wasm",
            "hostler.db-wal",
            "dev.log",
            "a~",
            "README.md",
            ".app.py.swp",
            "app.py.swp",
            "#app.py#",
            ".#app.py",
            "app.py.tmp",
            "app.py___jb_tmp___",
            "4913",
            ".env",
        ] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink(folder.path(), folder.path().join("circle")).unwrap();
        let sources = vec![folder.path().to_owned()];
        let found = |files: Vec<PathBuf>| {
            let found = snapshot(&Wanted { sources: sources.clone(), files });
            found
                .into_keys()
                .map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(found(Vec::new()), ["hostler/a.go", "main.go"]);
        assert_eq!(found(vec![folder.path().join("a.wasm")]), ["a.wasm", "hostler/a.go", "main.go"]);
        // A file that the config itself names counts.
        let readme = folder.path().join("README.md");
        let named = snapshot(&Wanted { sources: vec![readme.clone()], files: Vec::new() });
        assert_eq!(named.into_keys().collect::<Vec<_>>(), [readme]);
    }

    fn stamped(files: &[(&str, u64)]) -> Snapshot {
        files.iter().map(|(path, size)| (PathBuf::from(path), (None, *size))).collect()
    }

    #[test]
    fn a_change_is_reported_once_and_when_it_is_complete() {
        let mut changes = Changes::new(stamped(&[("a", 1), ("b", 1)]));
        let mut look = |files: &[(&str, u64)]| changes.look(stamped(files)).map(|path| path.display().to_string());
        assert_eq!(look(&[("a", 1), ("b", 1)]), None);
        assert_eq!(look(&[("a", 2), ("b", 1)]), None, "still being written");
        assert_eq!(look(&[("a", 3), ("b", 1)]), None, "still being written");
        assert_eq!(look(&[("a", 3), ("b", 1)]).as_deref(), Some("a"));
        assert_eq!(look(&[("a", 3), ("b", 1)]), None);
        assert_eq!(look(&[("a", 3)]), None);
        assert_eq!(look(&[("a", 3)]).as_deref(), Some("b"), "removed");
        assert_eq!(look(&[("a", 3), ("c", 1)]), None);
        assert_eq!(look(&[("a", 3), ("c", 1)]).as_deref(), Some("c"), "added");
    }

    #[test]
    fn what_is_watched_from_now_on_has_not_changed() {
        let mut changes = Changes::new(stamped(&[("a", 1), ("b", 1)]));
        changes.replace(stamped(&[("a", 2), ("c", 1)]));
        let now = stamped(&[("a", 2), ("c", 1)]);
        assert_eq!(changes.look(now.clone()), Some("a".into()), "it changed while it was watched");
        assert_eq!(changes.look(now), None);
    }
}
