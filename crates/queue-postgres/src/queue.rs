//! An opened queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Report, Settlement, Unsettled,
};
use hostler_types::channel::Channel;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::claim::{Claimed, claim};
use super::commit;
use super::faults::{no_queue, to_lease_error};
use super::service::Service;
use super::settle::{self, Show, Source};
use super::ticket::{Ticket, lost};

/// Limits of this driver. Settlements share a transaction, whose flush to the disk takes longer than the statements. The maximum wait and
/// the maximum lease are those of SQS, which also suit this driver.
const LIMITS: Limits = Limits {
    receive_batch: 32,
    settle_batch: 128,
    settle_linger: Duration::from_millis(5),
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 4,
    max_release: Duration::from_secs(12 * 60 * 60),
};

/// First and longest pause between two looks at an empty queue.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Shortest pause, for a message that is about to become visible.
const SHORTEST: Duration = Duration::from_millis(5);

pub(super) struct PostgresQueue {
    service: Arc<Service>,
    channel: Channel,
    source: Source,
}

impl PostgresQueue {
    pub(super) fn new(service: Arc<Service>, channel: Channel, source: Source) -> Self {
        Self { service, channel, source }
    }

    /// Takes messages that are visible now. Those that were received too often, or cannot be read, move to the dead-letter queue. There may be
    /// many of them, so a stop ends this, and so does the longest wait.
    async fn take(&self, request: Receive, stop: &CancellationToken) -> Result<Claimed, QueueError> {
        let begun = Instant::now();
        loop {
            let mut client = self.service.run(self.service.database.client()).await?;
            let claimed = self.service.run(claim(&client, &self.source.queue, request)).await?;
            let Claimed::Some(all, unreadable) = claimed else { return Ok(claimed) };
            let most = self.source.dead_letters.as_ref().map_or(u32::MAX, |(_, most)| *most);
            let (good, worn_out): (Vec<_>, Vec<_>) = all.into_iter().partition(|delivery| delivery.attempt <= most);
            for delivery in &worn_out {
                let Ok(ticket) = Ticket::parse(delivery.receipt.as_str()) else { continue };
                let attempts = delivery.attempt.saturating_sub(1);
                let reason = format!("received {attempts} times without being settled");
                self.bury(&mut client, ticket, &reason, Some(attempts)).await;
            }
            for (ticket, reason) in &unreadable {
                self.bury(&mut client, *ticket, reason, None).await;
            }
            if !good.is_empty() {
                return Ok(Claimed::Some(good, Vec::new()));
            }
            if stop.is_cancelled() || begun.elapsed() >= LIMITS.max_wait {
                return Ok(Claimed::Nothing(None));
            }
        }
    }

    /// Moves a message that is not to be handed out. If that fails, its lease hides it for now.
    async fn bury(&self, client: &mut hostler_postgres::Client, ticket: Ticket, reason: &str, attempts: Option<u32>) {
        let buried = settle::dead_letter(&self.service, client, &self.source, ticket, reason, attempts).await;
        if let Err(error) = buried {
            warn!(channel = %self.channel, %error, reason, "cannot dead-letter a message; it stays in the queue");
        }
    }

    /// Settles those of `all` that `pick` returns something for, in one call. Writes the results.
    async fn together<T>(
        &self,
        picked: Vec<(usize, Ticket, T)>,
        results: &mut [Result<(), LeaseError>],
        call: impl AsyncFnOnce(Vec<(Ticket, T)>) -> Result<Vec<Ticket>, QueueError>,
    ) {
        if picked.is_empty() {
            return;
        }
        let places: Vec<_> = picked.iter().map(|(place, ticket, _)| (*place, *ticket)).collect();
        let done = call(picked.into_iter().map(|(_, ticket, with)| (ticket, with)).collect()).await;
        for (place, ticket) in places {
            results[place] = match &done {
                Ok(done) if done.contains(&ticket) => Ok(()),
                Ok(_) => Err(lost()),
                Err(error) => Err(to_lease_error(error)),
            };
        }
    }
}

