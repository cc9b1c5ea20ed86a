//! Driver for the embedded queue. The queue is a file that hostler creates on first use.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{QueueDriver, QueueFile};
use crate::host::full;
use crate::host::health_reporter::LAST_WRITE;
use hostler_config::Config;
use hostler_queue::{Disposal, Provisioner, QueueError};
use hostler_queue_embedded::EmbeddedBroker;
use hostler_telemetry::LAST_LINES;

/// Maximum time to wait at the end of the process until the file is closed.
const CLOSING: Duration = Duration::from_secs(2);

// With the default `shutdown_grace` of 25 seconds, the process must end before the default stop timeout of ECS, 30 seconds.
const _: () = assert!(LAST_WRITE.as_millis() + LAST_LINES.as_millis() + CLOSING.as_millis() < 5000);

pub(super) struct Embedded;

#[async_trait]
impl QueueDriver for Embedded {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        let path = &config.queue.embedded.path;
        let is_new = !path.exists();
        create_folder(path)?;
        let broker = EmbeddedBroker::open(path)?;
        if is_new {
            tracing::info!(path = %full(path).display(), "created the embedded queue");
        }
        Ok(Arc::new(broker))
    }

    async fn connect_to_look(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(EmbeddedBroker::open_to_look(&config.queue.embedded.path)?))
    }

    async fn disposal(&self, _: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Err(QueueError::Refused(
            "`hostler clean` needs queue.driver = \"sqs\": only SQS has a record of use; to clean an embedded queue, remove its file"
                .into(),
        ))
    }

    fn threads(&self) -> usize {
        // The writer.
        1
    }

    fn close(&self) {
        hostler_queue_embedded::close(CLOSING);
    }

    fn system(&self) -> &'static str {
        "hostler"
    }

    fn file<'a>(&self, config: &'a Config) -> Option<QueueFile<'a>> {
        let path = &config.queue.embedded.path;
        Some(QueueFile { key: "queue.embedded.path", path, companions: &["-wal", "-shm"] })
    }
}

/// Creates the folder of the queue file if the folder is missing.
fn create_folder(path: &Path) -> Result<(), QueueError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| {
        let folder = folder.display();
        QueueError::Refused(format!("queue.embedded.path: cannot create the folder {folder}: {error}"))
    })
}
