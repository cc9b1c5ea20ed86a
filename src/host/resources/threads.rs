//! Computes the number of threads of each pool. The numbers leave enough threads of the process limit for everything that starts
//! after the pools.

use std::fmt;

use super::Machine;

/// Number of hostler's threads outside the pools, plus room for health checks. During a health check, a few threads of the
/// container engine run in the container's group.
const OTHERS: u64 = 24;

/// Number of pools of the host: one for blocking calls, and one for compiling.
const POOLS: u64 = 2;

/// Number of pools of each set of guest runtimes: one for fast guests, one for background guests, and one for the blocking calls
/// of each of three runtimes. Two of these runtimes run fast guests.
const POOLS_PER_SET: u64 = 5;

/// Minimum number of threads of each set of runtimes: one for guests, and one for their blocking calls.
const LEAST_PER_SET: u64 = 2;

/// Maximum number of threads that compile handlers. More threads gain little.
const MAX_COMPILING: usize = 16;

/// Maximum number of threads of each pool for blocking calls. Equals the default of tokio.
const MAX_BLOCKING: usize = 512;

/// Minimum memory per guest thread in bytes. The allocator keeps a separate arena for each thread.
const MEMORY_PER_WORKER: u64 = 16 << 20;

/// Sizes of the pools. `background` may be 0, and all other sizes are at least 1. The sizes of guest pools apply to each set of
/// runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Number of sets of guest runtimes. Equals the requested number, or 1 if the process limit is too low for it.
    pub sets: usize,
    /// Number of threads in the fast pool, in which every guest starts.
    pub guests: usize,
    /// Number of threads for guests with long computations. hostler moves a guest with a long computation from a thread of the
    /// fast pool to one of these threads. 0 if the process limit is low.
    pub background: usize,
    /// Maximum number of threads that access files for guests. Applies to each of the three runtimes of a set.
    pub guests_blocking: usize,
    /// Maximum number of threads for name resolution and hostler's own files.
    pub control_blocking: usize,
    /// Number of threads that compile handlers. 1: the calling thread compiles.
    pub compiling: usize,
}

impl Threads {
    /// Returns the sizes that fit the machine. `sets` is the requested number of sets of guest runtimes.
    ///
    /// First subtracts hostler's threads outside the pools from the process limit. Then divides the remaining threads
    /// evenly among all pools of all sets. This part is the maximum size of each pool. With one set there are seven
    /// pools, so each gets at most a seventh.
    pub fn of(machine: &Machine, sets: usize) -> Self {
        let room = machine.pids.map_or(u64::MAX, |pids| pids.saturating_sub(OTHERS));
        let sets = if TooFewProcesses::of(machine, sets).is_none() { sets.max(1) } else { 1 };
        let most = usize::try_from(room / (POOLS + POOLS_PER_SET * sets as u64)).unwrap_or(usize::MAX);
        let share = most.max(1);
        let memory = usize::try_from(machine.memory.bytes / MEMORY_PER_WORKER).unwrap_or(usize::MAX).max(1);
        let cpus = machine.cpus.max(1);
        Self {
            sets,
            guests: cpus.min(share).min((memory / sets).max(1)),
            background: cpus.min(most).min((memory / 2).div_ceil(sets)),
            guests_blocking: share.min(MAX_BLOCKING),
            control_blocking: share.min(MAX_BLOCKING),
            compiling: cpus.min(share).min(memory).min(MAX_COMPILING),
        }
    }
}

/// Shortage of processes: the process limit is too low for the requested number of sets of runtimes. Therefore, all guests share
/// one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooFewProcesses {
    allowed: u64,
    needed: u64,
}

impl TooFewProcesses {
    /// Returns the shortage if the process limit is too low for this many sets. `None`: the limit is high enough.
    pub fn of(machine: &Machine, sets: usize) -> Option<Self> {
        let needed = OTHERS + POOLS + LEAST_PER_SET * sets as u64;
        let allowed = machine.pids.filter(|allowed| sets > 1 && *allowed < needed)?;
        Some(Self { allowed, needed })
    }

    /// Returns advice for the user.
    pub fn cure(&self) -> String {
        format!(
            "raise the limit of processes to {} or more (`--pids-limit` of the container, `ulimit -u` of the user)",
            self.needed
        )
    }
}

