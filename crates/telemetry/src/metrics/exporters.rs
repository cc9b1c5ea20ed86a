//! Thread that exports metrics. The thread has its own runtime, so that messages are not delayed by Prometheus
//! requests, by a slow collector or by a slow reader of standard output.

use std::io;
use std::thread;

use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::emf::Lines;
use super::otlp::Push;
use super::prometheus::Endpoint;

/// Maximum number of threads for the runtime's blocking work, which consists of name lookups.
const BLOCKING: usize = 2;

/// A runtime that can be dropped in any context. Dropping it does not wait for its tasks, for example for a pending
/// name lookup.
struct Background(Option<Runtime>);

impl Background {
    fn block_on(&self, future: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(future);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The exporters to start.
pub(super) struct Builder {
    runtime: Background,
    pub(super) prometheus: Option<Endpoint>,
    pub(super) otlp: Option<Push>,
    pub(super) emf: Option<Lines>,
}

impl Builder {
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(BLOCKING).thread_name("hostler-metrics").build()?;
        Ok(Self { runtime: Background(Some(runtime)), prometheus: None, otlp: None, emf: None })
    }

    /// Runs `make` within the thread's runtime, because the values that `make` creates need this runtime.
    pub(super) fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _guard = self.runtime.0.as_ref().map(Runtime::enter);
        make()
    }

    pub(super) fn start(self) -> io::Result<ExportThread> {
        let Self { runtime, prometheus, otlp, emf } = self;
        let stop = CancellationToken::new();
        let (stopping, (done, ended)) = (stop.clone(), oneshot::channel());
        thread::Builder::new().name("hostler-metrics".into()).spawn(move || {
            runtime.block_on(async move {
                let (mut serving, mut ending) = (JoinSet::new(), JoinSet::new());
                if let Some(endpoint) = prometheus {
                    serving.spawn(endpoint.serve());
                }
                if let Some(push) = otlp {
                    ending.spawn(push.run(stopping.clone()));
                }
                if let Some(lines) = emf {
                    ending.spawn(lines.run(stopping.clone()));
                }
                stopping.cancelled().await;
                while ending.join_next().await.is_some() {}
                let _ = done.send(());
            });
        })?;
        Ok(ExportThread { stop: stop.drop_guard(), ended })
    }
}

/// The thread of the running exporters. Dropping this value stops them.
#[derive(Debug)]
pub(super) struct ExportThread {
    stop: DropGuard,
    ended: oneshot::Receiver<()>,
}

impl ExportThread {
    /// Stops the exporters and waits for their last export, until `deadline`.
    pub(super) async fn end(self, deadline: Instant) {
        drop(self.stop);
        if timeout_at(deadline, self.ended).await.is_err() {
            tracing::warn!("the last metrics were not collected in time");
        }
    }
}
