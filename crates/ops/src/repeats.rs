//! The operations on a queue whose messages may all be equal, as producers of RabbitMQ may make them. In a service for tests, every
//! message has the same id.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hostler_queue::fake::{FakeBroker, LIMITS};
use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, Depth, LeaseError, LeaseHandle, Limits, Link, Origin, Queue, QueueError,
    Receipt, Receive, SendError, Sent, Settlement, Unsettled,
};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Message, Outgoing};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::requeue::{Ended, LEASE, MoveRequest, Report, run};
use crate::{Look, Outlet, ReceiveEnd, ReceiveReport, ReceiveRequest};

/// A service without dedupe keys.
struct Repeating {
    fake: FakeBroker,
    /// Set if the queues say that they are ordered. They return several messages of a group at once all the same.
    ordered: bool,
    /// Set if the next settle call removes its messages, and its answer is lost.
    unanswered: Arc<AtomicBool>,
}

struct RepeatingQueue {
    queue: Arc<dyn Queue>,
    ordered: bool,
    unanswered: Arc<AtomicBool>,
}

#[async_trait]
impl Broker for Repeating {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        self.fake.open(spec).await
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let mut sent = Vec::new();
        for message in batch {
            sent.push(match message.dedupe {
                Some(_) => Err(SendError::Invalid(Invalid::DedupeUnsupported("no keys here"))),
                None => self.fake.send(channel, vec![message]).await.remove(0),
            });
        }
        sent
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.fake.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.fake.link()
    }
}

#[async_trait]
impl Admin for Repeating {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        self.fake.channels().await
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        self.fake.each_depth(channels).await
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let queue = self.fake.open_stored(channel).await?;
        Ok(Arc::new(RepeatingQueue { queue, ordered: self.ordered, unanswered: Arc::clone(&self.unanswered) }))
    }
}

#[async_trait]
impl Queue for RepeatingQueue {
    fn limits(&self) -> Limits {
        self.queue.limits()
    }

    fn is_ordered(&self) -> bool {
        self.ordered
    }

    fn ids_repeat(&self) -> bool {
        true
    }

    fn origin(&self) -> Origin {
        self.queue.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let mut received = self.queue.receive(request, stop).await?;
        for delivery in &mut received {
            Arc::make_mut(&mut delivery.message).id = "same".to_owned();
        }
        Ok(received)
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.queue.extend(leases, by).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        if !self.unanswered.swap(false, Ordering::SeqCst) {
            return self.queue.settle(batch).await;
        }
        let ack = |settlement: &Settlement| Settlement::Ack(Receipt::new(settlement.receipt().lease().as_str()));
        let copies = batch.iter().map(ack).collect();
        assert!(self.queue.settle(copies).await.iter().all(Result::is_ok));
        let lost = || LeaseError::Lost("no answer".to_owned());
        batch.into_iter().map(|settlement| Err(Unsettled { settlement, error: lost() })).collect()
    }
}

/// An outlet that takes a while for each message.
#[derive(Default)]
struct Slow {
    takes: Duration,
    count: Mutex<usize>,
}

#[async_trait]
impl Outlet for Slow {
    async fn put(&mut self, _: &Arc<Message>, _: u32) -> io::Result<()> {
        sleep(self.takes).await;
        *self.count.lock().unwrap() += 1;
        Ok(())
    }
}

fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

/// Returns a service with a queue `jobs-dlq` that holds these messages, and an empty queue `jobs`. `batch`: maximum number of messages
/// that one receive returns.
async fn service(batch: usize, messages: Vec<Outgoing>) -> Repeating {
    let fake = FakeBroker::new(Limits { receive_batch: batch, ..LIMITS });
    for queue in ["jobs", "jobs-dlq"] {
        fake.open(&ChannelSpec::new(channel(queue))).await.unwrap();
    }
    for sent in fake.send(&channel("jobs-dlq"), messages).await {
        sent.unwrap();
    }
    Repeating { fake, ordered: false, unanswered: Arc::default() }
}

fn equal(count: usize) -> Vec<Outgoing> {
    vec![Outgoing::default(); count]
}

