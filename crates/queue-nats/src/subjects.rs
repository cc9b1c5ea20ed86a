//! Core subjects: requests that a handler answers, without a stream.
//!
//! The server keeps nothing: a request that nobody answers in time is its sender's to repeat. So a lease is only the time in which
//! this process answers, and nothing is sent after its end.

mod desk;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message as NatsMessage, Subject, Subscriber};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, MAX_REASON, Origin, Queue, QueueError, Receive, Settlement, SubjectSpec,
    Unsettled,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::desk::{Asked, Desk, asked};
use super::acks::{DONE, PROGRESS};
use super::line::{Line, PATIENCE, Unanswered};
use super::queue::LIMITS;
use super::{SYSTEM, Service};

/// Number of messages after which a subscription is to end. Servers read at most nine digits, and take a longer number for none: the
/// subscription ends at once. The client library reads it, so it goes on to take what is on its way. It has no other way to end a
/// subscription without dropping that. A server that reads the number only sends more before the subscription ends for good.
pub(crate) const MORE_THAN_SERVERS_COUNT: u64 = 9_999_999_999;

/// Maximum time to wait for requests that are on their way when the subscription ends.
const CLOSING: Duration = Duration::from_secs(5);

/// State that the queue shares with its subscription's task.
struct SharedDesk {
    desk: Mutex<Desk>,
    /// Notified after each request, and when there is room for more.
    changed: Notify,
    /// Number of slots. With more requests, the subscription ends until some are answered, so that other hosts get the next ones,
    /// or the sender hears that nobody listens.
    slots: usize,
}

impl SharedDesk {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self) -> bool {
        self.lock().is_full(self.slots, Instant::now())
    }

    /// Takes a request. Returns `true` if there is no room for more.
    fn came(&self, message: NatsMessage) -> bool {
        self.lock().waiting.push_back(asked(message, Instant::now()));
        self.changed.notify_waiters();
        self.is_full()
    }
}

/// A subscription that receives.
struct Listening {
    begun_at: Instant,
    close: CancellationToken,
    pump: JoinSet<()>,
}

/// Takes requests until `close` is cancelled, or there is no room for more. Then ends the subscription, and takes the requests that
/// are on their way: the server does not send them to anybody else.
async fn run_pump(service: Arc<Service>, shared: Arc<SharedDesk>, mut inbox: Subscriber, close: CancellationToken) {
    let _ends = close.clone().drop_guard();
    loop {
        let is_full = tokio::select! {
            message = inbox.next() => match message {
                Some(message) => shared.came(message),
                None => return,
            },
            () = close.cancelled() => break,
        };
        if is_full {
            close.cancel();
        }
    }
    if inbox.unsubscribe_after(MORE_THAN_SERVERS_COUNT).await.is_err() {
        return;
    }
    let proof = service.line.prove(CLOSING);
    tokio::pin!(proof);
    loop {
        tokio::select! {
            message = inbox.next() => match message {
                Some(message) => drop(shared.came(message)),
                None => return,
            },
            _ = &mut proof => break,
        }
    }
    if inbox.unsubscribe().await.is_ok() {
        while let Some(message) = inbox.next().await {
            shared.came(message);
        }
    }
}

/// Tells the senders of requests that wait for slots that they do. Otherwise, they would send them again, to be handled twice. Not a
/// refusal: it would cost the message one of its attempts, though no handler saw it.
async fn tell_senders(service: Arc<Service>, shared: Arc<SharedDesk>) {
    loop {
        let changed = shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let next = shared.lock().next_word();
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => continue,
            () = due => {}
        }
        let told = shared.lock().words(Instant::now());
        // The client would keep it until it has connected again, when the sender has given up.
        if service.line.is_down().is_some() {
            continue;
        }
        for reply in told {
            if let Err(error) = service.line.client.publish(reply, PROGRESS.into()).await {
                tracing::debug!(%error, "the sender of a request does not hear that it waits");
            }
        }
    }
}

