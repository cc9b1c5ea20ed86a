//! One queue for its consumer.

mod answer;
mod feed;
mod settle;
mod shared;
mod triage;
mod turn;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};
use hostler_types::channel::{Channel, Filter};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::feed::{Feed, Need};
pub(super) use self::shared::Shared;
use super::Service;
use super::ladder;
use super::unacked::Unacked;

/// Limits of this driver. The server limits a lease (`consumer_timeout`, 30 minutes by default) by taking the message back.
pub(super) const LIMITS: Limits = Limits {
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

/// Interval at which a host that stands by asks whether another still receives from an ordered queue. Up to a quarter is left out
/// or added at random, so that hosts ask at different times.
const STAND_BY: Duration = Duration::from_secs(1);

/// The queue of a consumer, and the consumer's demands on it.
#[derive(Debug)]
pub(super) struct Source {
    /// The channel, for the story of dead letters.
    pub(super) channel: Channel,
    /// Set if a command uses the queue, and may end at once after a settlement.
    pub(super) is_for_command: bool,
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

/// An opened queue. Receives nothing from the server until the first receive.
#[derive(Clone)]
pub(super) struct RabbitQueue {
    shared: Arc<Shared>,
    /// The channel. `None`: nothing is received now. Held for the time of an operation on the channel, so a settlement does not
    /// wait for it.
    feed: Arc<Mutex<Option<Feed>>>,
}

impl RabbitQueue {
    pub(super) fn new(service: Arc<Service>, source: Source) -> Self {
        Self { shared: Arc::new(Shared::new(service, source)), feed: Arc::default() }
    }

    /// Returns the shared state, for counting.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes sure that messages come. Returns `false` if `stop` was cancelled, or if another host still receives from the
    /// ordered queue at `deadline`.
    async fn listen(&self, max: usize, deadline: Instant, stop: &CancellationToken) -> Result<bool, QueueError> {
        if self.feed.try_lock().is_ok_and(|feed| feed.as_ref().is_some_and(Feed::is_receiving)) {
            return Ok(true);
        }
        // A task, so that a stop ends only the wait. A consumer that was left half begun would get messages that nobody takes.
        let (queue, stopped) = (self.clone(), stop.clone());
        let opening = tokio::spawn(async move { queue.open(max, deadline, &stopped).await });
        tokio::select! {
            opened = opening => opened.unwrap_or_else(|error| Err(QueueError::Unavailable(error.to_string()))),
            () = stop.cancelled() => Ok(false),
        }
    }

    /// Opens a channel if there is none, and ends its rest. Begins nothing after `stop` was cancelled, because a rest may follow.
    async fn open(&self, max: usize, deadline: Instant, stop: &CancellationToken) -> Result<bool, QueueError> {
        loop {
            let mut feed = self.feed.lock().await;
            if stop.is_cancelled() {
                return Ok(false);
            }
            bury(&mut feed);
            if let Some(open) = &mut *feed {
                let resumed = open.resume(self.shared.window(max)).await;
                bury(&mut feed);
                return resumed.map(|()| true);
            }
            if !self.shared.source.ordered || self.takes_turn(deadline, stop).await? {
                let opened = self.open_feed(max, deadline, stop).await;
                if let Ok(Some(open)) = opened {
                    *feed = Some(open);
                    return Ok(true);
                }
                turn::release(&self.shared).await;
                return opened.map(|_| false);
            }
            drop(feed);
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::select! {
                () = sleep_until(deadline.min(Instant::now() + STAND_BY.mul_f64(0.75 + fastrand::f64() / 2.0))) => {}
                () = stop.cancelled() => return Ok(false),
            }
        }
    }

    async fn takes_turn(&self, deadline: Instant, stop: &CancellationToken) -> Result<bool, QueueError> {
        tokio::select! {
            channel = self.shared.service.consuming.channel(deadline) => turn::take(&self.shared, &channel?).await,
            () = stop.cancelled() => Ok(false),
        }
    }

    /// Begins to receive. `None`: `stop` was cancelled.
    async fn open_feed(
        &self,
        max: usize,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<Option<Feed>, QueueError> {
        let (channel, probe) = tokio::select! {
            channels = self.shared.service.consuming.two_channels(deadline) => channels?,
            () = stop.cancelled() => return Ok(None),
        };
        Feed::open(&self.shared, channel, probe, self.shared.window(max)).await.map(Some)
    }

    /// Waits for messages that the server has and that are on their way, at most for a short time. Fails if the channel does
    /// not work, so an empty receive after it is proof that the link lives.
    async fn catch_up(&self) -> Result<(), QueueError> {
        let deadline = Instant::now() + ON_ITS_WAY;
        let glance = self.feed.lock().await.as_ref().map(Feed::glance);
        let mut glance = glance.ok_or_else(|| self.shared.ended())?;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !glance.catch_up().await? {
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

    /// Hands out messages that are ready. Also returns the number of others, which are now being settled.
    fn take(&self, max: usize, lease: Duration) -> (Vec<Delivery>, usize) {
        let (deliveries, others) = triage::take(&self.shared, max, lease);
        let passed = others.len();
        if !others.is_empty() {
            let shared = Arc::clone(&self.shared);
            // A task, because the leases of the deliveries have begun.
            tokio::spawn(async move { shared.dispose(others).await });
        }
        (deliveries, passed)
    }

    /// Lets the server send more messages ahead if a receive with this need lacks them. Returns early if `stop` is cancelled.
    async fn widen(&self, need: Need, stop: &CancellationToken) -> Result<(), QueueError> {
        if !self.shared.source.ordered && !self.shared.is_narrow.load(Ordering::SeqCst) {
            return Ok(());
        }
        if let Ok(feed) = self.feed.try_lock()
            && let Some(feed) = &*feed
            && !feed.lacks(need)
        {
            self.note_width(feed);
            return Ok(());
        }
        // A task, so that a stop ends only the wait, as in `listen`.
        let (queue, stopped) = (self.clone(), stop.clone());
        let widening = tokio::spawn(async move { queue.widen_feed(need, &stopped).await });
        tokio::select! {
            widened = widening => widened.unwrap_or_else(|error| Err(QueueError::Unavailable(error.to_string()))),
            () = stop.cancelled() => Ok(()),
        }
    }

    /// Begins nothing after `stop` was cancelled, because a rest may follow.
    async fn widen_feed(&self, need: Need, stop: &CancellationToken) -> Result<(), QueueError> {
        let mut feed = self.feed.lock().await;
        if let Some(feed) = feed.as_mut().filter(|_| !stop.is_cancelled()) {
            feed.widen(need).await?;
            self.note_width(feed);
        }
        Ok(())
    }

    fn note_width(&self, feed: &Feed) {
        if feed.is_wide() && !feed.rests() {
            self.shared.is_narrow.store(false, Ordering::SeqCst);
        }
    }

    /// Waits until the queue has all acks, if a command has settled messages: the command may end next, and its channel with it. A
    /// consumer goes on.
    async fn flush(&self) -> Result<(), LeaseError> {
        if !self.shared.source.is_for_command {
            return Ok(());
        }
        let mut feed = self.feed.lock().await;
        let Some(feed) = &mut *feed else { return Err(LeaseError::Lost("the channel has ended".to_owned())) };
        feed.flush().await.map_err(|error| LeaseError::Lost(error.to_string()))
    }

    /// Closes the channel of an ordered queue that rests, once nothing of it is in hand. The server then has all messages at
    /// once, in their order, before another receiver gets one. The server counts that as a delivery of each. So a queue that
    /// rests again and again, and whose messages do not get on, is kept in the end.
    async fn close_if_idle(&self) {
        let mut feed = self.feed.lock().await;
        let may_close = |feed: &mut Feed| {
            let state = self.shared.lock();
            feed.rests() && state.unacked.is_idle() && !state.unacked.is_worn()
        };
        if let Some(feed) = feed.take_if(may_close) {
            feed.close().await;
        }
        // Without a channel, the turn may be left from an attempt to receive that failed.
        if feed.is_none() {
            turn::release(&self.shared).await;
        }
    }
}

/// Drops a dead channel. Its leases are lost now, whether there will be another channel or not.
fn bury(feed: &mut Option<Feed>) {
    if let Some(dead) = feed.take_if(|feed| !feed.is_alive()) {
        dead.end("the connection is lost");
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

    fn ids_repeat(&self) -> bool {
        true
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
        if !self.listen(max, deadline, stop).await? {
            return Ok(Vec::new());
        }
        if request.wait.is_zero() {
            self.catch_up().await?;
        }
        let mut need = Need { max, passed: 0 };
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (taken, passed) = self.take(max, request.lease);
            need.passed += passed;
            if !taken.is_empty() || stop.is_cancelled() {
                return Ok(taken);
            }
            if self.shared.lock().ended.is_some() {
                return Err(self.shared.ended());
            }
            self.widen(need, stop).await?;
            if Instant::now() >= deadline {
                self.catch_up().await?;
                return Ok(self.take(max, request.lease).0);
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
        let settled = self.shared.settle_all(batch, self.flush()).await;
        let rests = || self.feed.try_lock().is_ok_and(|feed| feed.as_ref().is_some_and(Feed::rests));
        if self.shared.source.ordered && rests() {
            let queue = self.clone();
            tokio::spawn(async move { queue.close_if_idle().await });
        }
        settled
    }

    async fn rest(&self) {
        let mut feed = self.feed.lock().await;
        self.shared.is_narrow.store(true, Ordering::SeqCst);
        let given_back = match &mut *feed {
            Some(feed) => feed.rest().await,
            None => Vec::new(),
        };
        bury(&mut feed);
        drop(feed);
        self.shared.give_back(given_back).await;
        if self.shared.source.ordered {
            self.close_if_idle().await;
        }
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.shared.taken_back().await
    }
}
