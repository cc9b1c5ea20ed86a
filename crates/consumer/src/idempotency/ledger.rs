//! Wraps the queue: extends runs with the leases of their messages, and records how they end before the message is settled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{MARGIN, Shared};
use hostler_queue::{
    Delivery, Hold, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Report, RunEnd, Settlement,
    Unsettled,
};
use hostler_types::message::Message;

/// Maximum time for which the end of a failed run holds up the settlement of its message.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// Maximum time for which the store holds up a heartbeat, which may be that of other messages too.
const EXTEND_PATIENCE: Duration = Duration::from_secs(5);

/// A queue whose messages have runs.
pub(super) struct Ledger {
    pub(super) inner: Arc<dyn Queue>,
    pub(super) shared: Arc<Shared>,
}

#[async_trait]
impl Queue for Ledger {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn is_ordered(&self) -> bool {
        self.inner.is_ordered()
    }

    fn ids_repeat(&self) -> bool {
        self.inner.ids_repeat()
    }

    fn decides_retries(&self) -> bool {
        self.inner.decides_retries()
    }

    fn duration_of(&self, lease: &LeaseHandle, asked: Duration) -> Duration {
        self.inner.duration_of(lease, asked)
    }

    fn origin(&self) -> Origin {
        self.inner.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        self.inner.receive(request, stop).await
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let held =
            leases.iter().enumerate().filter_map(|(place, lease)| Some((place, self.shared.run(lease)?.extends()?)));
        let (places, holds): (Vec<usize>, Vec<Hold>) = held.unzip();
        if holds.is_empty() {
            return self.inner.extend(leases, by).await;
        }
        let records = &self.shared.settings.records;
        let extending = timeout((by / 6).min(EXTEND_PATIENCE), records.extend(&holds, by + MARGIN));
        let (mut results, extended) = tokio::join!(self.inner.extend(leases, by), extending);
        let silent = || Err(LeaseError::Retry("the store of idempotency records did not answer".to_owned()));
        let extended = extended.unwrap_or_else(|_| holds.iter().map(|_| silent()).collect());
        // A handler whose run is not extended may have to stop, even if its message is.
        for (place, extended) in places.into_iter().zip(extended) {
            if let (Some(result @ Ok(())), Err(error)) = (results.get_mut(place), extended) {
                *result = Err(error);
            }
        }
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.end(&batch).await;
        let attached = batch.into_iter().map(|settlement| self.attach(settlement)).collect();
        self.inner.settle(attached).await
    }

    async fn rest(&self) {
        self.inner.rest().await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.inner.taken_back().await
    }

    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        self.inner.load(message).await
    }
}

impl Ledger {
    /// Ends the runs of messages that are not acked. If that fails, the records lapse with their leases.
    async fn end(&self, batch: &[Settlement]) {
        let failed = batch.iter().filter(|settlement| !matches!(settlement, Settlement::Ack(_)));
        let ends: Vec<(Hold, RunEnd)> =
            failed.filter_map(|settlement| self.shared.run(&settlement.receipt().lease())?.end()).collect();
        if ends.is_empty() {
            return;
        }
        let ended = timeout(END_PATIENCE, self.shared.settings.records.end(&ends)).await;
        let error = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let consumer = &*self.shared.consumer;
        tracing::warn!(
            consumer,
            error,
            "the end of runs was not recorded: their keys are free when their leases have ended"
        );
    }

    /// Gives an ack what the queue records and sends in its transaction.
    fn attach(&self, settlement: Settlement) -> Settlement {
        let commit = |lease: &LeaseHandle| self.shared.run(lease)?.commit(self.shared.settings.ttl);
        match settlement {
            Settlement::Ack(receipt) if self.shared.settings.is_transactional => {
                Settlement::Ack(match commit(&receipt.lease()) {
                    Some(commit) => receipt.with_report(Report::Commit(commit)),
                    None => receipt,
                })
            }
            other => other,
        }
    }
}
