//! One queue for its consumer.

mod feed;
mod settle;
mod triage;
mod turn;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};
use hostler_types::channel::{Channel, Filter};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::feed::Feed;
use super::Service;
use super::ladder;
use super::unacked::Unacked;

/// Limits of this driver. The server limits a lease (`consumer_timeout`, 30 minutes by default) by taking the message back.
const LIMITS: Limits = Limits {
    receive_batch: 64,
    settle_batch: 64,
    settle_linger: Duration::ZERO,
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 1,
    max_release: ladder::MAX_DELAY,
};

/// Maximum time for which a receive that must not wait does wait for messages that the server has, and that are on their way.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// Interval at which a host that stands by asks whether another still receives from an ordered queue.
const STAND_BY: Duration = Duration::from_secs(1);

/// What a consumer asks of its queue.
#[derive(Debug)]
pub(super) struct Source {
    /// The channel, for the story of dead letters.
    pub(super) channel: Channel,
    /// Name of the queue on the server.
    pub(super) queue: String,
    /// Name of the dead-letter queue on the server. `None`: there is none.
    pub(super) dead_letters: Option<String>,
    /// Number of attempts after which a message is dead-lettered when it is received again.
    pub(super) max_receives: Option<u32>,
    pub(super) ordered: bool,
    /// Exchange and filter, if the bindings let more messages pass than the filter.
    pub(super) loose: Option<(String, Filter)>,
    /// Number of messages that the server may send ahead.
    pub(super) window: u16,
}

/// State that the queue shares with the task that takes messages from the server.
pub(super) struct Shared {
    service: Arc<Service>,
    source: Source,
    held: Mutex<Held>,
    /// Notified after each change of the messages.
    changed: Notify,
    /// Notified when something is due earlier than before.
    sooner: Notify,
    /// Notified when leases were lost.
    lost: Notify,
}

/// The messages of the current channel, and the leases that the server took away.
pub(super) struct Held {
    unacked: Unacked,
    taken_back: Vec<LeaseHandle>,
    /// Reason why the last channel ended. `None`: it has not.
    ended: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the messages, and wakes those who wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut Unacked) -> T) -> T {
        let mut held = self.lock();
        let (before, changes) = (held.unacked.next_due(), held.unacked.changes());
        let result = change(&mut held.unacked);
        let (after, is_changed) = (held.unacked.next_due(), held.unacked.changes() != changes);
        drop(held);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.sooner.notify_one();
        }
        if is_changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Begins with a new channel, or ends the last one for a reason. Its leases are lost.
    fn begin(&self, ended: Option<String>) {
        let mut held = self.lock();
        let lost = held.unacked.begin();
        held.ended = ended;
        if !lost.is_empty() {
            tracing::warn!(
                queue = self.source.queue,
                leases = lost.len(),
                "RabbitMQ took back messages that are in hand"
            );
            held.taken_back.extend(lost);
            self.lost.notify_one();
        }
        drop(held);
        self.changed.notify_waiters();
    }

    /// Returns `true` if this is the queue with that name on the server.
    pub(super) fn reads(&self, queue: &str) -> bool {
        self.source.queue == queue
    }

    /// Returns the number of messages in this process that are visible: not handed out and not held back.
    pub(super) fn visible(&self) -> u64 {
        self.lock().unacked.waiting().0 as u64
    }
}

/// An opened queue. Receives nothing from the server until the first receive.
pub(super) struct RabbitQueue {
    shared: Arc<Shared>,
    /// The channel. `None`: nothing is received now. Held for the time of an operation on the channel.
    feed: tokio::sync::Mutex<Option<Feed>>,
}

impl RabbitQueue {
    pub(super) fn new(service: Arc<Service>, source: Source) -> Self {
        let held = Held { unacked: Unacked::new(source.ordered), taken_back: Vec::new(), ended: None };
        let (changed, sooner, lost) = (Notify::new(), Notify::new(), Notify::new());
        let shared = Shared { service, source, held: Mutex::new(held), changed, sooner, lost };
        Self { shared: Arc::new(shared), feed: tokio::sync::Mutex::default() }
    }

