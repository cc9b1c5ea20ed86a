//! The limits of the process on its machine, and the slots, sandboxes and threads that follow from them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `cgroup` | reads the limits of memory and processes, of cgroups v1 and v2 | `/proc`, `/sys/fs/cgroup` |
//! | `descriptors` | raises the limit of open files, and shares it out | the limit |
//! | `floor` | refuses limits of the process that are too low for any use | the limits, `/proc` |
//! | `plan` | shares out the memory, or refuses with the arithmetic | none |
//! | `probe` | tries to start the needed threads | threads |
//! | `refusal` | the text of a refusal, and its cures | none |
//! | `threads` | sets the number of threads of each pool | none |

mod cgroup;
mod descriptors;
mod floor;
mod plan;
mod probe;
mod threads;

pub use descriptors::{FilePlan, Handles, TooFewFiles};
pub use floor::{Purpose, own_memory_limit};
pub use plan::Refusal;
pub use plan::{Demand, HOST, MEMORY, Plan, SLOTS, Share, plan};
pub use probe::too_few_threads;
pub use threads::{Threads, TooFewProcesses};

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit, getuid};

/// The limits of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Memory.
    pub memory: Limit,
    /// Threads and processes together, by the container's limit or the user's (RLIMIT_NPROC); `None`: no limit.
    pub pids: Option<u64>,
    /// CPUs, by scheduler affinity and cgroup quotas: at least 1.
    pub cpus: usize,
}

/// A limit of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// The origin of the limit.
    pub by: LimitedBy,
}

/// The origin of a limit of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitedBy {
    /// This file of a cgroup: the container's limit.
    Cgroup(PathBuf),
    /// The ECS task, as its metadata says.
    Task,
    /// The limit of data of the process itself (`ulimit -d`).
    Data,
    /// No limit: it is all memory of the machine.
    Machine,
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(file) => write!(f, "cgroup, {}", file.display()),
            Self::Task => f.write_str("ECS task"),
            Self::Data => f.write_str("RLIMIT_DATA, `ulimit -d`"),
            Self::Machine => f.write_str("MemTotal of the machine"),
        }
    }
}

impl Machine {
    /// Measures the limits of this process.
    pub fn measure() -> Self {
        let cgroup::Limits { memory, pids, total } = cgroup::read(Path::new("/"));
        // The user's limit does not apply to root.
        let of_user = if getuid().is_root() { None } else { getrlimit(Resource::Nproc).current };
        let pids = pids.into_iter().chain(of_user).min();
        let total = Limit { bytes: total.unwrap_or(u64::MAX), by: LimitedBy::Machine };
        let cgroup = memory.map(|(bytes, file)| Limit { bytes, by: LimitedBy::Cgroup(file) });
        let data = getrlimit(Resource::Data).current.map(|bytes| Limit { bytes, by: LimitedBy::Data });
        let lower = cgroup.into_iter().chain(data).filter(|limit| limit.bytes < total.bytes);
        let memory = lower.min_by_key(|limit| limit.bytes).unwrap_or(total);
        Self { memory, pids, cpus: std::thread::available_parallelism().map_or(1, usize::from) }
    }

    /// Applies the memory limit of an ECS task, in bytes, which its containers' cgroups may not show.
    pub fn in_task(mut self, limit: Option<u64>) -> Self {
        if let Some(bytes) = limit.filter(|bytes| *bytes < self.memory.bytes) {
            self.memory = Limit { bytes, by: LimitedBy::Task };
        }
        self
    }
}

/// Formats bytes in whole MiB, rounded down.
fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
