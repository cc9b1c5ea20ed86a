//! Limits of the host that a call can run into through no fault of its handler: the pool of sandboxes, open files, memory and threads.

use std::fmt;

/// A limit of the host, not of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The engine's pool has no free place.
    Pool,
    /// The process, or the machine, has no free descriptor.
    Descriptors,
    /// The kernel refuses memory or mappings.
    Memory,
    /// The kernel refuses another thread or process.
    Threads,
}

impl Limit {
    /// What a person does about it.
    pub fn cure(self) -> &'static str {
        match self {
            Self::Pool => "lower concurrency; if it happens again, report it: the pool is made to hold every sandbox",
            Self::Descriptors => {
                "raise the limit of open files (`ulimit -n`, or `ulimits` of the container), or lower concurrency"
            }
            Self::Memory => {
                "give the container more memory (or raise vm.max_map_count), or lower concurrency or limits.memory"
            }
            Self::Threads => "raise the limit of processes (`pids` of the container)",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "no free sandbox in the pool",
            Self::Descriptors => "no free file descriptor",
            Self::Memory => "no memory left on the host",
            Self::Threads => "no free thread",
        })
    }
}
