//! Detects granted folders in which the kernel exposes the machine or the process as files. Guests must not read `/proc`, and
//! must not write to any folder of this kind.
//!
//! `/proc/self/mem` is the memory of hostler, including its code. `/proc/self/environ` contains hostler's secrets. A write to
//! `/sys`, the cgroups or `/dev` changes the machine.

use std::path::Path;

use rustix::fs::statfs;

use super::mounts::Mounts;
use super::trail::Trail;
use hostler_config::DirMode;

/// Harm that a guest with access could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// Reading reveals secrets. Writing is harmful too.
    Read,
    /// Writing changes the machine.
    Write,
}

impl Harm {
    fn of_kind(kind: &str) -> Option<Self> {
        Some(match kind {
            "proc" => Self::Read,
            "sysfs" | "cgroup" | "cgroup2" | "devtmpfs" | "devpts" | "debugfs" | "tracefs" | "securityfs"
            | "configfs" | "bpf" | "efivarfs" | "pstore" | "binfmt_misc" | "selinuxfs" | "mqueue" => Self::Write,
            _ => return None,
        })
    }

    /// Classifies a folder by the type number of its file system. statfs(2) returns this number even if `mountinfo` cannot be
    /// read.
    fn of_number(number: i64) -> Option<Self> {
        Some(match number {
            0x9fa0 => Self::Read,
            // sysfs, cgroup, cgroup2, devpts, debugfs, tracefs.
            0x6265_6572 | 0x0027_e0eb | 0x6367_7270 | 0x1cd1 | 0x6462_6720 | 0x7472_6163 => Self::Write,
            _ => return None,
        })
    }

    fn forbids(self, mode: DirMode) -> bool {
        self == Self::Read || mode == DirMode::ReadWrite
    }
}

/// Returns the reason to refuse a grant of this folder in this mode: the kind of the folder, and the harm that a guest could do.
/// `None`: the folder may be granted.
pub(super) fn refusal(folder: &Path, mode: DirMode, mounts: &Mounts) -> Option<String> {
    let end = Trail::of(folder).end;
    // A writable folder may not exist yet. Therefore, uses its nearest existing ancestor.
    #[allow(clippy::unnecessary_cast, reason = "its type is another one on some architectures")]
    let number = end.ancestors().find_map(|folder| statfs(folder).ok()).map(|found| found.f_type as i64);
    let own = number.and_then(Harm::of_number);
    refused(&end, mode, mounts, own)
}

fn refused(end: &Path, mode: DirMode, mounts: &Mounts, by_number: Option<Harm>) -> Option<String> {
    let of_kind = |kind: &str| Harm::of_kind(kind).filter(|harm| harm.forbids(mode));
    let text = |what: String, harm| {
        let harm = match harm {
            Harm::Read => "a guest could read hostler's secrets and memory there, or write to them",
            Harm::Write => "a guest could change the machine there, or hostler's own limits and devices",
        };
        format!("{what}: {harm}")
    };
    let here = mounts.of(end).and_then(|mount| Some((of_kind(&mount.kind)?, &*mount.kind)));
    if let Some((harm, kind)) = here {
        return Some(text(format!("belongs to the kernel ({kind})"), harm));
    }
    if let Some(harm) = by_number.filter(|harm| harm.forbids(mode)) {
        return Some(text("belongs to the kernel".to_owned(), harm));
    }
    if end == Path::new("/dev") && mode == DirMode::ReadWrite {
        return Some(text("holds the devices".to_owned(), Harm::Write));
    }
    let mut within = mounts.within(end).filter_map(|mount| Some((of_kind(&mount.kind)?, mount)));
    let (harm, mount) = within.next()?;
    Some(text(format!("holds `{}`, which belongs to the kernel ({})", mount.point.display(), mount.kind), harm))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
1 0 8:1 / / rw - overlay overlay rw
2 1 0:20 / /proc rw - proc proc rw
3 1 0:21 / /sys ro - sysfs sysfs ro
4 3 0:22 / /sys/fs/cgroup ro - cgroup2 cgroup rw
5 1 0:23 / /dev rw - tmpfs tmpfs rw
6 5 0:24 / /dev/shm rw - tmpfs shm rw
7 1 0:20 /self /data/inner/p rw - proc proc rw
8 1 8:2 / /work rw - ext4 b rw
";

    #[test]
    fn what_the_kernel_shows_as_files_is_refused() {
        use DirMode::{ReadOnly, ReadWrite};
        let mounts = Mounts::parse(TEXT);
        let refused = |path: &str, mode| refused(Path::new(path), mode, &mounts, None);
        for (path, mode, named) in [
            ("/proc", ReadWrite, "secrets"),
            ("/proc", ReadOnly, "secrets"),
            ("/proc/self/task", ReadOnly, "(proc)"),
            ("/proc/sys", ReadWrite, "(proc)"),
            ("/data/inner/p/fd", ReadOnly, "(proc)"),
            ("/data", ReadOnly, "`/data/inner/p`"),
            ("/", ReadOnly, "`/proc`"),
            ("/sys/kernel", ReadWrite, "(sysfs)"),
            ("/sys/fs/cgroup/x", ReadWrite, "(cgroup2)"),
            ("/dev", ReadWrite, "devices"),
        ] {
            let refusal = refused(path, mode);
            assert!(refusal.as_ref().is_some_and(|text| text.contains(named)), "{path} {mode:?}: {refusal:?}");
        }
        for (path, mode) in
            [("/sys/kernel", ReadOnly), ("/dev/shm", ReadWrite), ("/work", ReadWrite), ("/procedures", ReadWrite)]
        {
            assert_eq!(refused(path, mode), None, "{path} {mode:?}");
        }
    }

    #[test]
    fn the_kernel_itself_tells_where_mounts_cannot_be_read() {
        for path in ["/proc", "/proc/self", "/proc/self/fdinfo"] {
            for mode in [DirMode::ReadOnly, DirMode::ReadWrite] {
                assert!(refusal(Path::new(path), mode, &Mounts::default()).is_some(), "{path} {mode:?}");
            }
        }
        assert!(refusal(Path::new("/proc/self/cwd"), DirMode::ReadOnly, &Mounts::default()).is_none());
    }
}
