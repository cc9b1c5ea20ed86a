//! The fake queue with what it does not have of itself: failing sends, slow bodies, batches as SQS hands them out.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hostler_ops::requeue::{Ended, MoveRequest, Report, run};
use hostler_queue::fake::FakeBroker;
use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, Depth, LeaseError, LeaseHandle, Limits, Link, Origin, Queue, QueueError,
    Receive, SendError, Sent, Settlement, Unsettled,
};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Message, Outgoing};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The fake, with sends that can be made to fail.
#[derive(Clone, Default)]
pub struct Service {
    pub fake: FakeBroker,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
pub struct Script {
    /// Results of the sends of a body before one works.
    pub answers: HashMap<String, VecDeque<SendError>>,
    /// Result of every send.
    pub dead: Option<QueueError>,
    /// The target knows no dedupe keys.
    pub keyless: bool,
    /// A copy of what is sent goes here too, as if its consumer dead-lettered it at once.
    pub back_to: Option<Channel>,
    /// The bodies of each call.
    pub calls: Vec<Vec<String>>,
    /// Queues say that they are ordered, and yet hand out several messages of a group at once, as SQS does.
    pub says_ordered: bool,
    /// Ten messages come to the queue before each receive.
    pub flooded: bool,
    /// Time to load a body that is stored elsewhere.
    pub load: Duration,
}

#[async_trait]
impl Broker for Service {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        self.fake.open(spec).await
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.fake.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.fake.link()
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let mut answers = Vec::new();
        self.script.lock().unwrap().calls.push(batch.iter().map(|message| body(&message.body)).collect());
        for message in batch {
            let (failure, back_to) = self.script.lock().unwrap().answer(&message);
            let copy = message.clone();
            match failure {
                Some(error) => answers.push(Err(error)),
                None => answers.push(self.fake.send(channel, vec![message]).await.remove(0)),
            }
            if let Some(back_to) = back_to {
                self.fake.send(&back_to, vec![Outgoing { dedupe: None, ..copy }]).await;
            }
        }
        answers
    }
}

#[async_trait]
impl Admin for Service {
    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        self.fake.each_depth(channels).await
    }

    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        self.fake.channels().await
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let queue = self.fake.open_stored(channel).await?;
        let script = self.script.lock().unwrap();
        let flood = script.flooded.then(|| (self.fake.clone(), channel.clone()));
        Ok(Arc::new(Stored { queue, load: script.load, says_ordered: script.says_ordered, flood }))
    }
}

impl Script {
    fn answer(&mut self, message: &Outgoing) -> (Option<SendError>, Option<Channel>) {
        let scripted = self.answers.get_mut(&body(&message.body)).and_then(VecDeque::pop_front);
        let no_keys = || SendError::Invalid(Invalid::DedupeUnsupported("no keys here"));
        let keyless = (self.keyless && message.dedupe.is_some()).then(no_keys);
        let failure = self.dead.clone().map(SendError::Queue).or(keyless).or(scripted);
        (failure, self.back_to.clone())
    }
}

/// A queue whose bodies may lie elsewhere.
struct Stored {
    queue: Arc<dyn Queue>,
    load: Duration,
    says_ordered: bool,
    flood: Option<(FakeBroker, Channel)>,
}

#[async_trait]
impl Queue for Stored {
    fn limits(&self) -> Limits {
        self.queue.limits()
    }

    fn is_ordered(&self) -> bool {
        self.says_ordered || self.queue.is_ordered()
    }

    fn origin(&self) -> Origin {
        self.queue.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if let Some((fake, channel)) = &self.flood {
            fake.send(channel, vec![Outgoing::default(); 10]).await;
        }
        self.queue.receive(request, stop).await
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.queue.extend(leases, by).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.queue.settle(batch).await
    }

    async fn rest(&self) {
        self.queue.rest().await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.queue.taken_back().await
    }

    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        let Some(claim) = &message.claim else { return Ok(Arc::clone(message)) };
        sleep(self.load).await;
        match claim.key.as_str() {
            "gone" => Err("there is no such object".into()),
            key => Ok(Arc::new(Message { body: key.to_owned().into(), ..Message::clone(message) })),
        }
    }
}

impl Service {
    /// With a queue `jobs-dlq` that holds messages, and an empty queue `jobs`.
    pub async fn with(ordered: bool, messages: impl IntoIterator<Item = Outgoing>) -> Self {
        let service = Self::default();
        for queue in ["jobs", "jobs-dlq"] {
            service.open(&ChannelSpec { ordered, ..ChannelSpec::new(channel(queue)) }).await.unwrap();
        }
        for sent in service.fake.send(&channel("jobs-dlq"), messages.into_iter().collect()).await {
            sent.unwrap();
        }
        service
    }

    /// Changes what the service does from now on.
    pub fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    /// Runs an order to its end.
    pub async fn run(&self, order: MoveRequest) -> (Report, Ended) {
        run(self, order, &CancellationToken::new(), &mut |_| {}).await.unwrap()
    }

    /// The bodies that were sent, call by call.
    pub fn calls(&self) -> Vec<Vec<String>> {
        self.script.lock().unwrap().calls.clone()
    }

    /// Receives the visible messages of a queue, with a lease that lasts.
    pub async fn take(&self, queue: &str) -> Vec<Delivery> {
        let queue = self.fake.open_stored(&channel(queue)).await.unwrap();
        let request = Receive { max: usize::MAX, wait: Duration::ZERO, lease: DAY };
        queue.receive(request, &CancellationToken::new()).await.unwrap()
    }

    /// The bodies of what a queue shows.
    pub async fn bodies(&self, queue: &str) -> Vec<String> {
        self.take(queue).await.iter().map(|delivery| body(&delivery.message.body)).collect()
    }

    /// Number of visible messages of a queue.
    pub async fn visible(&self, queue: &str) -> u64 {
        self.fake.depths(&[channel(queue)]).await.unwrap()[0].visible
    }
}

pub fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

pub fn body(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
