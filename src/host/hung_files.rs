//! Detects hanging file operations that block all file threads of a consumer, and logs a warning.
//!
//! Some file operations never return. Examples are a read from a FIFO without a writer, and access to a network file system that
//! does not respond. Such an operation blocks its thread until the process ends, because the kernel cannot cancel the operation.
//! hostler can still stop the guest. If all file threads of a consumer are blocked, all further file operations of the consumer
//! wait.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::guests::Shared;
use hostler_config::Config;

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time for which a file operation may wait for a thread. After this time, hostler logs a warning.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts a watch over the runtimes of each consumer with folders. The watch ends when the returned set is dropped.
pub(super) fn watch(config: &Config, shared: &[Shared]) -> JoinSet<()> {
    let mut watching = JoinSet::new();
    for Shared { consumers, runtimes, files, .. } in shared {
        let all = consumers.iter().filter_map(|place| config.consumers.get(*place));
        let names: Vec<_> = all.filter(|one| !one.allow.dirs.is_empty()).map(|one| one.name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        for runtime in runtimes {
            watching.spawn(watch_one(names.join(", "), runtime.clone(), *files));
        }
    }
    watching
}

async fn watch_one(consumer: String, runtime: Handle, threads: usize) {
    loop {
        sleep(INTERVAL).await;
        let (queue, queued) = oneshot::channel();
        // Starts the operation from a restricted worker thread. The file thread that runs the operation inherits the restrictions
        // if it is new.
        let mut operation = runtime.spawn(async move {
            let operation = spawn_blocking(|| ());
            let _ = queue.send(());
            let _ = operation.await;
        });
        // The time spent waiting for a busy worker thread does not count.
        let _ = queued.await;
        if timeout(PATIENCE, &mut operation).await.is_err() {
            tracing::warn!(
                consumer,
                threads,
                cure = "find what hangs in its allow.dirs (a FIFO without a writer, a network file system that does not \
                        answer), remove it, and restart hostler",
                "file operations of guests hang and occupy all threads for files; messages that need files time out"
            );
            let _ = operation.await;
            tracing::info!(consumer, "file operations of guests work again");
        }
    }
}
