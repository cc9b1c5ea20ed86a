//! Settles messages and extends leases in batches, and loads bodies, in parallel calls. Retries settlements.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use hostler_queue::{LeaseError, LeaseHandle, Queue, Settlement};
use hostler_types::Backoff;
use hostler_types::message::Message;

/// Maximum number of parallel calls.
const PARALLEL: usize = 16;

/// Maximum number of attempts at a call that fails temporarily.
pub(in super::super) const TRIES: u32 = 5;

/// Pauses between attempts.
const REST: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_millis(3200));

/// Waits before the next attempt. `tries`: number of attempts so far.
pub(in super::super) async fn back_off(tries: u32) {
    sleep(REST.ceiling(tries.saturating_sub(1))).await;
}

/// Carries out settlements. Retries temporary failures. Returns each result with the label of its settlement, in any order.
pub(in super::super) async fn settle<L: Send + 'static>(
    queue: &Arc<dyn Queue>,
    settlements: Vec<(L, Settlement)>,
) -> Vec<(L, Result<(), LeaseError>)> {
    in_batches(queue, settlements, settle_batch).await
}

async fn settle_batch<L: Send>(
    queue: Arc<dyn Queue>,
    mut batch: Vec<(L, Settlement)>,
) -> Vec<(L, Result<(), LeaseError>)> {
    let mut answers = Vec::new();
    for tries in 1.. {
        let (labels, settlements): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        for (label, result) in labels.into_iter().zip(queue.settle(settlements).await) {
            match result {
                Ok(()) => answers.push((label, Ok(()))),
                Err(unsettled) if unsettled.error.is_final() || tries == TRIES => {
                    answers.push((label, Err(unsettled.error)));
                }
                Err(unsettled) => batch.push((label, unsettled.settlement)),
            }
        }
        if batch.is_empty() {
            break;
        }
        back_off(tries).await;
    }
    answers
}

/// Extends leases, so that they end `by` from now. Returns the labels of the leases that were extended.
pub(in super::super) async fn extend<L: Send + 'static>(
    queue: &Arc<dyn Queue>,
    leases: Vec<(L, LeaseHandle)>,
    by: Duration,
) -> Vec<L> {
    in_batches(queue, leases, move |queue, batch| async move {
        let (labels, leases): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let results = queue.extend(&leases, by).await;
        labels.into_iter().zip(results).filter_map(|(label, result)| result.is_ok().then_some(label)).collect()
    })
    .await
}

/// Loads the bodies of messages in parallel. `within`: time limit for each body. Returns the results by message id.
pub(in super::super) async fn load(
    queue: &Arc<dyn Queue>,
    messages: Vec<Arc<Message>>,
    within: Duration,
) -> HashMap<String, Result<Arc<Message>, String>> {
    let mut loads = JoinSet::new();
    for message in messages {
        let queue = Arc::clone(queue);
        loads.spawn(async move {
            let loaded = timeout(within, queue.load(&message)).await;
            (message.id.clone(), loaded.unwrap_or_else(|_| Err(format!("its body was not here after {within:?}"))))
        });
    }
    loads.join_all().await.into_iter().collect()
}

/// Splits `items` into batches of the size that the queue accepts, and makes one call for each batch. Up to
/// [`PARALLEL`] calls run in parallel.
async fn in_batches<T, R, F>(
    queue: &Arc<dyn Queue>,
    items: Vec<T>,
    call: impl Fn(Arc<dyn Queue>, Vec<T>) -> F,
) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = Vec<R>> + Send + 'static,
{
    let size = queue.limits().settle_batch.max(1);
    let (mut items, mut calls, mut results) = (items.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while calls.len() < PARALLEL {
            let batch: Vec<T> = items.by_ref().take(size).collect();
            if batch.is_empty() {
                break;
            }
            calls.spawn(call(Arc::clone(queue), batch));
        }
        match calls.join_next().await {
            Some(answer) => results.extend(answer.into_iter().flatten()),
            None => return results,
        }
    }
}
