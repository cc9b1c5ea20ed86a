//! Core subjects: requests that a handler answers, without a stream.
//!
//! The server keeps nothing: a request that nobody answers in time is its sender's to repeat. So a lease is only the time in which
//! this process answers, and nothing is sent after its end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::{Message as NatsMessage, Subject, Subscriber};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, MAX_REASON, Origin, Queue, QueueError, Receipt, Receive, Settlement,
    SubjectSpec, Unsettled,
};
use hostler_types::message::{Message, TraceContext};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::acks::{DONE, PROGRESS};
use super::headers::{self, ID, NATS_ID};
use super::line::{Line, PATIENCE, Unanswered};
use super::queue::LIMITS;
use super::{SYSTEM, Service};

/// Header with the number of the attempt, from 1 on.
const ATTEMPT: &str = "Hostler-Attempt";

/// Number of messages after which a subscription is to end, of more digits than servers read. They end it at once, while the client
/// library still takes what is on its way; when told to end it without a number, it drops that. A server that read the number would
/// only send more before the subscription ends for good.
const MORE_THAN_SERVERS_COUNT: u64 = 9_999_999_999;

/// Maximum time to wait for requests that are on their way when the subscription ends.
const CLOSING: Duration = Duration::from_secs(5);

/// A request in hand.
#[derive(Debug)]
struct Asked {
    message: Arc<Message>,
    attempt: u32,
    /// Subject for the answer. `None`: the sender wants none.
    reply: Option<Subject>,
}

/// Requests in this process.
#[derive(Debug, Default)]
struct Desk {
    waiting: VecDeque<Asked>,
    /// Requests that are handed out, with the subjects for their answers and the ends of their leases.
    leased: HashMap<u64, (Option<Subject>, Instant)>,
    next: u64,
}

impl Desk {
    fn hand_out(&mut self, max: usize, lease: Duration, now: Instant) -> Vec<Delivery> {
        self.leased.retain(|_, (_, until)| *until > now);
        let count = max.min(self.waiting.len());
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        let lease = |Asked { message, attempt, reply }: Asked| {
            self.next += 1;
            self.leased.insert(self.next, (reply, now + lease));
            let receipt = Receipt::new(self.next.to_string());
            Delivery { message, receipt, attempt, leased_at: now, not_before: None }
        };
        taken.into_iter().map(lease).collect()
    }

    /// Returns the number of a lease that has not ended, and the subject for answers.
    fn leased(&mut self, lease: &LeaseHandle, now: Instant) -> Result<(u64, Option<Subject>), LeaseError> {
        let number = lease.as_str().parse().map_err(|_| ended())?;
        let (reply, until) = self.leased.get(&number).ok_or_else(ended)?;
        if *until <= now {
            self.leased.remove(&number);
            return Err(ended());
        }
        Ok((number, reply.clone()))
    }

    /// Takes a lease that has not ended out, to answer its request.
    fn settle(&mut self, lease: &LeaseHandle, now: Instant) -> Result<(u64, (Option<Subject>, Instant)), LeaseError> {
        let (number, _) = self.leased(lease, now)?;
        self.leased.remove(&number).map(|lease| (number, lease)).ok_or_else(ended)
    }

    /// Returns `true` if there are more requests than `slots`.
    fn is_full(&self, slots: usize, now: Instant) -> bool {
        let running = self.leased.values().filter(|(_, until)| *until > now).count();
        self.waiting.len() + running > slots
    }
}

fn ended() -> LeaseError {
    LeaseError::Lost("it has ended, or the request was answered".to_owned())
}

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
        self.lock().waiting.push_back(asked(message));
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

/// A subject for its consumer.
pub(crate) struct SubjectQueue {
    service: Arc<Service>,
    spec: SubjectSpec,
    shared: Arc<SharedDesk>,
    listening: tokio::sync::Mutex<Option<Listening>>,
}