fn of_group(group: &str, count: usize) -> Vec<Outgoing> {
    vec![Outgoing { group: Some(group.to_owned()), ..Outgoing::default() }; count]
}

fn order(to: Option<&str>) -> MoveRequest {
    let began = SystemTime::now() + LEASE * 60;
    let (from, to) = (channel("jobs-dlq"), to.map(channel));
    MoveRequest { from, to, conditions: Vec::new(), max: None, rate: None, dry_run: false, began }
}

async fn totals(service: &Repeating) -> [u64; 2] {
    let depths = service.fake.depths(&["jobs", "jobs-dlq"].map(channel)).await.unwrap();
    [depths[0].total(), depths[1].total()]
}

async fn receive(service: &Repeating, ack: bool, takes: Duration) -> (ReceiveReport, usize) {
    let request = ReceiveRequest { from: channel("jobs-dlq"), ack, max: 1000, wait: Duration::from_secs(1) };
    let mut outlet = Slow { takes, ..Slow::default() };
    let (report, end) = crate::receive(service, request, &CancellationToken::new(), &mut outlet).await.unwrap();
    assert!(matches!(end, ReceiveEnd::Done), "{end:?}");
    (report, outlet.count.into_inner().unwrap())
}

/// Returns the number of messages that are shown.
async fn looked(service: &Repeating) -> usize {
    let look = Look { at: channel("jobs-dlq"), conditions: Vec::new(), max: 1000, began: SystemTime::now() };
    let mut shown = 0;
    let looked = crate::look(service, look, &CancellationToken::new(), &mut |_| shown += 1).await.unwrap();
    assert_eq!(looked.ended, Ended::Done);
    shown
}

/// The first ack takes effect, so what is received next is the other message.
#[tokio::test(start_paused = true)]
async fn an_equal_message_is_not_removed_without_a_copy() {
    let service = service(1, equal(2)).await;
    service.unanswered.store(true, Ordering::SeqCst);
    let ended = run(&service, order(Some("jobs")), &CancellationToken::new(), &mut |_| {}).await.unwrap();
    assert_eq!(ended, (Report { moved: 2, doubled: 1, ..Report::default() }, Ended::Done));
    assert_eq!(totals(&service).await, [2, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_equal_message_is_not_removed_before_it_is_handed_out() {
    let service = service(1, equal(2)).await;
    service.unanswered.store(true, Ordering::SeqCst);
    let (report, put) = receive(&service, true, Duration::ZERO).await;
    assert_eq!((put, report.handed_out, report.removed, report.unremoved.len()), (2, 2, 1, 1));
    assert_eq!(totals(&service).await, [0, 0]);
}

/// Each message takes a short time, and all together take longer than a lease.
#[tokio::test(start_paused = true)]
async fn equal_messages_are_handed_out_once_however_slow_the_outlet_is() {
    let service = service(10, equal(30)).await;
    let (report, put) = receive(&service, false, LEASE / 20).await;
    assert_eq!((put, report.handed_out, report.given_back), (30, 30, 30));
    assert_eq!(totals(&service).await, [0, 30]);
}

/// Messages of later batches are others, and none was given back.
#[tokio::test(start_paused = true)]
async fn equal_messages_of_an_ordered_queue_are_all_shown() {
    let service = Repeating { ordered: true, ..service(10, equal(25)).await };
    assert_eq!(looked(&service).await, 25);
}

/// Both groups share a full batch, and one message more is counted than can be received. So the first group is given back, and
/// received once more.
#[tokio::test(start_paused = true)]
async fn equal_messages_that_were_given_back_are_shown_once() {
    let delayed = Outgoing { delay: LEASE * 60, ..Outgoing::default() };
    let messages = [of_group("a", 6), of_group("b", 6), vec![delayed]].concat();
    let service = Repeating { ordered: true, ..service(10, messages).await };
    assert_eq!(looked(&service).await, 12);
    let receives = service.fake.calls().receive;
    assert!(receives >= 4, "the first group was received again: {receives}");
}
