//! Waiting for the server's answers on a queue's channel, for a limited time.

use std::time::Duration;

use hostler_queue::QueueError;
use tokio::time::timeout;

/// Maximum time to wait for an answer of the server. A queue without a leader gives none.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for an answer of the server. `failed` makes the error out of the client's.
pub(super) async fn answer<T>(
    asked: impl Future<Output = lapin::Result<T>>,
    failed: impl Fn(lapin::Error) -> QueueError,
) -> Result<T, QueueError> {
    match timeout(PATIENCE, asked).await {
        Ok(answered) => answered.map_err(failed),
        Err(_) => Err(no_answer()),
    }
}

/// Returns the error for an answer that did not come in time.
pub(super) fn no_answer() -> QueueError {
    QueueError::Unavailable(format!("RabbitMQ gave no answer within {PATIENCE:?}"))
}
