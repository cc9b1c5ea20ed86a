//! Resolves a path component by component, as the kernel does. Records every directory entry on the way.
//!
//! A user or guest that can write to the folder of a recorded entry controls where the path leads. This is also true if the entry
//! does not exist yet.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links to follow. Equals the kernel's maximum (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The result of resolving a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trail {
    /// Directory entries that the resolution looks up, including symbolic links and folders. Each element is the path
    /// of the folder that contains the entry, joined with the name of the entry. The path of the folder contains no
    /// symbolic links.
    pub(super) entries: Vec<PathBuf>,
    /// Path of the file or folder at which the resolution ended, without symbolic links. The file need not exist.
    pub(super) end: PathBuf,
}

impl Trail {
    /// Resolves a path. A relative path starts at the working directory. A missing component counts as a folder, because someone
    /// may create the folder later.
    pub(super) fn of(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut to_come = Steps::default();
        to_come.push(&path);
        let (mut entries, mut end, mut links) = (Vec::new(), PathBuf::from("/"), 0);
        while let Some(step) = to_come.0.pop() {
            let name = match step {
                Step::Top => {
                    end = PathBuf::from("/");
                    continue;
                }
                Step::Up => {
                    end.pop();
                    continue;
                }
                Step::Down(name) => name,
            };
            let entry = end.join(name);
            match std::fs::read_link(&entry) {
                Ok(target) if links < MOST_LINKS => {
                    links += 1;
                    to_come.push(&target);
                }
                _ => end.clone_from(&entry),
            }
            entries.push(entry);
        }
        Self { entries, end }
    }

    /// Returns true if any recorded entry is in this folder or a subfolder. A guest that can write to the folder can
    /// replace the entry. `folder` must contain no symbolic links.
    pub(super) fn passes(&self, folder: &Path) -> bool {
        self.entries.iter().any(|entry| entry != folder && entry.starts_with(folder))
    }
}

/// Remaining steps of the resolution. The last element is the next step.
#[derive(Default)]
struct Steps(Vec<Step>);

enum Step {
    Top,
    Up,
    Down(OsString),
}

impl Steps {
    fn push(&mut self, path: &Path) {
        let steps = path.components().rev().filter_map(|part| match part {
            Component::RootDir => Some(Step::Top),
            Component::ParentDir => Some(Step::Up),
            Component::Normal(name) => Some(Step::Down(name.to_owned())),
            Component::CurDir | Component::Prefix(_) => None,
        });
        self.0.extend(steps);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a temporary folder that contains `folders` and `links`. Each link has a name and a target.
    fn tree(folders: &[&str], links: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        for folder in folders {
            fs::create_dir_all(real.join(folder)).unwrap();
        }
        for (name, target) in links {
            symlink(target, real.join(name)).unwrap();
        }
        (root, real)
    }

    #[test]
    fn every_link_of_a_chain_is_kept() {
        let links = [("h/app", "../data/current"), ("data/current", "../h/v3"), ("h/v3", "v4")];
        let (_root, real) = tree(&["h", "data"], &links);
        let trail = Trail::of(&real.join("h/app"));
        for entry in ["h", "h/app", "data", "data/current", "h/v3", "h/v4"] {
            assert!(trail.entries.contains(&real.join(entry)), "{entry} in {trail:?}");
        }
        assert_eq!(trail.end, real.join("h/v4"));
        assert!(trail.passes(&real.join("data")) && trail.passes(&real.join("h")) && !trail.passes(&real.join("h/v4")));
    }

    #[test]
    fn links_to_what_does_not_exist_lead_there() {
        let (_root, real) = tree(&["q", "g"], &[("q/q.db", "../g/new/real.db"), ("later", "missing")]);
        assert_eq!(Trail::of(&real.join("q/q.db")).end, real.join("g/new/real.db"));
        assert!(Trail::of(&real.join("q/q.db")).passes(&real.join("g")));
        assert_eq!(Trail::of(&real.join("later/a/../b")).end, real.join("missing/b"));
    }

    #[test]
    fn a_parent_is_that_of_where_the_link_leads() {
        let (_root, real) = tree(&["a/b", "c"], &[("c/to", "../a/b")]);
        assert_eq!(Trail::of(&real.join("c/to/../x")).end, real.join("a/x"));
        assert_eq!(Trail::of(&real.join("c/./../a")).end, real.join("a"));
    }

    #[test]
    fn a_circle_of_links_ends() {
        let (_root, real) = tree(&[], &[("one", "two"), ("two", "one")]);
        let trail = Trail::of(&real.join("one"));
        assert!(trail.passes(&real) && trail.entries.len() <= 2 * (MOST_LINKS + real.components().count()));
    }

    #[test]
    fn an_existing_path_leads_to_where_the_kernel_says() {
        let (_root, real) = tree(&["a/b"], &[("l", "a/../a/b/..")]);
        for path in [real.join("l/b"), PathBuf::from("/proc/self/../self/fd"), PathBuf::from(".")] {
            assert_eq!(Trail::of(&path).end, path.canonicalize().unwrap(), "{path:?}");
        }
    }
}
