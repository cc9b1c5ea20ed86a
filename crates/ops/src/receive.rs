//! Receives messages for a person or a script. Hands out each message, and then removes it or gives it back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::requeue::calls::{TRIES, back_off, extend, load, settle};
use super::requeue::set_aside::SetAside;
use super::requeue::{LEASE, MAX_HELD};
use crate::identity::Identities;
use hostler_queue::{Admin, Delivery, LeaseHandle, Queue, QueueError, Receipt, Receive, Settlement};
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// Maximum wait of one receive call. On SQS, a call that is waiting cannot be interrupted by a signal.
const CALL: Duration = Duration::from_secs(5);

/// Maximum time to wait for further messages once a message has been received. On SQS, this becomes one second, the
/// shortest wait that SQS supports. SQS queries all of its servers only if a call waits.
const MORE: Duration = Duration::from_millis(100);

/// A recipient of received messages, for example standard output.
#[async_trait]
pub trait Outlet: Send {
    /// Hands out one message with its body. `attempt`: number of times that the message has been received. `Ok` means
    /// that the message has arrived and may be removed. If the caller drops the future, the message counts as not
    /// handed out.
    ///
    /// # Errors
    /// The message did not arrive, and the outlet accepts no further messages.
    async fn put(&mut self, message: &Arc<Message>, attempt: u32) -> io::Result<()>;
}

/// A request for messages from one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Queue from which messages are received.
    pub from: Channel,
    /// Set to remove messages once they have been handed out. If unset, all messages are given back at the end.
    pub ack: bool,
    /// Maximum number of messages to hand out. If messages are given back, also limited to [`MAX_HELD`].
    pub max: u64,
    /// Maximum wait for the first message.
    pub wait: Duration,
}

/// Counts of received messages, and the messages that caused problems.
#[derive(Debug, Default)]
pub struct ReceiveReport {
    /// Number of messages handed out.
    pub handed_out: u64,
    /// Number of messages that were handed out and then removed from the queue.
    pub removed: u64,
    /// Messages that were handed out but could not be removed. Each entry has the id and the reason.
    pub unremoved: Vec<(String, String)>,
    /// Number of messages given back, including messages that were handed out.
    pub given_back: u64,
    /// Messages that were not handed out because their bodies could not be loaded. Each entry has the id and the
    /// reason.
    pub unread: Vec<(String, String)>,
}

/// Reason why a request ended.
#[derive(Debug)]
pub enum ReceiveEnd {
    /// The maximum is reached, or no more messages can be received.
    Done,
    /// The request was stopped.
    Stopped,
    /// A message could not be handed out.
    Unwritten(io::Error),
    /// The queue failed.
    Broken(QueueError),
}

/// Receives messages and hands them out one by one through `outlet`.
///
/// With [`ReceiveRequest::ack`], each batch is removed only after all its messages were handed out. Therefore, no
/// message is lost if the process ends at any point. Without `ack`, messages remain leased until the end and are then
/// given back. If `stop` is cancelled, the message that is being handed out counts as not handed out and is given back.
///
/// # Errors
/// [`QueueError`]: the queue cannot be opened. Later errors are in [`ReceiveEnd`].
pub async fn receive(
    broker: &dyn Admin,
    request: ReceiveRequest,
    stop: &CancellationToken,
    outlet: &mut dyn Outlet,
) -> Result<(ReceiveReport, ReceiveEnd), QueueError> {
    let queue = broker.open_stored(&request.from).await?;
    let max = if request.ack { request.max } else { request.max.min(MAX_HELD as u64) };
    let request = ReceiveRequest { max, ..request };
    let mut run = Run {
        identities: Identities::new(&*queue),
        queue,
        request,
        stop,
        outlet,
        held: SetAside::default(),
        extended_at: Instant::now(),
        unremoved: BTreeMap::new(),
        received: ReceiveReport::default(),
    };
    let end = run.take().await;
    run.give_back().await;
    run.received.unremoved.extend(run.unremoved);
    Ok((run.received, end))
}

