//! A real cgroup for one test, of version 1 or 2, if this machine allows its creation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::hostler::{PATIENCE, announce, until};

const TOP: &str = "/sys/fs/cgroup";

/// A cgroup with a memory limit and a process limit. Dropping this value removes the group.
pub struct Cgroup {
    /// The group's folder (version 2), or one folder per controller (version 1).
    folders: Vec<PathBuf>,
    memory: PathBuf,
}

impl Cgroup {
    /// Creates a group with these limits. `None`: no group can be created, which is announced on standard error.
    pub fn new(memory: u64, pids: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hostler-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let made = Self::version_2(&name, memory, pids).or_else(|_| Self::version_1(&name, memory, pids));
        match made {
            Ok(group) => Some(group),
            Err(error) => {
                announce(&format!(
                    "NOT RUN: no cgroup can be made here ({error}); run the tests as root of the machine"
                ));
                None
            }
        }
    }

    fn version_2(name: &str, memory: u64, pids: u64) -> std::io::Result<Self> {
        let top = Path::new(TOP);
        // With a version 1 mount, this file does not exist.
        fs::metadata(top.join("cgroup.controllers"))?;
        fs::write(top.join("cgroup.subtree_control"), "+memory +pids")?;
        let folder = top.join(name);
        fs::create_dir(&folder)?;
        let group = Self { folders: vec![folder.clone()], memory: folder.clone() };
        fs::write(folder.join("memory.max"), memory.to_string())?;
        fs::write(folder.join("pids.max"), pids.to_string())?;
        Ok(group)
    }

    fn version_1(name: &str, memory: u64, pids: u64) -> std::io::Result<Self> {
        let (for_memory, for_pids) = (Path::new(TOP).join("memory").join(name), Path::new(TOP).join("pids").join(name));
        fs::create_dir(&for_memory)?;
        let mut group = Self { folders: vec![for_memory.clone()], memory: for_memory.clone() };
        fs::create_dir(&for_pids)?;
        group.folders.push(for_pids.clone());
        fs::write(for_memory.join("memory.limit_in_bytes"), memory.to_string())?;
        fs::write(for_pids.join("pids.max"), pids.to_string())?;
        Ok(group)
    }

    /// Wraps a command so that it runs in the group from its first instruction.
    pub fn around(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("/bin/sh");
        let enter: String =
            self.folders.iter().map(|folder| format!("echo $$ > {}/cgroup.procs && ", folder.display())).collect();
        wrapped.arg("-c").arg(format!("{enter}exec \"$@\"")).arg("sh");
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        wrapped.current_dir(command.get_current_dir().unwrap());
        wrapped
    }

    /// Returns the number of processes that the kernel has killed for lack of memory.
    pub fn kills(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(self.memory.join(file)));
        let text: String = files.into_iter().flatten().collect();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().trim().parse().unwrap()
    }

    /// Returns the peak memory use of the group in bytes. `None`: the kernel does not report the peak.
    pub fn peak(&self) -> Option<u64> {
        let files = ["memory.peak", "memory.max_usage_in_bytes"].map(|file| self.memory.join(file));
        files.iter().find_map(|file| fs::read_to_string(file).ok())?.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A group is busy until the kernel has released its last process.
        for folder in self.folders.iter().filter(|_| !std::thread::panicking()) {
            until("the end of a cgroup", PATIENCE, || fs::remove_dir(folder).ok());
        }
        self.folders.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}
