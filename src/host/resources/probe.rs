//! A trial run of the needed threads. A runtime panics if the kernel refuses it a thread, so this comes before runtimes start.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::Machine;
use crate::exit::{Exit, Failure, Result};

/// The stack of a thread, in bytes, as runtimes have it: if memory is limited, a stack may be what the kernel refuses.
const STACK: usize = 2 << 20;

/// The longest wait until the kernel no longer counts the ended threads.
const PATIENCE: Duration = Duration::from_secs(1);

impl Machine {
    /// Starts this many threads at once and ends them, if there is any limit.
    ///
    /// # Errors
    /// With 70 and the cure if the kernel refuses one.
    pub fn try_threads(&self, threads: usize) -> Result<()> {
        let memory = [Resource::As, Resource::Data].into_iter().any(|limit| getrlimit(limit).current.is_some());
        if self.pids.is_some() || memory { try_threads(threads) } else { Ok(()) }
    }
}

fn try_threads(threads: usize) -> Result<()> {
    let before = own_threads();
    let gate = Mutex::new(());
    let started = thread::scope(|scope| {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = || drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
        (0..threads).try_for_each(|_| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, wait).map(drop))
    });
    // A joined thread still counts for a moment.
    let begun = Instant::now();
    while own_threads() > before && begun.elapsed() < PATIENCE {
        thread::yield_now();
    }
    started.map_err(|error| too_few_threads(&format!("the {threads} threads that it needs"), &error))
}

/// Returns the failure for a thread that the kernel refused.
pub fn too_few_threads(what: &str, error: &io::Error) -> Failure {
    let text = format!(
        "hostler cannot start {what}: {error}\n  cure: raise the limit of processes (`ulimit -u`, `pids` of the container) and that of \
         memory (`ulimit -v`, `ulimit -d`) if there is one, or run fewer other programs as this user"
    );
    Failure::new(Exit::Internal, text)
}

fn own_threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_the_kernel_allows_can_be_started() {
        assert!(try_threads(20).is_ok());
        assert!(try_threads(0).is_ok());
    }

    #[test]
    fn a_refusal_has_the_cure() {
        let failure = too_few_threads("threads", &io::Error::from(io::ErrorKind::WouldBlock));
        assert!(failure.exit == Exit::Internal && failure.message.contains("cure: raise the limit of processes"));
    }
}
