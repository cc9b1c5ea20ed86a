//! Layers of overlay file systems. A file in the merged folder is also a file in a layer. The two have different paths and
//! different devices. Therefore, neither paths nor device and inode numbers show that they are the same file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::{Mounts, unescaped};
use crate::host::trail::Trail;

/// Layers of one overlay file system, as named by the mount options in `mountinfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::host) struct Layers {
    /// Lower layers. They provide files, but receive no writes.
    lower: Vec<PathBuf>,
    /// Layer that receives writes.
    upper: Option<PathBuf>,
}

/// Selection of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host) enum Which {
    /// All layers, because a change in any layer may become visible in the merged folder.
    Read,
    /// The upper layer, which receives writes to the merged folder.
    Written,
}

impl Layers {
    /// Parses the mount options of an overlay file system.
    pub(in crate::host) fn parse(options: &str) -> Self {
        let mut layers = Self::default();
        for (name, value) in options.split(',').filter_map(|option| option.split_once('=')) {
            let value = unescaped(value);
            match name {
                "lowerdir" => layers.lower.extend(split(&value)),
                "lowerdir+" | "datadir+" => layers.lower.push(value),
                "upperdir" => layers.upper = Some(value),
                _ => {}
            }
        }
        layers
    }

    fn of(&self, which: Which) -> impl Iterator<Item = &PathBuf> {
        let lower = if which == Which::Read { &*self.lower } else { &[] };
        lower.iter().chain(&self.upper)
    }
}

/// Splits a list of folders at colons. A backslash escapes the next character.
fn split(list: &Path) -> Vec<PathBuf> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), list.as_os_str().as_bytes().iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => part.extend(bytes.next()),
            b':' => parts.push(std::mem::take(&mut part)),
            other => part.push(*other),
        }
    }
    parts.push(part);
    // Two colons precede data-only layers and produce an empty part.
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.map(|part| OsString::from_vec(part).into()).collect()
}

/// Returns the paths in the layers of overlay file systems that show up as the file or folder at the end of `trail`.
/// With [`Which::Read`], also returns such paths for the directory entries that lead to the file or folder.
///
/// Leaves out layers that this process cannot see. In a container, the layers of the root folder are usually outside
/// the container, and therefore not visible.
pub(in crate::host) fn others(trail: &Trail, mounts: &Mounts, which: Which) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    // A mount point is left out, because moving its folder does not move the mount.
    let is_within = |entry: &&PathBuf| mounts.overlay(entry).is_some_and(|(_, below)| below != Path::new(""));
    let entries = trail.entries.iter().filter(|entry| which == Which::Read && is_within(entry));
    let mut to_come: Vec<PathBuf> = entries.chain([&trail.end]).cloned().collect();
    // A layer may itself be in a merged folder.
    while let Some(path) = to_come.pop() {
        let Some((layers, below)) = mounts.overlay(&path) else { continue };
        for layer in layers.of(which).filter(|layer| layer.is_dir()) {
            let other = layer.join(&below);
            if found.insert(other.clone()) {
                to_come.push(Trail::of(&other).end);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(options: &str) -> (Vec<PathBuf>, Option<PathBuf>) {
        let layers = Layers::parse(options);
        (layers.lower, layers.upper)
    }

    #[test]
    fn layers_are_what_the_options_name() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let upper = |path: &str| Some(PathBuf::from(path));
        assert_eq!(layers("rw,lowerdir=/l1:/l2,upperdir=/u,workdir=/w"), (paths(&["/l1", "/l2"]), upper("/u")));
        assert_eq!(layers("ro,lowerdir+=/l1,lowerdir+=/l:2,datadir+=/d"), (paths(&["/l1", "/l:2", "/d"]), None));
        assert_eq!(layers("lowerdir=/a\\134:b:/c::/d\\040e"), (paths(&["/a:b", "/c", "/d e"]), None));
        assert_eq!(layers("rw"), (paths(&[]), None));
    }

    #[test]
    fn a_path_has_another_one_in_each_layer_that_exists() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        for folder in ["lower", "upper", "merged/in"] {
            std::fs::create_dir_all(real.join(folder)).unwrap();
        }
        let top = real.display();
        let mounts = Mounts::parse(&format!(
            "1 0 8:1 / / rw - ext4 a rw\n2 1 0:40 / {top}/merged rw - overlay o rw,lowerdir={top}/lower:/nowhere/x,upperdir={top}/upper\n"
        ));
        let others = |path: &str, which| {
            let others = others(&Trail::of(&real.join(path)), &mounts, which);
            others.into_iter().map(|path| path.strip_prefix(&real).unwrap().display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(others("merged/in/file", Which::Written), ["upper/in/file"]);
        assert_eq!(others("merged", Which::Read), ["lower", "upper"]);
        assert_eq!(others("merged/in/file", Which::Read), ["lower/in", "lower/in/file", "upper/in", "upper/in/file"]);
        assert!(others("lower/in/file", Which::Read).is_empty());
    }
}
