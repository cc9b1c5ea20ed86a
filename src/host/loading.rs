//! Runtime that fetches and loads handlers. The runtime stops before any guest runs, because its threads have access rights
//! that guests must not have.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// Runtime for loading handlers. Dropping the runtime does not wait for its tasks.
pub(super) struct Loading {
    /// Handle for spawning tasks on the runtime.
    pub(super) on: Handle,
    runtime: Option<Runtime>,
}

impl Loading {
    /// Starts a runtime with one worker thread, for hashing and TLS, and at most `blocking` blocking threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(blocking: usize) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.thread_name("hostler-load").worker_threads(1).max_blocking_threads(blocking);
        let runtime = builder.enable_all().build()?;
        Ok(Self { on: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