struct Run<'a> {
    queue: Arc<dyn Queue>,
    request: ReceiveRequest,
    stop: &'a CancellationToken,
    outlet: &'a mut dyn Outlet,
    identities: Identities,
    /// Messages to give back at the end. If the lease of such a message ends, it may be received again, but it is not handed
    /// out twice.
    held: SetAside,
    /// Time at which all leases were extended last.
    extended_at: Instant,
    /// Messages that were handed out but could not be removed, by id, with the reasons. If such a message is received again, it
    /// is removed and not handed out. Empty if ids repeat: the message may have been removed after all, and an equal one
    /// must be handed out.
    unremoved: BTreeMap<String, String>,
    received: ReceiveReport,
}

impl Run<'_> {
    async fn take(&mut self) -> ReceiveEnd {
        let began = Instant::now();
        loop {
            if self.stop.is_cancelled() {
                return ReceiveEnd::Stopped;
            }
            let left = self.request.max.saturating_sub(self.received.handed_out);
            if left == 0 {
                return ReceiveEnd::Done;
            }
            let max = usize::try_from(left).unwrap_or(usize::MAX).min(self.queue.limits().receive_batch);
            let got_some = self.received.handed_out > 0;
            let patience = self.request.wait.saturating_sub(began.elapsed());
            if self.extended_at.elapsed() >= LEASE / 4 {
                extend_all(&self.queue, &mut self.held, Vec::new()).await;
                self.extended_at = Instant::now();
            }
            let wait = if got_some { MORE.min(self.request.wait) } else { patience.min(CALL) };
            match self.receive(max, wait).await {
                Err(error) => return ReceiveEnd::Broken(error),
                Ok(batch) if batch.is_empty() && (got_some || began.elapsed() >= self.request.wait) => {
                    return if self.stop.is_cancelled() { ReceiveEnd::Stopped } else { ReceiveEnd::Done };
                }
                Ok(batch) => {
                    if let Some(end) = self.hand_out(batch).await {
                        return end;
                    }
                }
            }
        }
    }

    async fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        let request = Receive { max, wait: wait.min(self.queue.limits().max_wait), lease: LEASE };
        let mut tries = 1;
        loop {
            match self.queue.receive(request, self.stop).await {
                Err(QueueError::Unavailable(_)) if tries < TRIES && !self.stop.is_cancelled() => back_off(tries).await,
                answer => return answer,
            }
            tries += 1;
        }
    }

    /// Hands out a batch, and removes the messages that have arrived. Returns `Some` if the request has ended.
    async fn hand_out(&mut self, batch: Vec<Delivery>) -> Option<ReceiveEnd> {
        let elsewhere = batch.iter().filter(|delivery| delivery.message.claim.is_some());
        let elsewhere = elsewhere.map(|delivery| Arc::clone(&delivery.message)).collect();
        let mut bodies = load(&self.queue, elsewhere, LEASE / 3).await;
        let (mut arrived, mut end) = (Vec::new(), None);
        let mut rest = batch.into_iter();
        while let Some(delivery) = rest.next() {
            if self.unremoved.contains_key(&delivery.message.id) {
                // Handed out earlier, but not removed: only the removal is repeated.
                arrived.push((delivery.message, delivery.receipt));
                continue;
            }
            let put = match self.readable(&delivery.message, bodies.remove(&delivery.message.id)).await {
                Ok(message) => self.put(&message, &delivery, &arrived, rest.as_slice()).await,
                Err(end) => Err(end),
            };
            match put {
                Ok(()) => {
                    self.received.handed_out += 1;
                    if self.request.ack {
                        arrived.push((delivery.message, delivery.receipt));
                        continue;
                    }
                }
                Err(why) => end = why,
            }
            self.hold(&delivery.message, delivery.receipt);
            if end.is_some() {
                break;
            }
        }
        rest.for_each(|delivery| self.hold(&delivery.message, delivery.receipt));
        self.remove(arrived).await;
        end
    }

    /// Returns the message with its body. `loaded`: result of loading a body that is stored outside the message. `Err`:
    /// the message must not be handed out. `Err` with a [`ReceiveEnd`]: the request also ends, for this reason.
    async fn readable(
        &mut self,
        message: &Arc<Message>,
        loaded: Option<Result<Arc<Message>, String>>,
    ) -> Result<Arc<Message>, Option<ReceiveEnd>> {
        if self.identities.came_again(&self.queue, &mut self.held, &self.identities.of(message)).await {
            // The lease of this message has ended, and the message was received again. Therefore, the whole queue has
            // been seen.
            return Err(Some(ReceiveEnd::Done));
        }
        match loaded {
            None => Ok(Arc::clone(message)),
            Some(Ok(loaded)) => Ok(loaded),
            Some(Err(reason)) => {
                self.received.unread.push((message.id.clone(), reason));
                // In an ordered queue, later messages of the group must not be removed before this message.
                Err(self.queue.is_ordered().then_some(ReceiveEnd::Done))
            }
        }
    }

    /// Hands out one message. Meanwhile, extends all leases, because the recipient may be slow to accept the message.
    async fn put(
        &mut self,
        message: &Arc<Message>,
        delivery: &Delivery,
        arrived: &[(Arc<Message>, Receipt)],
        rest: &[Delivery],
    ) -> Result<(), Option<ReceiveEnd>> {
        let (queue, held, extended_at) = (&self.queue, &mut self.held, &mut self.extended_at);
        let extending = async {
            loop {
                // Counted from the last extension, because each of many messages may take a short time.
                sleep_until(*extended_at + LEASE / 4).await;
                let here = std::iter::once(delivery).chain(rest).map(|one| &one.receipt);
                let others = arrived.iter().map(|(_, receipt)| receipt).chain(here).map(Receipt::lease);
                extend_all(queue, held, others.collect()).await;
                *extended_at = Instant::now();
            }
        };
        tokio::select! {
            biased;
            put = self.outlet.put(message, delivery.attempt) => put.map_err(|error| Some(ReceiveEnd::Unwritten(error))),
            () = self.stop.cancelled() => Err(Some(ReceiveEnd::Stopped)),
            () = extending => Err(Some(ReceiveEnd::Stopped)),
        }
    }

    fn hold(&mut self, message: &Message, receipt: Receipt) {
        self.held.keep(self.identities.of(message), receipt, Instant::now() + LEASE);
    }

    async fn remove(&mut self, arrived: Vec<(Arc<Message>, Receipt)>) {
        let acks = arrived.into_iter().map(|(message, receipt)| (message, Settlement::Ack(receipt))).collect();
        for (message, answer) in settle(&self.queue, acks).await {
            match answer {
                Ok(()) => {
                    self.received.removed += 1;
                    self.unremoved.remove(&message.id);
                }
                Err(error) if self.identities.repeat() => {
                    self.received.unremoved.push((message.id.clone(), error.to_string()));
                }
                Err(error) => drop(self.unremoved.insert(message.id.clone(), error.to_string())),
            }
        }
    }

    /// Gives back the messages in `held`. If the lease of a message has ended, the message is already visible in the
    /// queue.
    async fn give_back(&mut self) {
        let held = self.held.drain().into_iter();
        let back: Vec<_> = held.map(|(id, receipt)| (id, Settlement::GiveBack(receipt, Duration::ZERO))).collect();
        self.received.given_back = back.len() as u64;
        for (id, answer) in settle(&self.queue, back).await {
            if let Err(error) = answer {
                tracing::warn!(message_id = id, %error, "not given back; it becomes visible when its lease ends");
            }
        }
    }
}

/// Extends the leases of held messages, and `others`. An extension that fails is tried again the next time.
async fn extend_all(queue: &Arc<dyn Queue>, held: &mut SetAside, others: Vec<LeaseHandle>) {
    let until = Instant::now() + LEASE;
    let held_leases = held.leases().map(|(number, lease)| (Some(number), lease));
    let leases = held_leases.chain(others.into_iter().map(|lease| (None, lease))).collect();
    for number in extend(queue, leases, LEASE).await.into_iter().flatten() {
        held.extended(number, until);
    }
}