    /// Returns the shared state, for counting.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes sure that messages come. Opens a channel if there is none. Returns `false` if another host still receives from the
    /// ordered queue at `deadline`.
    async fn listen(&self, deadline: Instant) -> Result<bool, QueueError> {
        loop {
            let mut feed = self.feed.lock().await;
            if feed.as_ref().is_some_and(|feed| !feed.is_alive()) {
                *feed = None;
            }
            if let Some(feed) = &mut *feed {
                return feed.resume().await.map(|()| true);
            }
            if !self.shared.source.ordered || turn::take(&self.shared, deadline).await? {
                *feed = Some(Feed::open(&self.shared, deadline).await?);
                return Ok(true);
            }
            drop(feed);
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep_until(deadline.min(Instant::now() + STAND_BY)).await;
        }
    }

    /// Waits for messages that the server has and that are on their way, at most for a short time. Fails if the channel does
    /// not work, so an empty receive after it is proof that the link lives.
    async fn catch_up(&self) -> Result<(), QueueError> {
        let deadline = Instant::now() + ON_ITS_WAY;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let ready = {
                let feed = self.feed.lock().await;
                let Some(feed) = &*feed else { return Err(self.ended()) };
                feed.catch_up().await?
            };
            let (expects, is_full) = {
                let held = self.shared.lock();
                (held.unacked.expects_returns(), held.unacked.len() >= usize::from(self.shared.source.window))
            };
            if !expects && (ready == 0 || is_full) {
                return Ok(());
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(deadline) => {
                    self.shared.change(Unacked::give_up_returns);
                    return Ok(());
                }
            }
        }
    }

    /// Returns the error for a channel that has ended.
    fn ended(&self) -> QueueError {
        let why = self.shared.lock().ended.clone();
        QueueError::Unavailable(why.unwrap_or_else(|| "the channel to RabbitMQ has ended".to_owned()))
    }

    /// Hands out messages that are ready.
    async fn take(&self, max: usize, lease: Duration) -> Vec<Delivery> {
        let (deliveries, others) = triage::take(&self.shared, max, lease);
        if !others.is_empty() {
            self.dispose(others).await;
        }
        deliveries
    }

    /// Closes the channel of an ordered queue that rests, once nothing of it is in hand. The server then has all messages at
    /// once, in their order, before another receiver gets one.
    async fn close_if_idle(&self) {
        let mut feed = self.feed.lock().await;
        let is_over = feed.as_ref().is_some_and(Feed::rests) && self.shared.lock().unacked.is_idle();
        if is_over && let Some(feed) = feed.take() {
            self.shared.begin(None);
            feed.close().await;
            turn::release(&self.shared).await;
        }
    }
}

#[async_trait]
impl Queue for RabbitQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        self.shared.source.ordered
    }

    fn origin(&self) -> Origin {
        self.shared.service.origin(&self.shared.source.channel)
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + request.wait.min(LIMITS.max_wait);
        let max = request.max.clamp(1, LIMITS.receive_batch);
        tokio::select! {
            listening = self.listen(deadline) => if !listening? { return Ok(Vec::new()) },
            () = stop.cancelled() => return Ok(Vec::new()),
        }
        if request.wait.is_zero() {
            self.catch_up().await?;
        }
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let taken = self.take(max, request.lease).await;
            if !taken.is_empty() || stop.is_cancelled() {
                return Ok(taken);
            }
            if self.shared.lock().ended.is_some() {
                return Err(self.ended());
            }
            if Instant::now() >= deadline {
                self.catch_up().await?;
                return Ok(self.take(max, request.lease).await);
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(deadline) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let now = Instant::now();
        self.shared.change(|unacked| leases.iter().map(|lease| unacked.extend(lease, now + by, now)).collect())
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let settled = self.settle_all(batch).await;
        if self.shared.source.ordered {
            self.close_if_idle().await;
        }
        settled
    }

    async fn rest(&self) {
        let mut feed = self.feed.lock().await;
        if let Some(feed) = &mut *feed {
            feed.rest().await;
        }
        drop(feed);
        if self.shared.source.ordered {
            self.close_if_idle().await;
        }
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        loop {
            let lost = self.shared.lost.notified();
            let taken = std::mem::take(&mut self.shared.lock().taken_back);
            if !taken.is_empty() {
                return taken;
            }
            lost.await;
        }
    }
}