impl SubjectQueue {
    pub(crate) fn new(service: Arc<Service>, spec: SubjectSpec, window: usize) -> Self {
        let shared = SharedDesk { desk: Mutex::default(), changed: Notify::new(), slots: window.max(1) };
        Self { service, spec, shared: Arc::new(shared), listening: tokio::sync::Mutex::default() }
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
            if Instant::now() >= deadline {
                self.line().prove(PATIENCE).await.map_err(|error| error.of(&what()))?;
                return Ok(self.take(request));
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(deadline) => {}
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
fn again_after(delay: Duration) -> String {
    format!("-NAK {{\"delay\":{}}}", delay.as_secs_f64())
}

/// Reads a request.
fn asked(message: NatsMessage) -> Asked {
    let NatsMessage { subject, reply, payload, headers, .. } = message;
    let headers = headers.unwrap_or_default();
    let word = |name: &str| headers.get(name).map(|value| value.as_str());
    let attempt = word(ATTEMPT).and_then(|text| text.trim().parse().ok()).unwrap_or(1).max(1);
    let mut attributes = headers::attributes(&headers);
    attributes.remove(ATTEMPT);
    let id = word(ID).or_else(|| word(NATS_ID)).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let message = Message {
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        enqueued_at: SystemTime::now(),
        routing_key: Some(subject.to_string()),
        ..Message::new(id, payload)
    };
    Asked { message: Arc::new(message), attempt, reply }
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
        let mut results = Vec::new();
        for lease in leases {
            let now = Instant::now();
            let leased = self.shared.lock().leased(lease, now);
            results.push(match leased {
                Ok((number, reply)) => self.answer(reply, PROGRESS.to_owned()).await.map(|()| {
                    if let Some((_, until)) = self.shared.lock().leased.get_mut(&number) {
                        *until = now + by;
                    }
                }),
                Err(error) => Err(error),
            });
        }
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let mut results = Vec::new();
        for settlement in batch {
            let settled = self.settle_one(&settlement).await;
            results.push(settled.map_err(|error| Unsettled { settlement, error }));
        }
        results
    }

    async fn rest(&self) {
        self.close().await;
        let waiting = std::mem::take(&mut self.shared.lock().waiting);
        for Asked { reply, .. } in waiting {
            if let Err(error) = self.answer(reply, again_after(Duration::ZERO)).await {
                tracing::debug!(%error, "the sender of a request has to wait until its time is over");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    fn request(reply: Option<&str>, attempt: Option<&str>) -> NatsMessage {
        let mut headers = HeaderMap::new();
        headers.insert("tenant", "7");
        if let Some(attempt) = attempt {
            headers.insert(ATTEMPT, attempt);
        }
        NatsMessage {
            subject: "webhooks.a".into(),
            reply: reply.map(Into::into),
            payload: "body".into(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn a_request_becomes_a_message_with_its_subject_and_its_attempt() {
        let first = asked(request(Some("inbox"), None));
        assert_eq!((first.attempt, first.message.routing_key.as_deref()), (1, Some("webhooks.a")));
        assert_eq!(first.message.attributes.keys().collect::<Vec<_>>(), ["tenant"]);
        assert_eq!(first.reply.as_deref(), Some("inbox"));
        let third = asked(request(None, Some("3")));
        assert_eq!((third.attempt, third.message.attributes.len(), third.reply), (3, 1, None));
        assert_eq!(asked(request(None, Some("many"))).attempt, 1);
    }

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

    #[test]
    fn nothing_is_answered_after_the_lease() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        desk.waiting.push_back(asked(request(Some("inbox"), None)));
        let delivery = desk.hand_out(10, Duration::from_secs(30), now).remove(0);
        let lease = delivery.receipt.lease();
        assert_eq!(desk.leased(&lease, now).map(|(_, reply)| reply.is_some()), Ok(true));
        assert!(desk.leased(&lease, now + Duration::from_secs(30)).is_err());
        assert!(desk.leased(&lease, now).is_err(), "for good");
    }

    #[test]
    fn requests_that_run_and_that_wait_take_the_slots() {
        let (mut desk, now, lease) = (Desk::default(), Instant::now(), Duration::from_secs(30));
        (0..3).for_each(|_| desk.waiting.push_back(asked(request(None, None))));
        let taken = desk.hand_out(2, lease, now);
        assert!(desk.is_full(2, now) && !desk.is_full(3, now));
        assert!(desk.settle(&taken[0].receipt.lease(), now).is_ok());
        assert!(!desk.is_full(2, now), "one is answered");
        assert!(desk.settle(&taken[0].receipt.lease(), now).is_err(), "once");
        assert!(!desk.is_full(1, now + lease), "leases that have ended hold no slot");
    }
}
