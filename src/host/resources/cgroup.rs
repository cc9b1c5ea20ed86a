//! Reads the memory and process limits that cgroups set for this process. Supports cgroup version 1, version 2, and both side by
//! side.
//!
//! A missing or unreadable file counts as no limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Minimum value that counts as no limit. Without a limit, cgroup version 1 reports a value one page below 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The limits that were found. `None`: no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Memory limit in bytes, with the file that contains it.
    pub(super) memory: Option<(u64, PathBuf)>,
    /// Limit on the number of processes and threads together.
    pub(super) pids: Option<u64>,
    /// Memory of the machine in bytes.
    pub(super) total: Option<u64>,
}

/// Reads the limits of this process. `root` is `/` except in tests.
pub(super) fn read(root: &Path) -> Limits {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (own, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
    let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
    let lowest = |controller, files: [&str; 2]| {
        let folders = mounts.iter().filter_map(|mount| mount.folder(root, &own, controller));
        let files = folders.flat_map(|(top, folder)| limits(&top, &folder, files));
        files.min()
    };
    Limits {
        memory: lowest("memory", ["memory.max", "memory.limit_in_bytes"]),
        pids: lowest("pids", ["pids.max", "pids.max"]).map(|(pids, _)| pids),
        total: total(&text("proc/meminfo")),
    }
}

/// Reads the limits of the cgroup in `folder`, and of all cgroups above it up to `top`, the highest visible one. All of
/// these limits apply to the process. `files` contains the possible names of the file with the limit.
fn limits(top: &Path, folder: &Path, files: [&str; 2]) -> Vec<(u64, PathBuf)> {
    let groups = folder.ancestors().take_while(|group| group.starts_with(top));
    let files = groups.flat_map(|group| files.map(|file| group.join(file)));
    files.filter_map(|file| Some((limit(&fs::read_to_string(&file).ok()?)?, file))).collect()
}

fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A mounted cgroup hierarchy, parsed from a line of `mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'a> {
    /// Cgroup that is visible at the mount point.
    top: &'a str,
    /// Mount point.
    point: &'a str,
    version: Version<'a>,
}

enum Version<'a> {
    /// A version 1 hierarchy. The field contains the mount options, which include the controllers.
    One(&'a str),
    Two,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (top, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup" => Version::One(system.nth(1)?),
            "cgroup2" => Version::Two,
            _ => return None,
        };
        Some(Self { top, point, version })
    }

    /// Returns two folders of this hierarchy: the top folder, and below it the folder of the process's own group. `own`
    /// is the content of `/proc/self/cgroup`. `None`: the hierarchy lacks the controller.
    fn folder(&self, root: &Path, own: &str, controller: &str) -> Option<(PathBuf, PathBuf)> {
        let has = |controllers: &str| controllers.split(',').any(|name| name == controller);
        let group = own.lines().find_map(|line| {
            // Format: `hierarchy:controllers:group`. Version 2 has hierarchy number 0 and no controllers.
            let (id, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            let fits = match self.version {
                Version::One(options) => has(options) && has(controllers),
                Version::Two => id == "0" && controllers.is_empty(),
            };
            fits.then_some(group)
        })?;
        let top = root.join(self.point.trim_start_matches('/'));
        // In a container without a cgroup namespace, the mount starts at the container's group. The path of the process's group
        // then begins with the container's group too.
        let below = Path::new(group).strip_prefix(self.top).unwrap_or(Path::new(""));
        let below = if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below };
        let folder = top.join(below);
        Some((top, folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const V2: &str = "30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "24 1 0:20 / /proc rw - proc proc rw\n\
        36 31 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
        40 31 0:36 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n";

    /// Creates a fake root folder with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn read_tree(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        let limits = read(tree(files).path());
        (limits.memory.map(|(bytes, _)| bytes), limits.pids)
    }

    #[test]
    fn version_2_in_a_container() {
        let files = [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "134217728\n"),
            ("sys/fs/cgroup/pids.max", "64\n"),
        ];
        assert_eq!(read_tree(&files), (Some(128 * MIB), Some(64)));
        let limits = read(tree(&files).path());
        assert!(limits.memory.unwrap().1.ends_with("sys/fs/cgroup/memory.max"));
    }

    #[test]
    fn the_lowest_limit_of_all_groups_above_counts() {
        let files = [
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "2000\n"),
            ("sys/fs/cgroup/a/pids.max", "10\n"),
            ("sys/fs/cgroup/a/b/c/pids.max", "max\n"),
            ("sys/fs/memory.max", "1\n"),
        ];
        assert_eq!(read_tree(&files), (Some(1000), Some(10)));
    }

    #[test]
    fn version_1_with_the_mount_at_the_containers_group() {
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/abc\n8:pids:/docker/abc/inner\n1:cpu,cpuacct:/docker/abc\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/pids/pids.max", "100\n"),
            ("sys/fs/cgroup/pids/inner/pids.max", "90\n"),
        ];
        assert_eq!(read_tree(&files), (Some(256 * MIB), Some(90)));
    }

    #[test]
    fn both_versions_side_by_side() {
        let mounts = format!("{V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/abc\n0::/system.slice/x\n"),
            ("proc/self/mountinfo", &mounts),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"),
            ("sys/fs/cgroup/unified/system.slice/memory.max", "1500\n"),
            ("sys/fs/cgroup/unified/system.slice/x/pids.max", "7\n"),
        ];
        assert_eq!(read_tree(&files), (Some(1500), Some(7)));
    }

    #[test]
    fn what_is_no_limit_counts_as_none() {
        let version_1 = [
            ("proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(read_tree(&version_1), (None, None));
        assert_eq!(read_tree(&[]), (None, None));
        let torn = [("proc/self/cgroup", "0\n::\nx"), ("proc/self/mountinfo", "1 2\n - \n- cgroup2\n")];
        assert_eq!(read_tree(&torn), (None, None));
    }

    /// A process that was moved out of its cgroup namespace has a group such as `/../other`. In that case, only the mounted group
    /// itself is visible, and the group of the process is not.
    #[test]
    fn a_group_outside_of_what_is_mounted_counts_as_the_mount() {
        let files = [
            ("proc/self/cgroup", "0::/../other\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "3000\n"),
            ("sys/fs/other/memory.max", "1\n"),
        ];
        assert_eq!(read_tree(&files), (Some(3000), None));
    }

    #[test]
    fn the_machine_says_how_much_it_has() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       24683712 kB\n"), Some(24683712 * 1024));
        assert_eq!(total("MemTotal: many"), None);
    }
}
