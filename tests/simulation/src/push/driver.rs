//! Driver of a process for the push broker. Reports each call and its answer to the judge. Answers arrive with latency.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, Depth, LeaseError, LeaseHandle, Limits, Origin, Provisioner, Queue,
    QueueError, Receipt, Receive, SendError, Sent, Settlement, Unsettled,
};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::calls::{Answered, Asked};
use super::super::contract::{UnderWay, answered, asked, seconds};
use super::super::site::Line;
use super::service::Service;

/// Driver of one process.
#[derive(Clone)]
pub struct Driver {
    pub line: Line,
    pub service: Arc<Service>,
}

/// Queue of one process.
#[derive(Clone)]
pub struct Client {
    pub driver: Driver,
    pub ordered: bool,
}

fn unavailable(why: &str) -> QueueError {
    QueueError::Unavailable(why.to_owned())
}

impl Driver {
    /// Never returns after the process was killed, so that its calls have no effect.
    async fn lives(&self) {
        if self.line.is_dead() {
            pending().await
        }
    }

    async fn takes_time(&self) {
        sleep(self.service.latency()).await;
        self.lives().await;
    }

    fn asks(&self, asked: Asked) -> UnderWay {
        UnderWay::begin(&self.line, &self.service.judge, asked)
    }

    /// Waits for messages. Returns none after a stop.
    async fn wait(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let (service, life, deadline) = (&self.service, self.line.life, Instant::now() + request.wait);
        self.takes_time().await;
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        if let Some(down_until) = service.down_until() {
            let waiting = sleep_until(down_until.min(deadline));
            return match stop.run_until_cancelled(waiting).await {
                Some(()) => Err(unavailable("there is no connection")),
                None => Ok(Vec::new()),
            };
        }
        if service.is_struck(service.scenario.rates.refusals) {
            return Err(unavailable("the service is busy"));
        }
        let generation = service.listen(life, request.max);
        loop {
            let changed = service.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (taken, next) =
                service.take(life, generation, request).map_err(|()| unavailable("the connection is lost"))?;
            if !taken.is_empty() || Instant::now() >= deadline || stop.is_cancelled() {
                return Ok(taken);
            }
            tokio::select! {
                biased;
                () = self.line.death() => pending().await,
                () = stop.cancelled() => return Ok(Vec::new()),
                () = changed => {}
                () = sleep_until(next.map_or(deadline, |next| next.min(deadline))) => {}
            }
        }
    }

    /// Runs a call on these entries, even if its caller no longer waits. Before it, the connection may be lost, or some entries or
    /// all may fail for the moment.
    async fn each<E: Send + 'static, T: Send + 'static>(
        &self,
        entries: Vec<E>,
        act: impl Fn(&Service, &E) -> Result<T, LeaseError> + Send + 'static,
    ) -> Vec<(E, Result<T, LeaseError>)> {
        let (service, rates) = (Arc::clone(&self.service), self.service.scenario.rates);
        let this = self.clone();
        let done = tokio::spawn(async move {
            this.takes_time().await;
            if service.is_struck(rates.lost_requests / 4.0) {
                service.cut();
            }
            let busy = || LeaseError::Retry("the service is busy".to_owned());
            let all = service.is_struck(rates.refusals);
            let one = service.is_struck(rates.entries).then(|| service.pick(entries.len()));
            let acted = entries.into_iter().enumerate().map(|(index, entry)| {
                let result = if all || one == Some(index) { Err(busy()) } else { act(&service, &entry) };
                (entry, result)
            });
            acted.collect::<Vec<_>>()
        });
        let answer = done.await;
        self.takes_time().await;
        match answer {
            Ok(answer) => answer,
            Err(_) => pending().await,
        }
    }
}

#[async_trait]
impl Queue for Client {
    fn limits(&self) -> Limits {
        Limits {
            receive_batch: 10,
            settle_batch: 10,
            settle_linger: Duration::ZERO,
            max_wait: Duration::from_secs(20),
            max_lease: Duration::from_secs(12 * 3600),
            parallel_receives: 3,
            max_release: self.driver.service.scenario.max_release,
        }
    }

