//! Records the success of a run in a store beside the queue, and sends what waited for it. Meanwhile, heartbeats go on.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::run::Run;
use hostler_handler::{Limit, Outcome};
use hostler_queue::{LeaseError, QueueError, SendError};
use hostler_types::Backoff;

/// Maximum time for which the store or a channel that fails is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time of one call to the store.
const CALL: Duration = Duration::from_secs(10);

/// Delays between tries.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The reason why a success was not recorded, or its messages were not sent.
enum Fault {
    /// Another try may succeed.
    Retry(Limit, String),
    /// The outcome of the message.
    Final(Outcome),
}

/// Records a success, and sends its messages. If the queue's acks do that, only checks that there is a success.
///
/// # Errors
/// The outcome of the message, which must not be acked.
pub(super) async fn record(shared: Arc<Shared>, run: Arc<Run>) -> Result<(), Outcome> {
    if !run.has_succeeded() {
        let text = "its success cannot be recorded, because its run had not begun, or has failed";
        return Err(Outcome::Failed(text.to_owned()));
    }
    if shared.settings.is_transactional {
        return Ok(());
    }
    let begun = Instant::now();
    for tries in 0.. {
        match once(&shared, &run).await {
            Ok(()) => return Ok(()),
            Err(Fault::Final(outcome)) => return Err(outcome),
            Err(Fault::Retry(limit, why)) if begun.elapsed() >= PATIENCE => return Err(Outcome::HostLimit(limit, why)),
            Err(Fault::Retry(..)) => sleep(RETRY.ceiling(tries)).await,
        }
    }
    Ok(())
}

async fn once(shared: &Shared, run: &Run) -> Result<(), Fault> {
    finish(shared, run).await?;
    send(shared, run).await?;
    if let Some(hold) = run.all_sent() {
        let told = timeout(CALL, shared.settings.records.sent(&[hold])).await.unwrap_or_else(|_| Err(silent()));
        if let Err(error) = told {
            let consumer = &*shared.consumer;
            tracing::warn!(consumer, %error, "messages were sent, which was not recorded: a duplicate sends them again");
        }
    }
    Ok(())
}

async fn finish(shared: &Shared, run: &Run) -> Result<(), Fault> {
    let Some(finish) = run.finish(shared.settings.ttl) else { return Ok(()) };
    let fault = |error: &dyn Display| Fault::Retry(Limit::Records, error.to_string());
    let finished = timeout(CALL, shared.settings.records.finish(vec![finish])).await;
    let mut results = finished.map_err(|_| fault(&silent()))?;
    match results.pop() {
        Some(Ok(())) => {
            run.recorded();
            Ok(())
        }
        Some(Err(LeaseError::Lost(_))) => {
            Err(Fault::Final(Outcome::HostLimit(Limit::Key, "another run has taken over its key".to_owned())))
        }
        Some(Err(error)) => Err(fault(&error)),
        None => Err(fault(&silent())),
    }
}

fn silent() -> QueueError {
    QueueError::Unavailable("the store of idempotency records did not answer".to_owned())
}

/// Sends what waited for the success, in order.
async fn send(shared: &Shared, run: &Run) -> Result<(), Fault> {
    while let Some((channel, batch)) = run.next() {
        let results = shared.settings.producer.send_all_deduped_where_possible(&channel, batch).await;
        run.advance(results.iter().take_while(|result| result.is_ok()).count());
        let text = |error: &dyn Display| format!("its message to `{channel}` was not sent: {error}");
        match results.into_iter().find_map(Result::err) {
            Some(SendError::Invalid(error)) => return Err(Fault::Final(Outcome::Failed(text(&error)))),
            Some(SendError::Queue(error)) => return Err(Fault::Retry(Limit::Records, text(&error))),
            None => {}
        }
    }
    Ok(())
}
