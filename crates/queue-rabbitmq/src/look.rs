//! A queue for the commands that look through it, and move or remove messages.
//!
//! A consumer has the server send messages ahead, and each counts as delivered once it goes back. A command must not touch more
//! messages than it shows. So it asks for each message (`basic.get`). The server refuses that for a queue with a
//! single active consumer, which commands open as a consumer does.

mod leases;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled, no_queue,
};
use hostler_types::channel::Channel;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, ChannelFlowOptions};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Service;
use super::connection::in_time;
use super::envelope::Mail;
use super::fault::{is_locked, is_missing, queue_error};
use super::queue;
use leases::Leases;

/// Maximum number of messages that are received at once, and of acks until the next receive. A quorum queue keeps acks in the channel
/// while 32 of them are not yet stored (`quorum_commands_soft_limit`), and gives those up when the channel closes: their messages are
/// in the queue again. A receive waits until all acks before it are stored.
const BATCH: usize = 16;

/// Limits of the commands' receives: those of consumers, but for the batches, and for releases, which have no delay.
const LIMITS: Limits =
    Limits { receive_batch: BATCH, settle_batch: BATCH, max_release: Duration::ZERO, ..queue::LIMITS };

/// Maximum time for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of messages that are passed over because their time has not come. They stay out of the queue until the end.
const MOST_EARLY: usize = 256;

/// Interval at which an empty queue is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// A queue that is looked through.
pub(super) struct LookQueue {
    service: Arc<Service>,
    channel: Channel,
    /// Name of the queue on the server.
    queue: String,
    taken: Mutex<Taken>,
}

/// The messages that were taken from the server.
#[derive(Default)]
struct Taken {
    /// The channel. `None`: nothing was taken, or the last channel has ended.
    channel: Option<lapin::Channel>,
    leases: Leases,
    /// Number of messages on the channel that were passed over.
    early: usize,
}

impl LookQueue {
    pub(super) fn new(service: Arc<Service>, channel: Channel) -> Self {
        let queue = service.names.full(channel.queue());
        Self { service, channel, queue, taken: Mutex::default() }
    }

    /// Takes up to `max` messages. Returns those that may be delivered, and `true` if no more can be taken now.
    async fn pull(&self, taken: &mut Taken, max: usize, lease: Duration) -> Result<(Vec<Delivery>, bool), QueueError> {
        let max = wanted(max, taken.early);
        if max == 0 {
            return Ok((Vec::new(), true));
        }
        let leased_at = Instant::now();
        let channel = taken.channel(&self.service, leased_at + PATIENCE).await?;
        let got = in_time(leased_at + PATIENCE, get_all(&channel, &self.queue, max)).await;
        let got = got.map_err(|error| self.refused(&error)).inspect_err(|_| taken.end())?;
        let (now, is_ladder, count) =
            (SystemTime::now(), |exchange: &str| self.service.names.is_ladder(exchange), got.len());
        let mails = got.into_iter().map(|delivery| undated(Mail::read(delivery, is_ladder, false, now)));
        // The others go back when the channel ends, so that they do not come again before.
        let due = mails.filter(|mail| mail.not_before.is_none_or(|at| at <= now));
        let deliveries = due.map(|mail| {
            let receipt = taken.leases.begin(mail.tag, leased_at + lease);
            let attempt = mail.carried.saturating_add(mail.deliveries).saturating_add(1);
            Delivery { message: mail.message, receipt, attempt, leased_at, not_before: None, job: None }
        });
        let deliveries: Vec<_> = deliveries.collect();
        taken.early += count - deliveries.len();
        Ok((deliveries, count == 0))
    }

    fn refused(&self, error: &lapin::Error) -> QueueError {
        let queue = &self.queue;
        match error {
            error if is_missing(error) => no_queue(&self.channel),
            error if is_locked(error) => QueueError::Refused(format!(
                "the queue `{queue}` is ordered, and no consumer of this config says so: add the consumer, with `ordered = true`"
            )),
            error => queue_error(&format!("cannot receive from `{queue}`"), error),
        }
    }
}

impl Taken {
    async fn channel(&mut self, service: &Service, deadline: Instant) -> Result<lapin::Channel, QueueError> {
        if let Some(channel) = self.channel.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        self.end();
        let channel = service.consuming.channel(deadline).await?;
        Ok(self.channel.insert(channel).clone())
    }

    /// Ends the channel. The server takes back its messages.
    fn end(&mut self) {
        self.channel = None;
        self.early = 0;
        self.leases.end_all();
    }

    /// Returns a message to its queue. If that fails, the channel is lost, and the server takes the message back itself.
    async fn requeue(&self, tag: u64) {
        if let Some(channel) = &self.channel
            && let Err(error) = nack(channel, tag).await
        {
            tracing::debug!(%error, "cannot return a message");
        }
    }

