//! One embedded queue, as its consumer sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::lease::{self, Ending, Source, Ticket};
use super::waiting::Waiting;
use super::writer::{Need, Writer, ended};
use crate::queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};

/// The driver's own; SQS has lower ones for the first three, and its 20 s and 12 h serve well here too.
const LIMITS: Limits = Limits {
    receive_batch: 32,
    settle_batch: 64,
    settle_linger: Duration::ZERO,
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 1,
};

#[derive(Debug)]
pub(super) struct EmbeddedQueue {
    writer: Writer,
    source: Arc<Source>,
}

impl EmbeddedQueue {
    pub(super) fn new(writer: Writer, source: Source) -> Self {
        Self { writer, source: Arc::new(source) }
    }
}

/// The answer to a receive. If the receive is dropped before it has seen it, the messages in it go back.
struct Answer<'a> {
    queue: &'a EmbeddedQueue,
    messages: oneshot::Receiver<Result<Vec<Delivery>, QueueError>>,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.messages.close();
        if let Ok(Ok(unclaimed)) = self.messages.try_recv() {
            self.queue.writer.give_back(self.queue.source.queue, unclaimed);
        }
    }
}

#[async_trait]
impl Queue for EmbeddedQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        self.source.ordered
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let Receive { max, wait, lease } = request;
        let request = Receive { max: max.clamp(1, LIMITS.receive_batch), wait: wait.min(LIMITS.max_wait), lease };
        let (reply, messages) = oneshot::channel();
        self.writer.receive(Waiting::new(self.source.clone(), request, stop.clone(), reply));
        let mut answer = Answer { queue: self, messages };
        let answered = tokio::select! {
            biased;
            answered = &mut answer.messages => answered,
            () = stop.cancelled() => {
                self.writer.look();
                (&mut answer.messages).await
            }
        };
        answered.unwrap_or_else(|_| Err(ended()))
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let queue = self.source.queue;
        let tickets: Vec<_> = leases.iter().map(|lease| Ticket::parse(lease.as_str())).collect();
        let extended = self.writer.call(Need::Write, move |db| {
            tickets
                .iter()
                .map(|ticket| ticket.map_or(Ok(false), |ticket| lease::extend(db, queue, ticket, by)))
                .collect()
        });
        each(extended.await, leases.len())
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let (source, count) = (self.source.clone(), batch.len());
        let orders: Vec<_> = batch.iter().map(|settlement| order(&source, settlement)).collect();
        let settled = self.writer.call(Need::Write, move |db| {
            orders
                .iter()
                .map(|order| match order {
                    Some((ticket, ending)) => lease::settle(db, &source, *ticket, ending),
                    None => Ok(false),
                })
                .collect()
        });
        let answers = each(settled.await, count);
        let refused = self.source.dead_letter.is_none();
        batch
            .into_iter()
            .zip(answers)
            .map(|(settlement, answer)| match settlement {
                Settlement::DeadLetter { .. } if refused => {
                    Err(Unsettled { settlement, error: no_dead_letter_queue() })
                }
                settlement => answer.map_err(|error| Unsettled { settlement, error }),
            })
            .collect()
    }
}

/// What to do for a settlement; nothing if its receipt is not ours or the queue cannot do it.
fn order(source: &Source, settlement: &Settlement) -> Option<(Ticket, Ending)> {
    let ending = match settlement {
        Settlement::Ack(_) => Ending::Ack,
        Settlement::Release(_, delay) => Ending::Release(*delay),
        Settlement::DeadLetter { reason, .. } => Ending::DeadLetter(source.dead_letter?.0, reason.clone()),
    };
    Some((Ticket::parse(settlement.receipt().as_str())?, ending))
}

/// Every entry's answer: what the thread said of it, or its error for all.
fn each(answers: Result<Vec<bool>, QueueError>, count: usize) -> Vec<Result<(), LeaseError>> {
    match answers {
        Ok(done) => done.into_iter().map(|done| if done { Ok(()) } else { Err(lost()) }).collect(),
        Err(error) => vec![Err(LeaseError::Retry(error.to_string())); count],
    }
}

fn lost() -> LeaseError {
    LeaseError::Lost("it has ended, or the message was settled".to_owned())
}

fn no_dead_letter_queue() -> LeaseError {
    LeaseError::Refused("the queue has no dead-letter queue".to_owned())
}
