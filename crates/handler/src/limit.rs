//! Limits of the host that a call can reach through no fault of its handler: the pool of sandboxes, open files, memory,
//! threads.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::thread;

use rustix::io::{Errno, dup};

/// Prefix of tokio's panic message if the kernel refuses a thread that the runtime needs.
const NO_THREAD: &str = "OS can't spawn worker thread";

/// A limit of the host, as opposed to a limit of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The engine's pool has no free slot.
    Pool,
    /// The process or the machine has no free file descriptor.
    Descriptors,
    /// The kernel refuses memory or memory mappings.
    Memory,
    /// The kernel refuses another thread or process.
    Threads,
    /// Another delivery with the same idempotency key is being processed.
    Key,
    /// The store of idempotency records cannot be reached.
    Records,
}

impl Limit {
    /// Returns the limit that caused a system call to fail. `None`: the error has another cause.
    pub fn of_errno(errno: Errno) -> Option<Self> {
        match errno {
            Errno::MFILE | Errno::NFILE => Some(Self::Descriptors),
            Errno::NOMEM => Some(Self::Memory),
            Errno::AGAIN => Some(Self::Threads),
            _ => None,
        }
    }

    /// Tests whether the process can open another file descriptor. Returns the limit that the process has reached.
    /// `None`: the process can open another file descriptor.
    pub fn of_descriptors() -> Option<Self> {
        match dup(std::io::stderr().as_fd()) {
            Ok(_) => None,
            // Standard error is closed, so the test is not possible.
            Err(Errno::BADF) => None,
            Err(errno) => Self::of_errno(errno),
        }
    }

    /// Tests whether the process can open another file descriptor and start another thread. Returns the limit that the
    /// process has reached. `None`: no limit is reached. Used for failures whose error does not give the cause.
    pub fn at_hand() -> Option<Self> {
        Self::of_descriptors().or_else(|| match thread::Builder::new().spawn(|| {}) {
            Ok(started) => {
                let _ = started.join();
                None
            }
            Err(error) => Errno::from_io_error(&error).and_then(Self::of_errno),
        })
    }

    /// Returns the recommended fix.
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
            Self::Key => "nothing: the message comes again, and is acked if the other delivery succeeds",
            Self::Records => "see that the store of idempotency.store answers",
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
            Self::Key => "idempotency key in use",
            Self::Records => "no store of idempotency records",
        })
    }
}

/// Runs `work`. If the kernel refuses a thread, tokio panics. Converts this panic into an error, but propagates other
/// panics.
///
/// # Errors
/// The message of tokio's panic.
pub async fn with_threads<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    // Unwind safety: after a panic, the future is dropped and never polled again.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => match refused(&*panic) {
            Some(words) => Poll::Ready(Err(words)),
            None => resume_unwind(panic),
        },
    })
    .await
}

fn refused(panic: &(dyn Any + Send)) -> Option<String> {
    panic.downcast_ref::<String>().filter(|words| words.starts_with(NO_THREAD)).cloned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use hostler_types::message::Message;

    use super::*;
    use crate::{Bounds, Call, Handler, Outcome, Output, run};

    /// Creates a runtime whose threads for blocking calls cannot start, because each thread requests a stack larger
    /// than the address space.
    fn without_threads() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().thread_stack_size(1 << 60).build().unwrap()
    }

    /// A handler whose guest makes a blocking call, such as reading a file.
    struct Reads;

    #[async_trait]
    impl Handler for Reads {
        async fn handle(&self, _: &Call) -> Outcome {
            tokio::task::spawn_blocking(|| Outcome::Ack).await.unwrap()
        }
    }

    fn call() -> Call {
        Call::new(Arc::new(Message::new("1", "")), "in".into(), 1, Bounds::new(Duration::from_secs(1)), Output::new(0))
    }

    /// The test prints tokio's own panic message too.
    #[test]
    fn a_thread_that_the_kernel_refuses_is_the_host_s_limit() {
        let call = call();
        let outcome = without_threads().block_on(run(&Reads, &call));
        assert!(
            matches!(&outcome, Some(Outcome::HostLimit(Limit::Threads, why)) if why.contains(NO_THREAD)),
            "{outcome:?}"
        );
        // A decision that the handler made before the panic remains valid.
        call.decided.set(Outcome::Ack).unwrap();
        assert_eq!(without_threads().block_on(run(&Reads, &call)), Some(Outcome::Ack));
    }

    #[test]
    fn any_other_panic_goes_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let odd = async { resume_unwind(Box::new("odd".to_owned())) };
        let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(with_threads::<()>(odd)))).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "odd");
        assert_eq!(runtime.block_on(with_threads(async { 7 })), Ok(7));
    }

    #[test]
    fn a_process_with_room_is_at_no_limit() {
        assert_eq!(Limit::at_hand(), None);
    }
}