#[async_trait]
impl Queue for PostgresQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        self.source.ordered
    }

    fn origin(&self) -> Origin {
        self.service.origin(&self.channel.alone())
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        self.service.listen();
        let request = Receive { max: request.max.clamp(1, LIMITS.receive_batch), ..request };
        let deadline = Instant::now() + request.wait.min(LIMITS.max_wait);
        let bell = self.service.wakes.bell(&self.source.queue);
        let mut pause = PAUSES.0;
        loop {
            let mut rung = std::pin::pin!(bell.notified());
            // From here on, a ring is not missed.
            rung.as_mut().enable();
            let due = match self.take(request, stop).await? {
                Claimed::Some(deliveries, _) => return Ok(deliveries),
                Claimed::NoQueue => return Err(no_queue(&self.source.queue)),
                Claimed::Nothing(due) => due,
            };
            let now = Instant::now();
            if now >= deadline || stop.is_cancelled() {
                return Ok(Vec::new());
            }
            // A message that is due already is locked by others, perhaps for long.
            let due = due.filter(|due| !due.is_zero()).map_or(pause, |due| due.max(SHORTEST));
            let wait = pause.min(due).min(deadline - now);
            pause = (pause * 2).min(PAUSES.1);
            tokio::select! {
                () = stop.cancelled() => return Ok(Vec::new()),
                () = rung => pause = PAUSES.0,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let tickets: Vec<_> = leases.iter().map(|lease| Ticket::parse(lease.as_str())).collect();
        let mut results: Vec<_> =
            tickets.iter().map(|ticket| ticket.as_ref().map(drop).map_err(Clone::clone)).collect();
        let valid =
            tickets.into_iter().enumerate().filter_map(|(place, ticket)| Some((place, ticket.ok()?, ()))).collect();
        self.together(valid, &mut results, async |all| {
            let show = |(ticket, ())| Show { ticket, after: by, keep: true, uncount: false };
            self.show(all.into_iter().map(show).collect()).await
        })
        .await;
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let mut results = Vec::new();
        let (mut acks, mut commits, mut shows, mut dead) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (place, settlement) in batch.iter().enumerate() {
            let ticket = Ticket::parse(settlement.receipt().as_str());
            results.push(ticket.as_ref().map(drop).map_err(Clone::clone));
            let Ok(ticket) = ticket else { continue };
            let show = |after: &Duration, uncount| Show { ticket, after: *after, keep: false, uncount };
            match settlement {
                Settlement::Ack(receipt) => match receipt.report() {
                    Some(Report::Commit(commit)) => commits.push((place, (ticket, &**commit))),
                    _ => acks.push((place, ticket, ())),
                },
                Settlement::Release(_, delay) => shows.push((place, ticket, show(delay, false))),
                Settlement::GiveBack(_, delay) => shows.push((place, ticket, show(delay, true))),
                Settlement::DeadLetter { reason, .. } => dead.push((place, ticket, reason)),
            }
        }
        self.together(acks, &mut results, async |all| {
            let tickets: Vec<_> = all.into_iter().map(|(ticket, ())| ticket).collect();
            let mut client = self.service.run(self.service.database.client()).await?;
            self.service.run(settle::ack(&mut client, self.source.ordered, &tickets)).await
        })
        .await;
        let (places, commits): (Vec<usize>, Vec<_>) = commits.into_iter().unzip();
        for (place, result) in places.into_iter().zip(commit::commit(&self.service, &commits).await) {
            results[place] = result;
        }
        let at_once = shows.iter().any(|(_, _, show)| show.after.is_zero());
        self.together(shows, &mut results, async |all| {
            self.show(all.into_iter().map(|(_, show)| show).collect()).await
        })
        .await;
        if self.source.ordered || at_once {
            self.service.wakes.ring(&self.source.queue);
        }
        for (place, ticket, reason) in dead {
            results[place] = match self.service.run(self.service.database.client()).await {
                Ok(mut client) => {
                    settle::dead_letter(&self.service, &mut client, &self.source, ticket, reason, None).await
                }
                Err(error) => Err(to_lease_error(&error)),
            };
        }
        let unsettled =
            |(settlement, result): (_, Result<(), LeaseError>)| result.map_err(|error| Unsettled { settlement, error });
        batch.into_iter().zip(results).map(unsettled).collect()
    }
}

impl PostgresQueue {
    async fn show(&self, all: Vec<Show>) -> Result<Vec<Ticket>, QueueError> {
        let client = self.service.run(self.service.database.client()).await?;
        self.service.run(settle::show(&client, &all)).await
    }
}