/// A subject for its consumer.
pub(crate) struct SubjectQueue {
    service: Arc<Service>,
    spec: SubjectSpec,
    shared: Arc<SharedDesk>,
    listening: tokio::sync::Mutex<Option<Listening>>,
    /// Ends with this value.
    _telling: JoinSet<()>,
}

impl SubjectQueue {
    pub(crate) fn new(service: Arc<Service>, spec: SubjectSpec, window: usize) -> Self {
        let shared = SharedDesk { desk: Mutex::default(), changed: Notify::new(), slots: window.max(1) };
        let (shared, mut telling) = (Arc::new(shared), JoinSet::new());
        telling.spawn(tell_senders(Arc::clone(&service), Arc::clone(&shared)));
        Self { service, spec, shared, listening: tokio::sync::Mutex::default(), _telling: telling }
    }

    fn line(&self) -> &Line {
        &self.service.line
    }

    /// Makes sure that requests come, unless there is no room for more. Returns the time since when a refusal counts.
    async fn listen(&self) -> Result<Instant, QueueError> {
        let mut listening = self.listening.lock().await;
        if let Some(Listening { close, pump, begun_at }) = &mut *listening {
            if !close.is_cancelled() {
                return Ok(*begun_at);
            }
            // What is on its way to the subscription that ends comes first.
            let _ = timeout(CLOSING, pump.join_next()).await;
        }
        let begun_at = Instant::now();
        if self.shared.is_full() {
            return Ok(begun_at);
        }
        let (subject, group) = (self.spec.subject.clone(), self.spec.queue_group.clone());
        let subscribed = self.line().client.queue_subscribe(subject, group).await;
        let inbox = subscribed
            .map_err(|error| QueueError::Unavailable(format!("cannot listen on `{}`: {error}", self.spec.subject)))?;
        let (close, mut pump) = (CancellationToken::new(), JoinSet::new());
        pump.spawn(run_pump(Arc::clone(&self.service), Arc::clone(&self.shared), inbox, close.clone()));
        *listening = Some(Listening { begun_at, close, pump });
        Ok(begun_at)
    }

    /// Ends the subscription. Takes the requests that are on their way.
    async fn close(&self) {
        if let Some(Listening { close, mut pump, .. }) = self.listening.lock().await.take() {
            close.cancel();
            let _ = timeout(CLOSING, pump.join_next()).await;
        }
    }

    fn take(&self, request: Receive) -> Vec<Delivery> {
        self.shared.lock().hand_out(request.max.clamp(1, LIMITS.receive_batch), request.lease, Instant::now())
    }

    /// Receives until `deadline`. Dropping the future loses no request.
    async fn wait(&self, request: Receive, deadline: Instant) -> Result<Vec<Delivery>, QueueError> {
        self.line().up(deadline).await?;
        let needs = [&*self.spec.subject];
        let what = || format!("listen on `{}`", self.spec.subject);
        let mut watch = self.line().watch();
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let taken = self.take(request);
            if !taken.is_empty() {
                return Ok(taken);
            }
            let since = self.listen().await?;
            let now = Instant::now();
            if now >= deadline {
                self.line().prove(PATIENCE).await.map_err(|error| error.of(&what()))?;
                return Ok(self.take(request));
            }
            let slot_at = self.shared.lock().next_end(now);
            tokio::select! {
                () = changed => {}
                () = sleep_until(slot_at.map_or(deadline, |at| at.min(deadline))) => {}
                fault = watch.fault_since(since, &needs) => {
                    if matches!(fault, Unanswered::Denied(_)) {
                        // The next receive tries again.
                        self.listening.lock().await.take();
                    }
                    return Err(fault.of(&what()));
                }
            }
        }
    }

    /// Answers a request. Without a subject for the answer, there is nothing to do.
    async fn answer(&self, reply: Option<Subject>, answer: String) -> Result<(), LeaseError> {
        let Some(reply) = reply else {
            tracing::debug!(subject = self.spec.subject, answer, "the sender wants no answer");
            return Ok(());
        };
        if let Some(why) = self.line().is_down() {
            return Err(LeaseError::Retry(why));
        }
        let client = &self.line().client;
        let sent = client.publish(reply, answer.into()).await.map_err(|error| error.to_string());
        sent.map_err(LeaseError::Retry)?;
        let flushed = timeout(PATIENCE, client.flush()).await;
        flushed
            .map_err(|_| LeaseError::Retry("NATS takes no answer".to_owned()))?
            .map_err(|error| LeaseError::Retry(error.to_string()))
    }

    async fn extend_one(&self, lease: &LeaseHandle, by: Duration) -> Result<(), LeaseError> {
        let now = Instant::now();
        let (_, reply) = self.shared.lock().leased(lease, now)?;
        self.answer(reply, PROGRESS.to_owned()).await?;
        // The answer may have taken longer than the lease.
        self.shared.lock().extend(lease, now + by, Instant::now())
    }

    async fn settle_one(&self, settlement: &Settlement) -> Result<(), LeaseError> {
        // Before the answer, because the sender may send the next request as soon as it has it.
        let (number, lease) = self.shared.lock().settle(&settlement.receipt().lease(), Instant::now())?;
        let answered = self.answer(lease.0.clone(), answer_to(settlement)).await;
        if answered.is_err() {
            self.shared.lock().leased.insert(number, lease);
        }
        self.shared.changed.notify_waiters();
        answered
    }
}

