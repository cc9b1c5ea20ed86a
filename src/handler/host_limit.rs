//! Limits of the host that a call can run into through no fault of its handler: the pool of sandboxes, open files, memory and threads.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustix::io::Errno;
use wasmtime::PoolConcurrencyLimitError;

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
    /// The limit that a system call ran into, if its error says so.
    pub(super) fn of_errno(errno: Errno) -> Option<Self> {
        match errno {
            Errno::MFILE | Errno::NFILE => Some(Self::Descriptors),
            Errno::NOMEM => Some(Self::Memory),
            Errno::AGAIN => Some(Self::Threads),
            _ => None,
        }
    }

    /// The limit that is the cause of an error, if one is.
    pub(super) fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        std::iter::successors(Some(error), |&error| error.source()).find_map(|cause| {
            if cause.is::<PoolConcurrencyLimitError>() {
                return Some(Self::Pool);
            }
            let of_io = || cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
            cause.downcast_ref::<Errno>().copied().or_else(of_io).and_then(Self::of_errno)
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_among_the_causes() {
        let of = |number| {
            let error = io::Error::from_raw_os_error(number);
            Limit::of(wasmtime::Error::from(error).context("a folder").as_ref())
        };
        assert_eq!(of(Errno::MFILE.raw_os_error()), Some(Limit::Descriptors));
        assert_eq!(of(Errno::NFILE.raw_os_error()), Some(Limit::Descriptors));
        assert_eq!(of(Errno::NOMEM.raw_os_error()), Some(Limit::Memory));
        assert_eq!(of(Errno::AGAIN.raw_os_error()), Some(Limit::Threads));
        assert_eq!(of(Errno::NOENT.raw_os_error()), None);
        assert_eq!(Limit::of(wasmtime::Error::msg("no memory").as_ref()), None);
    }
}