    fn is_ordered(&self) -> bool {
        self.ordered
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let Driver { line, service } = &self.driver;
        self.driver.lives().await;
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let mut under_way = self.driver.asks(Asked::Receive);
        let open = service.opens(line.life, stop);
        let mut taken = self.driver.wait(request, stop).await?;
        if !taken.is_empty() && service.is_struck(service.scenario.rates.lost_answers) {
            // The loss is known before the messages are.
            service.cut();
        }
        self.driver.takes_time().await;
        drop(open);
        // A message that is due later than a release can last comes again and again until then.
        let turn = Instant::now() + service.scenario.max_release;
        taken.iter_mut().for_each(|one| one.not_before = one.not_before.map(|at| at.min(turn)));
        let receipts: BTreeSet<_> = taken.iter().map(|one| one.receipt.as_str().to_owned()).collect();
        if let Some(first) = taken.first() {
            service.judge.received(line.life, &receipts, first.leased_at);
        }
        under_way.answer = Some(vec![Answered::Done]);
        Ok(taken)
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.driver.lives().await;
        let receipts: Vec<_> = leases.iter().map(|lease| lease.as_str().to_owned()).collect();
        let asked = receipts.iter().map(|receipt| (receipt.clone(), seconds(by))).collect();
        let mut under_way = self.driver.asks(Asked::Change(asked));
        let extended = self.driver.each(receipts, move |service, receipt| service.extend(receipt, by)).await;
        let extended: Vec<_> = extended.into_iter().map(|(_, result)| result).collect();
        under_way.answer = Some(extended.iter().map(|result| answered(result.as_ref().err())).collect());
        extended
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.driver.lives().await;
        let mut under_way: Vec<_> = batch.iter().map(|settlement| self.driver.asks(asked(settlement))).collect();
        let settle = |service: &Service, settlement: &Settlement| {
            let breaks = service.is_struck(service.scenario.rates.lost_answers / 4.0);
            service.settle(settlement, breaks)
        };
        let settled = self.driver.each(batch, settle).await;
        for (call, (_, result)) in under_way.iter_mut().zip(&settled) {
            call.answer = Some(vec![answered(result.as_ref().err())]);
        }
        let result = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        settled.into_iter().map(result).collect()
    }

    async fn rest(&self) {
        let Driver { line, service } = &self.driver;
        self.driver.lives().await;
        service.rest_begins(line.life);
        self.driver.takes_time().await;
        service.rest_ends(line.life);
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        let Driver { line, service } = &self.driver;
        loop {
            self.driver.lives().await;
            let changed = service.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let lost = service.lost(line.life);
            if !lost.is_empty() {
                return lost.into_iter().map(|receipt| Receipt::new(receipt).lease()).collect();
            }
            changed.await;
        }
    }
}

#[async_trait]
impl Broker for Driver {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        Ok(Arc::new(Client { driver: self.clone(), ordered: spec.ordered }))
    }

    async fn send(&self, _: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        self.lives().await;
        self.takes_time().await;
        let send = |message: Outgoing| {
            if self.service.is_deaf() {
                return Err(SendError::Queue(unavailable("the service accepts no messages")));
            }
            self.service.judge.replied(&String::from_utf8_lossy(&message.body));
            Ok(Sent { id: "reply".to_owned(), queues: Some(1) })
        };
        let sent = batch.into_iter().map(send).collect();
        self.takes_time().await;
        sent
    }

    fn origin(&self, _: &Channel) -> Origin {
        Origin::default()
    }
}

/// Refuses what no consumer asks for.
fn refused() -> QueueError {
    QueueError::Refused("the model has no operators".to_owned())
}

#[async_trait]
impl Admin for Driver {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        Err(refused())
    }

    async fn each_depth(&self, _: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        Err(refused())
    }

    async fn open_stored(&self, _: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        Err(refused())
    }
}

impl Provisioner for Driver {}
