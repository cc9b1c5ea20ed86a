//! A queue in memory for tests: it redelivers for real, by tokio's clock, and fails when told to.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Broker, ChannelSpec, DEDUPE_WINDOW, DEFAULT_GROUP, Delivery, Depth, LeaseError, LeaseHandle, Limits, Origin, Queue,
    QueueError, Receipt, Receive, SendError, Sent, Settlement, Unsettled, dead_letter_attributes, no_queue,
};
use crate::channel::{Channel, Filter};
use crate::message::{MAX_ATTRIBUTES, Message, Outgoing, TraceContext};

/// The largest message that the fake takes, in bytes: body and attributes (as SQS, 1 MiB).
pub const MAX_MESSAGE: usize = 1024 * 1024;

/// What the fake takes in one call unless it is told otherwise; as SQS.
pub const LIMITS: Limits = Limits {
    receive_batch: 10,
    settle_batch: 10,
    settle_linger: Duration::from_millis(100),
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 4,
};

/// How often each kind of call was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// [`Queue::receive`].
    pub receive: usize,
    /// [`Queue::extend`].
    pub extend: usize,
    /// [`Queue::settle`].
    pub settle: usize,
}

/// How a message was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Removed.
    Ack,
    /// Visible again after this long.
    Release(Duration),
    /// Moved to the dead-letter queue for this reason.
    DeadLetter(String),
}

/// A settlement or extension that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged<T> {
    /// The message's id.
    pub id: String,
    /// Which delivery of the message it was; 1 is the first.
    pub attempt: u32,
    /// When, by tokio's clock.
    pub at: Instant,
    /// What was done: an [`Ending`], or by how long a lease was extended.
    pub what: T,
}

/// All queues of the fake, and the handles to make them fail.
#[derive(Debug, Clone)]
pub struct FakeBroker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// The same moment by both clocks.
    epoch: (Instant, SystemTime),
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<String, Vec<Entry>>,
    ordered: BTreeMap<String, bool>,
    subscriptions: BTreeMap<(String, String), Filter>,
    /// Dedupe keys by scope and key: the first message's id, and when it was sent.
    keys: HashMap<(String, String), (String, Instant)>,
    next: u64,
    calls: Calls,
    settled: Vec<Logged<Ending>>,
    extended: Vec<Logged<Duration>>,
    failing_receives: VecDeque<QueueError>,
    failing_extends: VecDeque<LeaseError>,
    failing_settles: VecDeque<LeaseError>,
    failing_entries: HashMap<String, VecDeque<LeaseError>>,
    settles_held: bool,
}

#[derive(Debug)]
struct Entry {
    message: Arc<Message>,
    visible_at: Instant,
    lease: Option<u64>,
    attempts: u32,
}

impl Entry {
    fn is_leased(&self, now: Instant) -> bool {
        self.lease.is_some() && self.visible_at > now
    }
}

impl Default for FakeBroker {
    fn default() -> Self {
        Self::new(LIMITS)
    }
}

impl FakeBroker {
    /// A fake whose queues have these limits.
    pub fn new(limits: Limits) -> Self {
        let epoch = (Instant::now(), SystemTime::now());
        Self(Arc::new(Shared { limits, epoch, state: Mutex::default(), changed: Notify::new() }))
    }

    /// The next `count` receives fail.
    pub fn fail_receives(&self, count: usize, error: &QueueError) {
        self.0.lock().failing_receives.extend(vec![error.clone(); count]);
    }

    /// The next `count` extend calls fail for all their entries.
    pub fn fail_extends(&self, count: usize, error: &LeaseError) {
        self.0.lock().failing_extends.extend(vec![error.clone(); count]);
    }

    /// The next `count` settle calls fail for all their entries.
    pub fn fail_settles(&self, count: usize, error: &LeaseError) {
        self.0.lock().failing_settles.extend(vec![error.clone(); count]);
    }

    /// The next `count` entries for this message fail, in whichever extend or settle call they are.
    pub fn fail_message(&self, id: &str, count: usize, error: &LeaseError) {
        self.0.lock().failing_entries.entry(id.to_owned()).or_default().extend(vec![error.clone(); count]);
    }

