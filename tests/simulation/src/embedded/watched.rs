//! Queue of a process. Reports each call and its answer to the judge. Answers arrive with latency, and calls fail when the file
//! fails.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::calls::{Answered, Asked};
use super::super::contract::{UnderWay, answered, asked, delay, seconds};
use super::super::judge::Judge;
use super::super::keyed::name_of;
use super::super::site::Line;
use super::file::File;
use super::trouble::Trouble;

/// Queue of one process.
#[derive(Clone)]
pub struct Watched {
    pub line: Line,
    pub inner: Arc<dyn Queue>,
    pub judge: Arc<Judge>,
    pub file: Arc<File>,
    pub trouble: Arc<Trouble>,
    /// True after a receive has succeeded.
    pub has_received: Arc<AtomicBool>,
}

impl Watched {
    fn asks(&self, asked: Asked) -> UnderWay {
        self.file.look();
        UnderWay::begin(&self.line, &self.judge, asked)
    }

    /// Never returns after the process was killed, so that its calls have no effect.
    async fn lives(&self) {
        if self.line.is_dead() {
            pending().await
        }
    }

    /// Runs a call on these entries after a random latency, even if its caller no longer waits.
    async fn entries<T: Send + 'static>(
        &self,
        receipts: Vec<String>,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.trouble.may_lock();
        let (there, back, this) = (self.trouble.latency(), self.trouble.latency(), self.clone());
        let done = tokio::spawn(async move {
            sleep(there).await;
            this.lives().await;
            let spoilt = this.trouble.may_spoil(&receipts);
            let answer = call.await;
            drop(spoilt);
            this.file.look();
            answer
        });
        let answer = done.await;
        sleep(back).await;
        match answer {
            Ok(answer) if !self.line.is_dead() => answer,
            _ => pending().await,
        }
    }
}

#[async_trait]
impl Queue for Watched {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn is_ordered(&self) -> bool {
        self.inner.is_ordered()
    }

    fn origin(&self) -> Origin {
        self.inner.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        self.lives().await;
        let mut under_way = self.asks(Asked::Receive);
        self.trouble.may_lock();
        sleep(self.trouble.latency()).await;
        let received = tokio::select! {
            biased;
            () = self.line.death() => pending().await,
            received = self.inner.receive(request, stop) => received,
        };
        self.file.look();
        for delivery in received.iter().flatten() {
            let name = name_of(&delivery.message);
            self.file.identify(&delivery.message.id, &name);
            let until = delivery.leased_at + request.lease;
            self.judge.leased(self.line.life, delivery.receipt.as_str(), &name, delivery.attempt, until);
        }
        sleep(self.trouble.latency()).await;
        self.lives().await;
        let deliveries = received.map_err(|error| match error {
            // A refusal of the first receive would end the process, and its supervisor would restart it. The simulation has no
            // supervisor.
            QueueError::Refused(text) if !self.has_received.load(Ordering::Relaxed) => QueueError::Unavailable(text),
            error => error,
        })?;
        self.has_received.store(true, Ordering::Relaxed);
        let receipts: BTreeSet<_> = deliveries.iter().map(|one| one.receipt.as_str().to_owned()).collect();
        if let Some(first) = deliveries.first() {
            self.judge.received(self.line.life, &receipts, first.leased_at);
        }
        under_way.answer = Some(vec![Answered::Done]);
        Ok(deliveries)
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.lives().await;
        let receipts: Vec<_> = leases.iter().map(|lease| lease.as_str().to_owned()).collect();
        let asked = receipts.iter().map(|receipt| (receipt.clone(), seconds(by))).collect();
        let mut under_way = self.asks(Asked::Change(asked));
        let (this, leases, told) = (self.clone(), leases.to_vec(), receipts.clone());
        let extended = self.entries(receipts, async move {
            let extended = this.inner.extend(&leases, by).await;
            let done = told.iter().zip(&extended).filter(|(_, result)| result.is_ok());
            done.for_each(|(receipt, _)| this.judge.changed(receipt, Instant::now() + by));
            extended
        });
        let extended = extended.await;
        under_way.answer = Some(extended.iter().map(|result| answered(result.as_ref().err())).collect());
        extended
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.lives().await;
        let mut under_way: Vec<_> = batch.iter().map(|settlement| self.asks(asked(settlement))).collect();
        let receipts = batch.iter().map(|settlement| settlement.receipt().as_str().to_owned()).collect();
        let delays: Vec<_> = batch.iter().map(delay).collect();
        let this = self.clone();
        let settled = self.entries(receipts, async move {
            let settled = this.inner.settle(batch).await;
            for (delay, _) in delays.iter().zip(&settled).filter(|(_, result)| result.is_ok()) {
                if let Some((receipt, delay)) = delay {
                    this.judge.changed(receipt, Instant::now() + *delay);
                }
            }
            settled
        });
        let settled = settled.await;
        for (call, result) in under_way.iter_mut().zip(&settled) {
            call.answer = Some(vec![answered(result.as_ref().err().map(|unsettled| &unsettled.error))]);
        }
        settled
    }

    async fn rest(&self) {
        self.inner.rest().await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.inner.taken_back().await
    }
}