impl fmt::Display for TooFewProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allowed, needed } = self;
        write!(
            f,
            "consumers with folders share threads: for threads of their own they need a limit of {needed} processes, and it \
             is {allowed}"
        )
    }
}

/// Number of threads of a host outside the pools: for log, health file and epoch. Does not include the signal thread, nor those
/// of the queue driver.
const OWN: usize = 3;

/// Number of threads that load handlers. These threads end before guests need file threads.
const LOADING: usize = 2;

impl Threads {
    /// Returns the number of threads that a host always starts. Does not include the signal thread. Counts one thread for all
    /// pools of blocking calls together. `of_driver`: number of threads that the queue driver starts.
    pub fn least(&self, of_driver: usize) -> usize {
        let compiling = if self.compiling > 1 { self.compiling } else { 0 };
        OWN + of_driver + LOADING + compiling + self.sets * (self.guests + self.background) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limit, LimitedBy};
    use super::*;

    fn machine(cpus: usize, pids: Option<u64>, mib: u64) -> Machine {
        Machine { memory: Limit { bytes: mib << 20, by: LimitedBy::Machine }, pids, cpus }
    }

    #[test]
    fn without_limits_there_is_a_thread_per_cpu() {
        let threads = Threads::of(&machine(64, None, 256 * 1024), 1);
        assert_eq!(
            threads,
            Threads { sets: 1, guests: 64, background: 64, guests_blocking: 512, control_blocking: 512, compiling: 16 }
        );
    }

    #[test]
    fn all_pools_together_stay_below_the_limit_of_processes() {
        for (pids, sets) in [30, 64, 100, 1_000].into_iter().flat_map(|pids| [1, 2, 3, 19, 40].map(|sets| (pids, sets)))
        {
            let threads = Threads::of(&machine(256, Some(pids), 1024 * 1024), sets);
            let runtimes = if threads.background > 0 { 3 } else { 1 };
            let guests = threads.sets * (threads.guests + threads.background + runtimes * threads.guests_blocking);
            let sum = guests + threads.control_blocking + threads.compiling;
            assert!(sum as u64 + OTHERS <= pids, "{pids}: {threads:?}");
        }
        let sets = |sets| Threads::of(&machine(64, Some(64), 1024 * 1024), sets);
        assert_eq!((sets(1).guests, sets(3).guests, sets(19).guests), (5, 2, 1));
        // Here, the process limit is too low for 20 sets. All guests share one set.
        assert_eq!((sets(19).sets, sets(20)), (19, sets(1)));
        let shortage = |pids, sets| TooFewProcesses::of(&machine(64, pids, 1024), sets);
        assert_eq!([shortage(None, 20), shortage(Some(64), 19), shortage(Some(1), 1)], [None, None, None]);
        assert_eq!(shortage(Some(64), 20), Some(TooFewProcesses { allowed: 64, needed: 66 }));
    }

    #[test]
    fn a_small_container_on_a_large_machine_has_few() {
        let threads = Threads::of(&machine(64, None, 128), 1);
        assert_eq!((threads.guests, threads.background, threads.compiling), (8, 4, 8));
        let threads = Threads::of(&machine(64, None, 128), 4);
        assert_eq!((threads.guests, threads.background, threads.compiling), (2, 1, 8));
    }

    #[test]
    fn what_is_started_at_least_stays_below_the_limit_of_processes() {
        for (pids, sets) in [30, 64, 1_000].into_iter().flat_map(|pids| [1, 3, 19].map(|sets| (pids, sets))) {
            let threads = Threads::of(&machine(256, Some(pids), 1024 * 1024), sets);
            assert!(threads.least(2) as u64 <= pids, "{pids}: {threads:?}");
        }
        let least = |of_driver| Threads::of(&machine(2, Some(12), 1024), 1).least(of_driver);
        assert_eq!([least(1), least(2)], [8, 9], "ten processes are enough");
    }

    #[test]
    fn there_is_always_one() {
        let one = Threads { sets: 1, guests: 1, background: 0, guests_blocking: 1, control_blocking: 1, compiling: 1 };
        assert_eq!(Threads::of(&machine(0, Some(1), 0), 1), one);
    }
}