    /// Lets the message's lease end now, in every queue that has it.
    pub fn expire(&self, id: &str) {
        let mut state = self.0.lock();
        for entry in state.queues.values_mut().flatten().filter(|entry| entry.message.id == id) {
            entry.lease = None;
            entry.visible_at = entry.visible_at.min(Instant::now());
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// While held, settle calls wait before they do anything.
    pub fn hold_settles(&self, held: bool) {
        self.0.lock().settles_held = held;
        self.0.changed.notify_waiters();
    }

    /// How often it was called, failed calls included.
    pub fn calls(&self) -> Calls {
        self.0.lock().calls
    }

    /// The settlements that took effect, in their order.
    pub fn settled(&self) -> Vec<Logged<Ending>> {
        self.0.lock().settled.clone()
    }

    /// The extensions that took effect, in their order.
    pub fn extended(&self) -> Vec<Logged<Duration>> {
        self.0.lock().extended.clone()
    }

    /// Returns once at least `count` settlements have taken effect.
    pub async fn until_settled(&self, count: usize) {
        self.0.until(|state| state.settled.len() >= count).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a change makes `reached` true.
    async fn until(&self, reached: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if reached(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn wall_clock(&self, at: Instant) -> SystemTime {
        self.epoch.1 + at.saturating_duration_since(self.epoch.0)
    }
}

#[async_trait]
impl Broker for FakeBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let mut state = self.0.lock();
        state.declare(spec.channel.queue(), spec.ordered);
        if spec.max_receives.is_some() {
            state.declare(&spec.channel.dead_letter_queue(), spec.ordered);
        }
        if let Some(exchange) = spec.channel.exchange() {
            let subscription = (exchange.to_owned(), spec.channel.queue().to_owned());
            state.subscriptions.insert(subscription, spec.filter.clone());
        }
        drop(state);
        Ok(Arc::new(FakeQueue { shared: self.0.clone(), spec: spec.clone() }))
    }

    fn origin(&self, _: &Channel) -> Origin {
        Origin::default()
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let now = Instant::now();
        let mut state = self.0.lock();
        let sent = batch
            .into_iter()
            .map(|mut message| {
                message.validate(MAX_MESSAGE)?;
                message.carry_trace(MAX_ATTRIBUTES);
                Ok(state.send(channel, message, now, self.0.wall_clock(now)))
            })
            .collect();
        drop(state);
        self.0.changed.notify_waiters();
        sent
    }

    async fn depths(&self, channels: &[Channel]) -> Result<Vec<Depth>, QueueError> {
        let now = Instant::now();
        let state = self.0.lock();
        Ok(channels.iter().map(|channel| state.depth(channel, now, self.0.wall_clock(now))).collect())
    }

    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        let state = self.0.lock();
        let name = |queue: &String| match state.subscriptions.keys().find(|(_, subscribed)| subscribed == queue) {
            Some((exchange, _)) => format!("{exchange}.{queue}"),
            None => queue.clone(),
        };
        Ok(state.queues.keys().filter_map(|queue| name(queue).parse().ok()).collect())
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let state = self.0.lock();
        if !state.queues.contains_key(channel.queue()) {
            return Err(no_queue(channel));
        }
        let spec = ChannelSpec { ordered: state.is_ordered(channel.queue()), ..ChannelSpec::new(channel.clone()) };
        Ok(Arc::new(FakeQueue { shared: self.0.clone(), spec }))
    }

    async fn look(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let state = self.0.lock();
        let entries = state.queues.get(channel.queue()).ok_or_else(|| no_queue(channel))?;
        let _ = entries.iter().try_for_each(|entry| each(&entry.message));
        Ok(true)
    }
}

impl State {
    fn declare(&mut self, queue: &str, ordered: bool) {
        self.queues.entry(queue.to_owned()).or_default();
        self.ordered.insert(queue.to_owned(), ordered);
    }

    fn entries(&self, queue: &str) -> &[Entry] {
        self.queues.get(queue).map_or(&[], Vec::as_slice)
    }

    fn is_ordered(&self, queue: &str) -> bool {
        self.ordered.get(queue).is_some_and(|ordered| *ordered)
    }

    fn send(&mut self, channel: &Channel, message: Outgoing, now: Instant, enqueued_at: SystemTime) -> Sent {
        let (scope, queues) = self.route(channel, message.routing_key.as_deref());
        self.next += 1;
        let id = format!("fake-{}", self.next);
        if let Some(key) = message.dedupe.clone() {
            self.keys.retain(|_, (_, sent_at)| now < *sent_at + DEDUPE_WINDOW);
            let (first, _) = self.keys.entry((scope, key)).or_insert_with(|| (id.clone(), now));
            if *first != id {
                return Sent { id: first.clone(), queues: Some(0) };
            }
        }
        let Outgoing { body, attributes, routing_key, delay, group, claim, .. } = message;
        let trace = TraceContext::of(&attributes).map(Arc::new);
        let original =
            Message { id: id.clone(), body: body.into(), attributes, enqueued_at, group, routing_key, claim, trace };
        for queue in &queues {
            let mut copy = original.clone();
            copy.group = copy.group.or(self.is_ordered(queue).then(|| DEFAULT_GROUP.to_owned()));
            self.put(queue, Arc::new(copy), now + delay);
        }
        Sent { id, queues: Some(queues.len()) }
    }

    /// The scope of dedupe keys, and the queues that a message reaches.
    fn route(&mut self, channel: &Channel, routing_key: Option<&str>) -> (String, Vec<String>) {
        let queue = channel.queue().to_owned();
        let exchange = match channel.exchange() {
            Some(exchange) => {
                self.queues.entry(queue.clone()).or_default();
                self.subscriptions.entry((exchange.to_owned(), queue)).or_default();
                exchange
            }
            None if self.queues.contains_key(&queue) || !self.subscriptions.keys().any(|(name, _)| *name == queue) => {
                self.queues.entry(queue.clone()).or_default();
                return (format!("queue {queue}"), vec![queue]);
            }
            None => channel.queue(),
        };
        let subscribed = self.subscriptions.iter().filter(|((name, _), _)| name == exchange);
        let passing = subscribed.filter(|(_, filter)| filter.passes(routing_key));
        (format!("exchange {exchange}"), passing.map(|((_, queue), _)| queue.clone()).collect())
    }

    fn put(&mut self, queue: &str, message: Arc<Message>, visible_at: Instant) {
        let entry = Entry { message, visible_at, lease: None, attempts: 0 };
        self.queues.entry(queue.to_owned()).or_default().push(entry);
    }

    fn depth(&self, channel: &Channel, now: Instant, wall_clock: SystemTime) -> Depth {
        let entries = self.entries(channel.queue());
        let waits = entries.iter().filter(|entry| entry.visible_at > now).count();
        let in_flight = entries.iter().filter(|entry| entry.is_leased(now)).count();
        Depth {
            visible: (entries.len() - waits) as u64,
            delayed: (waits - in_flight) as u64,
            in_flight: in_flight as u64,
            dead_lettered: self.entries(&channel.dead_letter_queue()).len() as u64,
            oldest_age: entries.iter().map(|entry| entry.message.age(wall_clock)).max(),
        }
    }

    /// The first message that may be received, with its place in the queue; else when to look again.
    fn next(&self, queue: &str, now: Instant) -> Result<usize, Option<Instant>> {
        let ordered = self.is_ordered(queue);
        let mut groups = HashSet::new();
        let candidates = self.entries(queue).iter().enumerate().filter_map(|(place, entry)| {
            let is_head = groups.insert(entry.message.group.as_deref());
            (is_head || !ordered).then_some((entry.visible_at, place))
        });
        match candidates.min() {
            Some((visible_at, place)) if visible_at <= now => Ok(place),
            first => Err(first.map(|(visible_at, _)| visible_at)),
        }
    }

    fn take(&mut self, spec: &ChannelSpec, request: Receive, now: Instant) -> Vec<Delivery> {
        let queue = spec.channel.queue();
        let mut taken = Vec::new();
        while taken.len() < request.max
            && let Ok(place) = self.next(queue, now)
        {
            self.next += 1;
            let lease = self.next;
            let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { break };
            if spec.max_receives.is_some_and(|max| entry.attempts >= max) {
                let reason = format!("received {} times without being settled", entry.attempts);
                self.bury(spec, place, &reason, now);
                continue;
            }
            entry.attempts += 1;
            entry.lease = Some(lease);
            entry.visible_at = now + request.lease;
            let receipt = Receipt::new(lease.to_string());
            taken.push(Delivery { message: entry.message.clone(), receipt, attempt: entry.attempts, leased_at: now });
        }
        taken
    }

    fn bury(&mut self, spec: &ChannelSpec, place: usize, reason: &str, now: Instant) {
        let Some(entries) = self.queues.get_mut(spec.channel.queue()) else { return };
        let entry = entries.remove(place);
        let mut copy = Message::clone(&entry.message);
        copy.attributes =
            dead_letter_attributes(&copy.attributes, reason, &spec.channel.to_string(), entry.attempts, MAX_ATTRIBUTES);
        self.put(&spec.channel.dead_letter_queue(), Arc::new(copy), now);
    }

    /// The place of the message that is leased under this receipt, unless it is scripted to fail.
    fn leased(&mut self, queue: &str, receipt: &str, now: Instant) -> Result<usize, LeaseError> {
        let lost = || LeaseError::Lost("it has ended, or the message was settled".to_owned());
        let lease: u64 = receipt.parse().map_err(|_| lost())?;
        let mut entries = self.queues.get(queue).into_iter().flatten();
        let place = entries.position(|entry| entry.lease == Some(lease) && entry.is_leased(now)).ok_or_else(lost)?;
        let id = self.queues.get(queue).and_then(|entries| entries.get(place)).map(|entry| &entry.message.id);
        match id.and_then(|id| self.failing_entries.get_mut(id)).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(place),
        }
    }

    fn extend(&mut self, queue: &str, receipt: &str, by: Duration, now: Instant) -> Result<(), LeaseError> {
        let place = self.leased(queue, receipt, now)?;
        let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { return Ok(()) };
        entry.visible_at = now + by;
        self.extended.push(Logged { id: entry.message.id.clone(), attempt: entry.attempts, at: now, what: by });
        Ok(())
    }

    fn settle(&mut self, spec: &ChannelSpec, settlement: &Settlement, now: Instant) -> Result<(), LeaseError> {
        let queue = spec.channel.queue();
        let place = self.leased(queue, settlement.receipt().as_str(), now)?;
        let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { return Ok(()) };
        let (id, attempt) = (entry.message.id.clone(), entry.attempts);
        let what = match settlement {
            Settlement::Ack(_) => {
                self.queues.get_mut(queue).map(|entries| entries.remove(place));
                Ending::Ack
            }
            Settlement::Release(_, delay) => {
                entry.lease = None;
                entry.visible_at = now + *delay;
                Ending::Release(*delay)
            }
            Settlement::DeadLetter { .. } if spec.max_receives.is_none() => {
                return Err(LeaseError::Refused("the queue has no dead-letter queue".to_owned()));
            }
            Settlement::DeadLetter { reason, .. } => {
                self.bury(spec, place, reason, now);
                Ending::DeadLetter(reason.clone())
            }
        };
        self.settled.push(Logged { id, attempt, at: now, what });
        Ok(())
    }
}

#[derive(Debug)]
struct FakeQueue {
    shared: Arc<Shared>,
    spec: ChannelSpec,
}

impl FakeQueue {
    /// What can be taken now; if that is nothing, when to look again.
    fn take(&self, request: Receive) -> (Vec<Delivery>, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        let taken = state.take(&self.spec, request, now);
        (taken, state.next(self.spec.channel.queue(), now).err().flatten())
    }
}

#[async_trait]
impl Queue for FakeQueue {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    fn is_ordered(&self) -> bool {
        self.shared.lock().is_ordered(self.spec.channel.queue())
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        let failure = {
            let mut state = self.shared.lock();
            state.calls.receive += 1;
            state.failing_receives.pop_front()
        };
        if let Some(error) = failure {
            return Err(error);
        }
        let deadline = Instant::now() + request.wait;
        while !stop.is_cancelled() {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (taken, next) = self.take(request);
            if !taken.is_empty() || Instant::now() >= deadline {
                return Ok(taken);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(next.map_or(deadline, |next| next.min(deadline))) => {}
                () = stop.cancelled() => {}
            }
        }
        Ok(Vec::new())
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.calls.extend += 1;
        let failure = state.failing_extends.pop_front();
        let extend = |lease: &LeaseHandle| match &failure {
            Some(error) => Err(error.clone()),
            None => state.extend(self.spec.channel.queue(), lease.as_str(), by, now),
        };
        leases.iter().map(extend).collect()
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.shared.lock().calls.settle += 1;
        self.shared.until(|state| !state.settles_held).await;
        let now = Instant::now();
        let mut state = self.shared.lock();
        let failure = state.failing_settles.pop_front();
        let settle = |settlement: Settlement| {
            let settled = match &failure {
                Some(error) => Err(error.clone()),
                None => state.settle(&self.spec, &settlement, now),
            };
            settled.map_err(|error| Unsettled { settlement, error })
        };
        let settled = batch.into_iter().map(settle).collect();
        drop(state);
        self.shared.changed.notify_waiters();
        settled
    }
}
