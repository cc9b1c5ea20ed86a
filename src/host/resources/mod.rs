//! Limits of this process, and the numbers of slots, sandboxes and threads that fit into them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `cgroup` | reads the memory and process limits of cgroups v1 and v2 | `/proc`, `/sys/fs/cgroup` |
//! | `descriptors` | raises the limit on open files, and divides it among the sandboxes | the limit |
//! | `floor` | refuses limits of the process that are too low for any use | the limits, `/proc` |
//! | `plan` | divides the memory among the consumers, or refuses the config and shows the calculation | none |
//! | `probe` | tries to start the needed threads | threads |
//! | `refusal` | formats a refusal and its fixes | none |
//! | `threads` | sets the number of threads of each pool | none |

mod cgroup;
mod descriptors;
mod floor;
mod plan;
mod probe;
mod threads;

pub use descriptors::{FilePlan, Handles, TooFewFiles};
pub use floor::{Purpose, check_bare_memory, own_memory_limit};
pub use plan::Refusal;
pub use plan::{Demand, HOST, MEMORY, Plan, SLOTS, Share, plan};
pub use probe::too_few_threads;
pub use threads::{Threads, TooFewProcesses};

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit, getuid};

/// Limits of the process on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Memory limit.
    pub memory: Limit,
    /// Maximum number of threads and processes together: the lower of the container's limit and the user's limit (RLIMIT_NPROC).
    /// `None`: no limit.
    pub pids: Option<u64>,
    /// Number of CPUs that the process may use. Respects the scheduler affinity and the cgroup quota. At least 1.
    pub cpus: usize,
}

/// A memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Limit in bytes.
    pub bytes: u64,
    /// Origin of the limit.
    pub by: LimitedBy,
}

/// Origin of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitedBy {
    /// The container's limit, from this cgroup file.
    Cgroup(PathBuf),
    /// The limit of the ECS task, from the task metadata.
    Task,
    /// The data segment limit of the process itself (`ulimit -d`).
    Data,
    /// No limit is set. All memory of the machine is available.
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
        // The kernel does not apply the user's limit to root.
        let of_user = if getuid().is_root() { None } else { getrlimit(Resource::Nproc).current };
        let pids = pids.into_iter().chain(of_user).min();
        let total = Limit { bytes: total.unwrap_or(u64::MAX), by: LimitedBy::Machine };
        let cgroup = memory.map(|(bytes, file)| Limit { bytes, by: LimitedBy::Cgroup(file) });
        let data = getrlimit(Resource::Data).current.map(|bytes| Limit { bytes, by: LimitedBy::Data });
        let lower = cgroup.into_iter().chain(data).filter(|limit| limit.bytes < total.bytes);
        let memory = lower.min_by_key(|limit| limit.bytes).unwrap_or(total);
        Self { memory, pids, cpus: std::thread::available_parallelism().map_or(1, usize::from) }
    }

    /// Applies the memory limit of an ECS task, in bytes, if the limit is lower than the measured one. The cgroups of the task's
    /// containers may not show the limit of the task.
    pub fn in_task(mut self, limit: Option<u64>) -> Self {
        if let Some(bytes) = limit.filter(|bytes| *bytes < self.memory.bytes) {
            self.memory = Limit { bytes, by: LimitedBy::Task };
        }
        self
    }
}

/// Formats bytes as whole MiB, rounded down.
fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
