//! What a queue is asked for ten messages at a time: a receive, and an ack of each.

use std::time::Duration;

use hostler_queue::{Queue, Receive, Settlement};
use tokio_util::sync::CancellationToken;

/// The body of the messages.
pub const BODY: &str = r#"{"order":"7f1c9a52","items":[3,1,4,1,5,9,2,6],"note":"as received, and of no importance"}"#;

/// Receives ten and acks them; how many were acked.
pub async fn ten(queue: &dyn Queue, wait: Duration) -> usize {
    let request = Receive { max: 10, wait, lease: Duration::from_secs(30) };
    let received = queue.receive(request, &CancellationToken::new()).await.unwrap_or_default();
    let acks = received.into_iter().map(|delivery| Settlement::Ack(delivery.receipt)).collect();
    queue.settle(acks).await.iter().filter(|result| result.is_ok()).count()
}