/// Returns the answer that carries out a settlement.
fn answer_to(settlement: &Settlement) -> String {
    match settlement {
        Settlement::Ack(_) => DONE.to_owned(),
        Settlement::Release(_, delay) | Settlement::GiveBack(_, delay) => again_after(*delay),
        Settlement::DeadLetter { reason, .. } => {
            let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
            let reason: String = reason.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
            format!("+TERM {}", reason.trim())
        }
    }
}

/// Returns the answer that asks the sender to send the request again after a delay.
pub(crate) fn again_after(delay: Duration) -> String {
    format!("-NAK {{\"delay\":{}}}", delay.as_secs_f64())
}

#[async_trait]
impl Queue for SubjectQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn origin(&self) -> Origin {
        let address = format!("{}/{}", self.line().address, self.spec.subject);
        Origin { system: SYSTEM, address: Some(address.into()) }
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + request.wait.min(LIMITS.max_wait);
        tokio::select! {
            biased;
            received = self.wait(request, deadline) => return received,
            () = stop.cancelled() => {}
        }
        self.close().await;
        Ok(self.take(request))
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        join_all(leases.iter().map(|lease| self.extend_one(lease, by))).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let settled = join_all(batch.iter().map(|settlement| self.settle_one(settlement))).await;
        let unsettled = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(settled).map(unsettled).collect()
    }

    async fn rest(&self) {
        self.close().await;
        let waiting = std::mem::take(&mut self.shared.lock().waiting);
        let answering = waiting.into_iter().map(|Asked { reply, .. }| async move {
            if let Err(error) = self.answer(reply, again_after(Duration::ZERO)).await {
                tracing::debug!(%error, "the sender of a request has to wait until its time is over");
            }
        });
        join_all(answering).await;
    }
}

#[cfg(test)]
mod tests {
    use hostler_queue::Receipt;
    use hostler_types::message::Message;

    use super::*;

    #[test]
    fn each_settlement_has_its_answer() {
        let receipt = || Receipt::new("1");
        let letter = Settlement::DeadLetter {
            receipt: receipt(),
            message: Arc::new(Message::new("1", "")),
            reason: "no such\nuser".to_owned(),
        };
        let answers = [
            Settlement::Ack(receipt()),
            Settlement::Release(receipt(), Duration::from_millis(1500)),
            Settlement::Release(receipt(), Duration::from_secs(60)),
            Settlement::GiveBack(receipt(), Duration::ZERO),
            letter,
        ];
        let expected =
            ["+ACK", "-NAK {\"delay\":1.5}", "-NAK {\"delay\":60}", "-NAK {\"delay\":0}", "+TERM no such user"];
        assert_eq!(answers.iter().map(answer_to).collect::<Vec<_>>(), expected);
    }
}
