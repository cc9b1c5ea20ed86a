//! Starts and ends the needed number of threads as a trial, before any runtime starts. A runtime panics if the kernel refuses a
//! thread.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::Machine;
use crate::exit::{Exit, Failure, Result};

/// Stack size of each trial thread in bytes. Equals the stack size in runtimes. Under a memory limit, the kernel may refuse the
/// stack.
const STACK: usize = 2 << 20;

/// Maximum time to wait until the kernel no longer counts the ended threads.
const PATIENCE: Duration = Duration::from_secs(1);

impl Machine {
    /// Starts this many threads at once, and ends them. Does nothing if neither the threads nor the memory of the process are
    /// limited.
    ///
    /// # Errors
    /// Exit code 70 if the kernel refuses a thread. The error message contains the fix.
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
    // The kernel counts a joined thread for a short time after its end.
    let begun = Instant::now();
    while own_threads() > before && begun.elapsed() < PATIENCE {
        thread::yield_now();
    }
    started.map_err(|error| too_few_threads(&format!("the {threads} threads that it needs"), &error))
}

/// Creates the failure for threads that the kernel refused. `what` describes the threads.
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
