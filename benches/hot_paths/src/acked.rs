//! Calls to a queue for ten messages: one receive, and an ack for each message.

use std::time::Duration;

use hostler_queue::{Queue, Receive, Settlement};
use tokio_util::sync::CancellationToken;

/// Body of the messages.
pub const BODY: &str = r#"{"order":"7f1c9a52","items":[3,1,4,1,5,9,2,6],"note":"as received, and of no importance"}"#;

/// Receives ten messages and acks them. Returns the number of acked messages.
pub async fn ten(queue: &dyn Queue, wait: Duration) -> usize {
    let request = Receive { max: 10, wait, lease: Duration::from_secs(30) };
    let received = queue.receive(request, &CancellationToken::new()).await.unwrap_or_default();
    let acks = received.into_iter().map(|delivery| Settlement::Ack(delivery.receipt)).collect();
    queue.settle(acks).await.iter().filter(|result| result.is_ok()).count()
}
