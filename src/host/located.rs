//! A path with the data that is needed to detect an overlap with another path: the directory entries that lead to the path, the
//! file systems that contain the entries, and the identities of the folders above the entries. Each of these three kinds of data
//! detects overlaps that the other two kinds do not detect.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::mounts::{Mounts, Place};
use super::trail::Trail;

/// Device number and inode number of a file or folder. All names of the same file have the same identity.
pub(super) type Identity = (u64, u64);

/// Returns the identity of the file or folder that this metadata describes.
pub(super) fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// A path with the data that is needed to detect overlaps with other paths.
pub(super) struct Located {
    /// The directory entries that lead to the path, and the real path.
    pub(super) trail: Trail,
    /// Identities of the folders that contain the entries, and of all folders above them. Leaves out missing folders.
    folders: BTreeSet<Identity>,
    /// Folders that contain the entries. Each is a path within its file system.
    holders: Vec<Place>,
    /// Identity of the file or folder at the end of the path, if it exists.
    identity: Option<Identity>,
    place: Option<Place>,
    /// Paths within file systems that can be reached from the path: the path itself, and everything that is mounted
    /// inside it.
    reach: Vec<Place>,
}

impl Located {
    /// Locates a path, which need not exist.
    pub(super) fn find(path: &Path, mounts: &Mounts) -> Self {
        let trail = Trail::of(path);
        let found = |path: &Path| path.symlink_metadata().ok().map(|metadata| identity(&metadata));
        let holders: BTreeSet<&Path> = trail.entries.iter().filter_map(|entry| entry.parent()).collect();
        let above: BTreeSet<&Path> = holders.iter().flat_map(|folder| folder.ancestors()).collect();
        Self {
            folders: above.into_iter().filter_map(found).collect(),
            holders: holders.into_iter().filter_map(|folder| mounts.place(folder)).collect(),
            identity: found(&trail.end),
            place: mounts.place(&trail.end),
            reach: mounts.reach(&trail.end),
            trail,
        }
    }

    /// Returns true if `folder` contains a directory entry that leads to this path. A guest that can write to `folder` can
    /// replace the entry with a symbolic link.
    pub(super) fn passes(&self, folder: &Self) -> bool {
        self.trail.passes(&folder.trail.end)
            || folder.identity.is_some_and(|identity| self.folders.contains(&identity))
            || self.holders.iter().any(|holder| folder.reach.iter().any(|place| holder.is_in(place)))
    }

    /// Returns true if this path leads to `folder` or to something inside it.
    pub(super) fn is_in(&self, folder: &Self) -> bool {
        let in_reach = |place: &Place| folder.reach.iter().any(|folder| place.is_in(folder));
        self.trail.end.starts_with(&folder.trail.end)
            || folder.identity.is_some_and(|identity| self.is(identity))
            || self.place.as_ref().is_some_and(in_reach)
    }

    fn is(&self, folder: Identity) -> bool {
        let above = self.trail.end.ancestors().filter_map(|above| above.symlink_metadata().ok());
        self.identity == Some(folder) || above.map(|metadata| identity(&metadata)).any(|above| above == folder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// Creates a folder that contains the folders `data/deep` and `shut`, and a file in `shut`.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        for folder in ["data/deep", "shut"] {
            fs::create_dir_all(real.join(folder)).unwrap();
        }
        fs::write(real.join("shut/file"), "").unwrap();
        (root, real)
    }

    #[test]
    fn paths_overlap_however_they_are_named() {
        let (_root, real) = tree();
        symlink(real.join("data"), real.join("link")).unwrap();
        symlink(real.join("shut"), real.join("data/out")).unwrap();
        let find = |name: &str| Located::find(&real.join(name), &Mounts::default());
        for folder in ["data", "link", "shut/../data/deep/.."].map(find) {
            for name in ["data/a", "data/deep/b", "data/missing/c", "link/d", "data/out/file", "shut/../data/a"] {
                assert!(find(name).passes(&folder), "{name}");
            }
            assert!(find("data").is_in(&folder) && !find("data").passes(&folder));
            assert!(find("data/deep").is_in(&folder) && !find("data/out").is_in(&folder));
            for name in ["shut/file", "database/a", "missing", "data/../shut/file"] {
                assert!(!find(name).passes(&folder) && !find(name).is_in(&folder), "{name}");
            }
        }
        // A folder that is created on demand.
        assert!(find("later/cache").passes(&find("later")));
    }

    /// Returns the mounts of a machine on which the folder `shut` shows the contents of another folder of the tree.
    /// `root` is the name of the other folder, for example `data`.
    fn mounted(real: &Path, root: &str) -> Mounts {
        let (top, shut, root) = (real.display(), real.join("shut"), real.join(root));
        Mounts::parse(&format!(
            "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 {top} {top} rw - ext4 a rw\n3 2 8:1 {} {} rw - ext4 a rw\n",
            root.display(),
            shut.display()
        ))
    }

    #[test]
    fn paths_overlap_wherever_their_file_system_is_mounted() {
        let (_root, real) = tree();
        for root in ["data", "data/deep"] {
            let mounts = mounted(&real, root);
            let find = |name: &str| Located::find(&real.join(name), &mounts);
            assert!(find("shut").is_in(&find("data")), "{root}");
            assert!(find("shut/cache/code").passes(&find("data")), "{root}");
            assert!(find("shut/a").is_in(&find("data/deep")) == (root == "data/deep"), "{root}");
            // A mount does not move with the folder that it shows.
            assert!(!find("shut").passes(&find("data")), "{root}");
            assert!(find("data/deep").is_in(&find("shut")), "{root}");
            assert!(!find("beside").is_in(&find("data")) && !find("beside/a").passes(&find("data")), "{root}");
        }
    }

    #[test]
    fn a_mount_within_a_folder_is_within_its_reach() {
        let (_root, real) = tree();
        let text = format!(
            "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 /c {0}/data/deep rw - ext4 b rw\n3 1 8:2 /c/cache {0}/shut rw - ext4 b rw\n",
            real.display()
        );
        let mounts = Mounts::parse(&text);
        let find = |name: &str| Located::find(&real.join(name), &mounts);
        assert!(find("shut").is_in(&find("data")) && find("shut/x").passes(&find("data")));
    }
}
