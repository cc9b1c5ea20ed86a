//! Mounts of this process. A mount shows a folder of a file system at a path. The same folder may be mounted at several paths.
//! Therefore, paths alone do not show whether two folders overlap.

pub(super) mod overlays;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use overlays::Layers;

/// All mounts that the process sees.
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Vec<Mount>);

/// A mount, parsed from a line of `mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Device of the file system, as `major:minor`.
    device: String,
    /// Mounted folder within the file system.
    root: PathBuf,
    /// Mount point.
    pub(super) point: PathBuf,
    /// Type of the file system, for example `ext4`.
    pub(super) kind: String,
    /// Layers of the file system if its type is `overlay`.
    layers: Option<Layers>,
}

/// A path within a file system. Does not depend on where the file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    device: String,
    path: PathBuf,
}

impl Place {
    /// Returns true if this place is `folder` or inside it.
    pub(super) fn is_in(&self, folder: &Self) -> bool {
        self.device == folder.device && self.path.starts_with(&folder.path)
    }
}

impl Mounts {
    /// Reads the mounts of this process. Empty if `/proc` is not mounted.
    pub(super) fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Parses the contents of `mountinfo`.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Mount::parse).collect())
    }

    /// Returns the mount that contains `path`. This is the mount with the nearest mount point above the path. If
    /// several mounts have this mount point, returns the last one, which hides the others. `path` must contain no
    /// symbolic links.
    pub(super) fn of(&self, path: &Path) -> Option<&Mount> {
        let above = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        above.max_by_key(|mount| mount.point.components().count())
    }

    /// Returns true if a mount at `/` is known. In that case, every path is on a known mount. Returns false if `/proc` is not
    /// mounted. Also returns false after a chroot(2) into a folder inside a mount, because `mountinfo` does not list that mount.
    pub(super) fn are_complete(&self) -> bool {
        self.0.iter().any(|mount| mount.point == Path::new("/"))
    }

    /// Returns the layers of the overlay file system that contains `path`, and the path relative to each layer. `path`
    /// must contain no symbolic links. `None`: no overlay contains the path.
    pub(super) fn overlay(&self, path: &Path) -> Option<(&Layers, PathBuf)> {
        let mount = self.of(path)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        // The root has the form `/a`.
        let root = mount.root.strip_prefix("/").unwrap_or(&mount.root);
        Some((mount.layers.as_ref()?, root.join(below)))
    }

    /// Returns the mounts inside a folder. `folder` must contain no symbolic links.
    pub(super) fn within(&self, folder: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.point != folder && mount.point.starts_with(folder))
    }

    /// Returns the place of a path. `path` must contain no symbolic links. `None`: no known mount contains the path.
    pub(super) fn place(&self, path: &Path) -> Option<Place> {
        let mount = self.of(path)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        let path = if below == Path::new("") { mount.root.clone() } else { mount.root.join(below) };
        Some(Place { device: mount.device.clone(), path })
    }

    /// Returns the places that can be reached from a folder without following a symbolic link: the place of the folder
    /// itself, and the places of mounts inside the folder. The path `folder` must contain no symbolic links.
    pub(super) fn reach(&self, folder: &Path) -> Vec<Place> {
        let within = self.within(folder).map(|mount| Place { device: mount.device.clone(), path: mount.root.clone() });
        self.place(folder).into_iter().chain(within).collect()
    }
}

impl Mount {
    /// Parses a line such as `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw`. The number of fields before the
    /// dash varies.
    fn parse(line: &str) -> Option<Self> {
        let (fields, after) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(2);
        let (device, root, point) = (fields.next()?.to_owned(), unescaped(fields.next()?), unescaped(fields.next()?));
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        let layers = (kind == "overlay").then(|| Layers::parse(after.nth(1).unwrap_or_default()));
        Some(Self { device, root, point, kind, layers })
    }
}

/// Decodes a path from `mountinfo`, where a backslash with three octal digits represents a space, a tab, a line feed or a
/// backslash.
pub(super) fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = others.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /proc rw,nosuid - proc proc rw
30 21 8:16 /app/data /srv/data rw - ext4 /dev/sdb rw
31 21 8:16 /app/data/cache /var/cache/h rw master:3 propagate_from:2 - ext4 /dev/sdb rw
32 21 8:1 /etc/h.toml /conf/h.toml ro - ext4 /dev/sda1 rw
33 30 8:32 / /srv/data/with\\040space rw - xfs /dev/sdc rw
34 21 8:48 / /srv/data rw - ext4 /dev/sdd rw
";

    fn place(mounts: &Mounts, path: &str) -> String {
        let Place { device, path } = mounts.place(Path::new(path)).unwrap();
        format!("{device} {}", path.display())
    }

    #[test]
    fn a_path_is_placed_by_the_mount_on_top_that_is_nearest_above_it() {
        let mounts = Mounts::parse(TEXT);
        for (path, wanted) in [
            ("/", "8:1 /"),
            ("/srv/other", "8:1 /srv/other"),
            ("/srv/database", "8:1 /srv/database"),
            ("/var/cache/h", "8:16 /app/data/cache"),
            ("/var/cache/h/code", "8:16 /app/data/cache/code"),
            ("/conf/h.toml", "8:1 /etc/h.toml"),
            ("/srv/data/with space/a", "8:32 /a"),
            // Mounted over an existing folder.
            ("/srv/data/a", "8:48 /a"),
        ] {
            assert_eq!(place(&mounts, path), wanted, "{path}");
        }
        assert_eq!(Mounts::default().place(Path::new("/")), None);
    }

    #[test]
    fn a_folder_reaches_the_mounts_within_it() {
        let mounts = Mounts::parse(TEXT);
        let reach = mounts.reach(Path::new("/srv/data"));
        assert_eq!(reach.len(), 2, "{reach:?}");
        let within = mounts.place(Path::new("/srv/data/with space/a")).unwrap();
        assert!(reach.iter().any(|place| within.is_in(place)), "{reach:?}");
        assert!(mounts.reach(Path::new("/conf")).len() == 2);
    }

    #[test]
    fn one_folder_at_two_places_is_one_place() {
        let text = "21 1 8:1 / / rw - ext4 a rw\n30 21 8:16 / /data rw - ext4 b rw\n31 21 8:16 /cache /vcache rw - ext4 b rw\n";
        let mounts = Mounts::parse(text);
        let [data, cache, other] = ["/data", "/vcache", "/cache"].map(|path| mounts.place(Path::new(path)).unwrap());
        assert!(cache.is_in(&data) && data.is_in(&data) && !data.is_in(&cache) && !other.is_in(&data));
    }
}