    /// Settles a message. The server has not yet read it.
    async fn settle(&mut self, settlement: &Settlement) -> Result<(), LeaseError> {
        let refused = |what: &str| LeaseError::Refused(format!("a command cannot {what} a message of RabbitMQ"));
        match settlement {
            Settlement::DeadLetter { .. } => return Err(refused("dead-letter")),
            Settlement::Release(_, delay) | Settlement::GiveBack(_, delay) if !delay.is_zero() => {
                return Err(refused("delay"));
            }
            _ => {}
        }
        let tag = self.leases.settle(settlement.receipt(), Instant::now())?;
        let Some(channel) = &self.channel else { return Err(lost("the channel has ended")) };
        let sent = match settlement {
            Settlement::Ack(_) => channel.basic_ack(tag, BasicAckOptions::default()).await,
            _ => nack(channel, tag).await,
        };
        sent.map_err(|error| lost(&error.to_string()))
    }

    /// Waits until the server has read everything that was sent on the channel.
    async fn flush(&mut self) -> Result<(), LeaseError> {
        let Some(channel) = &self.channel else { return Err(lost("the channel has ended")) };
        let asked = channel.channel_flow(ChannelFlowOptions { active: true });
        let answer = in_time(Instant::now() + PATIENCE, asked).await.map(drop);
        answer.map_err(|error| lost(&error.to_string())).inspect_err(|_| self.end())
    }
}

/// Returns the message with the time zero if its producer gave none: it then counts as received. Commands leave out what was sent after
/// they began.
fn undated(mut mail: Mail) -> Mail {
    if !mail.is_dated {
        Arc::make_mut(&mut mail.message).enqueued_at = UNIX_EPOCH;
    }
    mail
}

/// Returns the number of messages to take if a command wants `max`. `early`: number of messages that were passed over.
fn wanted(max: usize, early: usize) -> usize {
    max.min(MOST_EARLY.saturating_sub(early))
}

/// Asks for up to `max` messages, for as many as the server has. Returns them in their order.
async fn get_all(channel: &lapin::Channel, queue: &str, max: usize) -> lapin::Result<Vec<lapin::message::Delivery>> {
    let get = || {
        let (channel, queue) = (channel.clone(), queue.to_owned());
        async move { channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await }
    };
    let Some(first) = get().await? else { return Ok(Vec::new()) };
    let more = usize::try_from(first.message_count).unwrap_or(usize::MAX).min(max.saturating_sub(1));
    // At the same time, as each answer takes a while.
    let mut getting = JoinSet::new();
    (0..more).for_each(|_| drop(getting.spawn(get())));
    let mut got = vec![first.delivery];
    while let Some(next) = getting.join_next().await {
        got.extend(next.map_err(io::Error::other)??.map(|next| next.delivery));
    }
    got.sort_unstable_by_key(|delivery| delivery.delivery_tag);
    Ok(got)
}

async fn nack(channel: &lapin::Channel, tag: u64) -> lapin::Result<()> {
    channel.basic_nack(tag, BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await
}

fn lost(why: &str) -> LeaseError {
    LeaseError::Lost(format!("RabbitMQ takes the message back: {why}"))
}

#[async_trait]
impl Queue for LookQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn ids_repeat(&self) -> bool {
        true
    }

    fn origin(&self) -> Origin {
        self.service.origin(&self.channel)
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let deadline = Instant::now() + request.wait.min(LIMITS.max_wait);
        let max = request.max.clamp(1, LIMITS.receive_batch);
        let mut deliveries = Vec::new();
        loop {
            let mut taken = self.taken.lock().await;
            // Only here: acks after many returns would wait in the channel until these are stored.
            for tag in taken.leases.ended(Instant::now()) {
                taken.requeue(tag).await;
            }
            while deliveries.len() < max && !stop.is_cancelled() {
                let (found, is_all) = self.pull(&mut taken, max - deliveries.len(), request.lease).await?;
                deliveries.extend(found);
                if is_all {
                    break;
                }
            }
            drop(taken);
            let now = Instant::now();
            if !deliveries.is_empty() || now >= deadline || stop.is_cancelled() {
                return Ok(deliveries);
            }
            tokio::select! {
                () = sleep_until(deadline.min(now + AGAIN)) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let (mut taken, now) = (self.taken.lock().await, Instant::now());
        leases.iter().map(|lease| taken.leases.extend(lease, now + by, now)).collect()
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let mut taken = self.taken.lock().await;
        let mut results = Vec::new();
        for settlement in &batch {
            results.push(taken.settle(settlement).await);
        }
        if results.iter().any(Result::is_ok)
            && let Err(error) = taken.flush().await
        {
            results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(error.clone()));
        }
        let unsettled = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(results).map(unsettled).collect()
    }

    async fn rest(&self) {
        self.taken.lock().await.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_whose_time_has_not_come_are_passed_over_up_to_a_limit() {
        let (mut early, mut looks) = (0, 0);
        // A queue without end, of which nothing is due.
        while wanted(64, early) > 0 {
            early += wanted(64, early);
            looks += 1;
        }
        assert_eq!((early, looks), (MOST_EARLY, MOST_EARLY / 64));
        assert_eq!(wanted(3, MOST_EARLY - 1), 1);
    }
}
