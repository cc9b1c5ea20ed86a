//! An in-memory queue service for tests. Leases and delays follow tokio's clock, which a test can control. A test can
//! also make calls fail.

mod records;
mod schedules;
mod state;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Admin, Broker, ChannelSpec, Commit, Delivery, Depth, LeaseError, LeaseHandle, Limits, Origin, Provisioner, Queue,
    QueueError, Receive, Records, Report, Schedules, SendError, Sent, Settlement, Unsettled, no_queue,
};
use hostler_types::channel::Channel;
use hostler_types::job::JobContext;
use hostler_types::message::{MAX_ATTRIBUTES, Message, Outgoing};
pub use records::{FakeRecord, FakeRecords};
use state::State;

/// Maximum size of a message in bytes, including attributes (1 MiB, as on SQS).
pub const MAX_MESSAGE: usize = 1024 * 1024;

/// Default limits of the fake, equal to the limits of SQS.
pub const LIMITS: Limits = Limits {
    receive_batch: 10,
    settle_batch: 10,
    settle_linger: Duration::from_millis(100),
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 4,
    max_release: Duration::from_secs(12 * 60 * 60),
};

/// Number of calls of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Number of calls of [`Queue::receive`].
    pub receive: usize,
    /// Number of calls of [`Queue::extend`].
    pub extend: usize,
    /// Number of calls of [`Queue::settle`].
    pub settle: usize,
    /// Number of calls of [`Queue::rest`].
    pub rest: usize,
}

/// The kind of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The message was removed.
    Ack,
    /// The message becomes visible again after the given delay.
    Release(Duration),
    /// The message was moved to the dead-letter queue. The field is the reason.
    DeadLetter(String),
}

/// A settlement or a lease extension that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged<T> {
    /// Id of the message.
    pub id: String,
    /// Delivery number of the message, from 1.
    pub attempt: u32,
    /// Time of the call, by tokio's clock.
    pub at: Instant,
    /// An [`Ending`], or the duration of a lease extension.
    pub what: T,
}

/// All queues of the fake service, with methods that make calls fail.
#[derive(Debug, Clone)]
pub struct FakeBroker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Time at which the service was created, by the monotonic clock and by the wall clock.
    epoch: (Instant, SystemTime),
    state: Mutex<State>,
    /// Records that acks commit to. Locked after `state`.
    records: FakeRecords,
    changed: Notify,
}

impl Default for FakeBroker {
    fn default() -> Self {
        Self::new(LIMITS)
    }
}

impl FakeBroker {
    /// Creates a fake service whose queues have the given limits.
    pub fn new(limits: Limits) -> Self {
        let epoch = (Instant::now(), SystemTime::now());
        let (state, records) = (Mutex::default(), FakeRecords::default());
        Self(Arc::new(Shared { limits, epoch, state, records, changed: Notify::new() }))
    }

    /// Returns the store of idempotency records that the acks of all queues commit to. [`Broker::records`] returns the same one.
    pub fn record_store(&self) -> FakeRecords {
        self.0.records.clone()
    }

    /// Makes the next `count` receive calls fail with `error`.
    pub fn fail_receives(&self, count: usize, error: &QueueError) {
        self.0.lock().failing_receives.extend(vec![error.clone(); count]);
    }

    /// Makes the next `count` extend calls fail for all their entries.
    pub fn fail_extends(&self, count: usize, error: &LeaseError) {
        self.0.lock().failing_extends.extend(vec![error.clone(); count]);
    }

    /// Makes the next `count` settle calls fail for all their entries.
    pub fn fail_settles(&self, count: usize, error: &LeaseError) {
        self.0.lock().failing_settles.extend(vec![error.clone(); count]);
    }

    /// Makes the next `count` entries for this message fail, in any extend or settle call.
    pub fn fail_message(&self, id: &str, count: usize, error: &LeaseError) {
        self.0.lock().failing_entries.entry(id.to_owned()).or_default().extend(vec![error.clone(); count]);
    }

    /// Sets [`Delivery::not_before`] to `at` in every delivery of this message.
    pub fn not_before(&self, id: &str, at: Instant) {
        self.0.lock().not_before.insert(id.to_owned(), at);
    }

    /// Sets [`Delivery::job`] to `job` in every delivery of this message.
    pub fn job(&self, id: &str, job: Arc<dyn JobContext>) {
        self.0.lock().jobs.insert(id.to_owned(), job);
    }

