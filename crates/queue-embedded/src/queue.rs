//! An opened embedded queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::clock::Session;
use super::commit;
use super::lease::{self, Ending, Source, Ticket, lost};
use super::waiting::Waiting;
use super::writer::{Need, Writer, ended};
use hostler_queue::{
    Commit, Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Report, Settlement,
    Unsettled,
};

/// Limits of this driver. The batches are larger than those of SQS (10 messages). The maximum wait and the maximum
/// lease are those of SQS, which also suit this driver.
const LIMITS: Limits = Limits {
    receive_batch: 32,
    settle_batch: 64,
    settle_linger: Duration::ZERO,
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 1,
    max_release: Duration::from_secs(12 * 60 * 60),
};

#[derive(Debug)]
pub(super) struct EmbeddedQueue {
    writer: Writer,
    source: Arc<Source>,
    /// Period in which a message with the same deduplication key as another one is a duplicate.
    dedupe_window: Duration,
}

/// Changes that settle an entry.
enum Order {
    Plain(Ending),
    /// An ack that also makes these changes.
    Commit(Arc<Commit>),
}

impl EmbeddedQueue {
    pub(super) fn new(writer: Writer, source: Source, dedupe_window: Duration) -> Self {
        Self { writer, source: Arc::new(source), dedupe_window }
    }

    /// Calls `act` for each lease, in one transaction. An element of `leases` that is an error is returned unchanged. If the
    /// transaction fails, every result is an error that permits a retry.
    async fn each<T: Send + 'static>(
        &self,
        need: Need,
        leases: Vec<Result<T, LeaseError>>,
        mut act: impl FnMut(&Session<'_>, &T) -> rusqlite::Result<Result<(), LeaseError>> + Send + 'static,
    ) -> Vec<Result<(), LeaseError>> {
        let count = leases.len();
        let done = self.writer.call(need, move |db| {
            let answers = leases.iter().map(|lease| match lease {
                Ok(lease) => act(db, lease),
                Err(error) => Ok(Err(error.clone())),
            });
            answers.collect()
        });
        done.await.unwrap_or_else(|error| vec![Err(LeaseError::Retry(error.to_string())); count])
    }
}

/// The pending answer to a receive call. If it is dropped before it is read, the messages in the answer become visible
/// again.
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
        let deadline = self.writer.monotonic() + request.wait;
        self.writer.receive(Waiting::new(self.source.clone(), request, deadline, stop.clone(), reply));
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
        let tickets: Vec<_> = leases.iter().map(|lease| ticket(lease.as_str())).collect();
        let extend = move |db: &Session<'_>, ticket: &Ticket| lease::extend(db, queue, *ticket, by).map(valid);
        self.each(Need::Write, tickets, extend).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let source = Arc::clone(&self.source);
        let orders: Vec<_> = batch.iter().map(|settlement| order(&source, settlement)).collect();
        let commits = orders.iter().any(|order| matches!(order, Ok((_, Order::Commit(_)))));
        let need = if commits { Need::Durable } else { Need::Write };
        let window = self.dedupe_window;
        let settle = move |db: &Session<'_>, (ticket, order): &(Ticket, Order)| match order {
            Order::Plain(ending) => lease::settle(db, &source, *ticket, ending).map(valid),
            Order::Commit(commit) => commit::ack(db, &source, *ticket, commit, window),
        };
        let settled = self.each(need, orders, settle).await;
        let answer =
            |(settlement, settled): (_, Result<_, _>)| settled.map_err(|error| Unsettled { settlement, error });
        batch.into_iter().zip(settled).map(answer).collect()
    }
}

fn ticket(receipt: &str) -> Result<Ticket, LeaseError> {
    Ticket::parse(receipt).ok_or_else(lost)
}

fn valid(is_valid: bool) -> Result<(), LeaseError> {
    if is_valid { Ok(()) } else { Err(lost()) }
}

/// Returns the entry that `settlement` applies to, and the changes that settle it. Fails if the receipt is not from
/// this driver. A dead-letter settlement also fails if the queue has no dead-letter queue, and an ack if its messages are not valid.
fn order(source: &Source, settlement: &Settlement) -> Result<(Ticket, Order), LeaseError> {
    let ending = match settlement {
        Settlement::Ack(receipt) => match receipt.report() {
            Some(Report::Commit(commit)) => {
                let commit = Order::Commit(commit::checked(commit)?);
                return Ok((ticket(receipt.as_str())?, commit));
            }
            _ => Ending::Ack,
        },
        Settlement::Release(_, delay) => Ending::Release(*delay),
        Settlement::GiveBack(_, delay) => Ending::GiveBack(*delay),
        Settlement::DeadLetter { reason, .. } => {
            let (queue, _) = source.dead_letter.ok_or_else(no_dead_letter_queue)?;
            Ending::DeadLetter(queue, reason.clone())
        }
    };
    Ok((ticket(settlement.receipt().as_str())?, Order::Plain(ending)))
}

fn no_dead_letter_queue() -> LeaseError {
    LeaseError::Refused("the queue has no dead-letter queue".to_owned())
}