    /// Ends the leases of the message now, in all queues.
    pub fn expire(&self, id: &str) {
        let mut state = self.0.lock();
        for entry in state.queues.values_mut().flatten().filter(|entry| entry.message.id == id) {
            entry.lease = None;
            entry.visible_at = entry.visible_at.min(Instant::now());
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Takes the leases of the message away now, in all queues: the message becomes visible, and [`Queue::taken_back`]
    /// returns the leases.
    pub fn take_back(&self, id: &str) {
        self.0.lock().take_back(id);
        self.expire(id);
    }

    /// Blocks all settle calls while `held` is `true`.
    pub fn hold_settles(&self, held: bool) {
        self.0.lock().settles_held = held;
        self.0.changed.notify_waiters();
    }

    /// Keeps receive calls from returning the messages that they have received while `held` is `true`.
    pub fn hold_receives(&self, held: bool) {
        self.0.lock().receives_held = held;
        self.0.changed.notify_waiters();
    }

    /// Blocks all calls of [`Queue::rest`] while `held` is `true`.
    pub fn hold_rests(&self, held: bool) {
        self.0.lock().rests_held = held;
        self.0.changed.notify_waiters();
    }

    /// Returns the id of the first message with this body.
    ///
    /// # Panics
    /// No queue has such a message.
    pub fn id_of(&self, body: &[u8]) -> String {
        let state = self.0.lock();
        let mut messages = state.queues.values().flatten().map(|entry| &entry.message);
        #[expect(clippy::expect_used, reason = "the fake is for tests")]
        messages.find(|message| *message.body == *body).expect("no such message").id.clone()
    }

    /// Returns the number of calls, including failed calls.
    pub fn calls(&self) -> Calls {
        self.0.lock().calls
    }

    /// Returns the settlements that took effect, in order.
    pub fn settled(&self) -> Vec<Logged<Ending>> {
        self.0.lock().settled.clone()
    }

    /// Returns the lease extensions that took effect, in order.
    pub fn extended(&self) -> Vec<Logged<Duration>> {
        self.0.lock().extended.clone()
    }

    /// Waits until at least `count` settlements have taken effect.
    pub async fn until_settled(&self, count: usize) {
        self.0.until(|state| state.settled.len() >= count).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state satisfies `reached`.
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
        self.0.lock().establish(spec);
        Ok(Arc::new(FakeQueue { shared: self.0.clone(), spec: spec.clone() }))
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

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        Ok(self)
    }

    fn records(&self) -> Result<Arc<dyn Records>, QueueError> {
        Ok(Arc::new(self.record_store()))
    }

    fn origin(&self, _: &Channel) -> Origin {
        Origin::default()
    }
}

#[async_trait]
impl Admin for FakeBroker {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        let state = self.0.lock();
        let name = |queue: &String| match state.subscriptions.keys().find(|(_, subscribed)| subscribed == queue) {
            Some((exchange, _)) => format!("{exchange}.{queue}"),
            None => queue.clone(),
        };
        Ok(state.queues.keys().filter_map(|queue| name(queue).parse().ok()).collect())
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let now = Instant::now();
        let state = self.0.lock();
        Ok(channels.iter().map(|channel| Ok(state.depth(channel, now, self.0.wall_clock(now)))).collect())
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let state = self.0.lock();
        if !state.queues.contains_key(channel.queue()) {
            return Err(no_queue(channel));
        }
        let spec = ChannelSpec { ordered: state.is_ordered(channel.queue()), ..ChannelSpec::new(channel.clone()) };
        Ok(Arc::new(FakeQueue { shared: self.0.clone(), spec }))
    }

    async fn peek(
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

#[async_trait]
impl Provisioner for FakeBroker {
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.0.lock().declare(spec);
        Ok(())
    }
}

#[derive(Debug)]
struct FakeQueue {
    shared: Arc<Shared>,
    spec: ChannelSpec,
}

impl FakeQueue {
    /// Receives the messages that are visible now. The second value is the time at which the next message may become
    /// visible. It is `None` if another message is visible now, or if the queue is empty.
    fn take(&self, request: Receive) -> (Vec<Delivery>, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        let taken = state.take(&self.spec, request, now);
        (taken, state.next(self.spec.channel.queue(), now).err().flatten())
    }

    fn settle_one(&self, state: &mut State, settlement: &Settlement, now: Instant) -> Result<(), LeaseError> {
        match (settlement, settlement.receipt().report()) {
            (Settlement::Ack(receipt), Some(Report::Commit(commit))) => {
                state.leased(self.spec.channel.queue(), receipt.as_str(), now)?;
                self.commit(state, settlement, commit, now)
            }
            _ => state.settle(&self.spec, settlement, now),
        }
    }

    /// Acks a message whose lease is valid, and makes the other changes of the ack. If one of the changes cannot be made, makes none.
    fn commit(&self, state: &mut State, ack: &Settlement, commit: &Commit, now: Instant) -> Result<(), LeaseError> {
        for (_, message) in &commit.messages {
            message.validate(MAX_MESSAGE).map_err(|invalid| LeaseError::Unfit(invalid.to_string()))?;
        }
        if let Some(finish) = &commit.finish {
            self.shared.records.commit(finish, now)?;
        }
        state.settle(&self.spec, ack, now)?;
        for (channel, message) in &commit.messages {
            let mut message = message.clone();
            message.carry_trace(MAX_ATTRIBUTES);
            state.send(channel, message, now, self.shared.wall_clock(now));
        }
        Ok(())
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
                self.shared.until(|state| !state.receives_held).await;
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
                None => self.settle_one(&mut state, &settlement, now),
            };
            settled.map_err(|error| Unsettled { settlement, error })
        };
        let settled = batch.into_iter().map(settle).collect();
        drop(state);
        self.shared.changed.notify_waiters();
        settled
    }

    async fn rest(&self) {
        self.shared.lock().calls.rest += 1;
        self.shared.changed.notify_waiters();
        self.shared.until(|state| !state.rests_held).await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        let queue = self.spec.channel.queue();
        loop {
            self.shared.until(|state| state.taken_back.contains_key(queue)).await;
            if let Some(leases) = self.shared.lock().taken_back.remove(queue) {
                return leases;
            }
        }
    }
}
