//! State that a queue shares with its tasks: the messages of the current channel, the way to settle them, and the leases that were lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostler_queue::{LeaseHandle, QueueError};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use tokio::sync::Notify;

use super::Source;
use super::answer::answer;
use crate::Service;
use crate::fault::queue_error;
use crate::unacked::{Ack, Key, Unacked};

/// State that the queue shares with its tasks.
pub(in crate::queue) struct SharedState {
    pub(super) unacked: Unacked,
    /// The way to settle the messages. `None`: there is no channel.
    acks: Option<Acks>,
    taken_back: Vec<LeaseHandle>,
    /// Reason why the last channel ended. `None`: it has not, or it was closed.
    pub(super) ended: Option<String>,
}

/// The messages of a queue in this process. The tasks of the queue use it at the same time.
pub(crate) struct Shared {
    pub(super) service: Arc<Service>,
    pub(super) source: Source,
    state: Mutex<SharedState>,
    /// Notified after each change of the messages.
    pub(super) changed: Notify,
    /// Notified when something is due earlier than before.
    pub(super) sooner: Notify,
    /// Notified when leases were lost.
    lost: Notify,
    /// Set from a rest until the server may send as many messages ahead as the window has.
    pub(super) is_narrow: AtomicBool,
    /// Set once the server is known to dead-letter what is rejected.
    pub(super) has_net: AtomicBool,
    /// Set while this host may have the turn to receive from the ordered queue.
    pub(super) has_turn: AtomicBool,
}

/// The way to settle the messages of one channel.
#[derive(Clone)]
pub(super) struct Acks {
    pub(super) channel: Channel,
    pub(super) number: u64,
}

impl Acks {
    pub(super) async fn ack(&self, ack: Ack) -> lapin::Result<()> {
        self.channel.basic_ack(ack.tag, BasicAckOptions { multiple: ack.multiple }).await
    }

    /// Returns a message to its queue.
    pub(super) async fn requeue(&self, tag: u64) -> lapin::Result<()> {
        self.channel.basic_nack(tag, BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await
    }

    /// Rejects a message. The server dead-letters it, or, with `requeue`, returns it to its queue and counts a delivery.
    pub(super) async fn reject(&self, tag: u64, requeue: bool) -> lapin::Result<()> {
        self.channel.basic_reject(tag, BasicRejectOptions { requeue }).await
    }

    /// Closes the channel. The server takes back its messages.
    pub(super) async fn hang_up(&self) {
        let failed = |error: lapin::Error| queue_error("cannot close the channel", &error);
        if let Err(error) = answer(self.channel.close(200, "".into()), failed).await {
            tracing::debug!(%error, "the channel ends with the connection");
        }
    }

    /// Closes a channel that may work, without waiting for the answer. Otherwise the server would keep its messages for this
    /// process.
    fn abandon(self) {
        if self.channel.status().connected() {
            tokio::spawn(async move { self.hang_up().await });
        }
    }
}

impl Shared {
    pub(super) fn new(service: Arc<Service>, source: Source) -> Self {
        let unacked = Unacked::new(source.ordered);
        let unacked = if source.channel.of_dead_letters().is_some() { unacked.ignore_count() } else { unacked };
        let state = SharedState { unacked, acks: None, taken_back: Vec::new(), ended: None };
        let (changed, sooner, lost) = (Notify::new(), Notify::new(), Notify::new());
        let (is_narrow, has_net, has_turn) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        Self { service, source, state: Mutex::new(state), changed, sooner, lost, is_narrow, has_net, has_turn }
    }

    /// Returns the number of messages that the server may send ahead for a receive of `max` messages. After a rest, a receive of one
    /// message is often a breaker's probe: it brings no others along, as each that goes back counts as a delivery before 4.3.
    pub(super) fn window(&self, max: usize) -> u16 {
        let is_alone = max == 1 && self.is_narrow.load(Ordering::SeqCst);
        if is_alone { 1 } else { self.source.window }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the messages, and wakes those who wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Unacked) -> T) -> T {
        let mut state = self.lock();
        let (before, changes) = (state.unacked.next_due(), state.unacked.changes());
        let result = change(&mut state.unacked);
        let (after, is_changed) = (state.unacked.next_due(), state.unacked.changes() != changes);
        drop(state);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.sooner.notify_one();
        }
        if is_changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Begins with a new channel.
    pub(super) fn open(&self, channel: Channel) -> Acks {
        let mut state = self.lock();
        if let Some(old) = self.lose(&mut state) {
            old.abandon();
        }
        let acks = Acks { channel, number: state.unacked.channel() };
        (state.acks, state.ended) = (Some(acks.clone()), None);
        acks
    }

    /// Ends the channel with this number for a reason, unless it has ended. Its leases are lost.
    pub(super) fn end(&self, number: u64, why: &str) {
        let mut state = self.lock();
        if let Some(old) = self.renew(&mut state, number) {
            tracing::warn!(queue = self.source.queue, error = why, "RabbitMQ stopped sending messages");
            state.ended = Some(why.to_owned());
            old.abandon();
        }
    }

    /// Ends the channel with this number without a fault, unless it has ended. The caller closes it.
    pub(super) fn close(&self, number: u64) {
        let mut state = self.lock();
        if self.renew(&mut state, number).is_some() {
            state.ended = None;
        }
    }

    /// Ends the channel with this number, and returns it. `None`: it has ended.
    fn renew(&self, state: &mut SharedState, number: u64) -> Option<Acks> {
        let is_current = state.acks.as_ref().is_some_and(|acks| acks.number == number);
        if is_current { self.lose(state) } else { None }
    }

    /// Ends the channel, and returns it. `None`: there is none. The server takes its messages back, so their leases are lost.
    fn lose(&self, state: &mut SharedState) -> Option<Acks> {
        let lost = state.unacked.begin();
        let ended = state.acks.take();
        if !lost.is_empty() {
            tracing::warn!(
                queue = self.source.queue,
                leases = lost.len(),
                "RabbitMQ took back messages that are in hand"
            );
            state.taken_back.extend(lost);
            self.lost.notify_one();
        }
        self.changed.notify_waiters();
        ended
    }

    /// Returns `true` if the channel with this number is the current one.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.lock().acks.as_ref().is_some_and(|acks| acks.number == number)
    }

    /// Returns the way to settle messages, and the acks for those of them that are of the current channel. `None`: there is no
    /// channel, so the server has the messages again.
    pub(super) fn acks_for(&self, keys: &[Key]) -> Option<(Acks, Vec<Ack>)> {
        let state = self.lock();
        Some((state.acks.clone()?, state.unacked.acks(keys)))
    }

    /// Returns the error for a channel that has ended.
    pub(super) fn ended(&self) -> QueueError {
        let why = self.lock().ended.clone();
        QueueError::Unavailable(why.unwrap_or_else(|| "the channel to RabbitMQ has ended".to_owned()))
    }

    /// Waits for leases that were lost, and returns them.
    pub(super) async fn taken_back(&self) -> Vec<LeaseHandle> {
        loop {
            let lost = self.lost.notified();
            let taken = std::mem::take(&mut self.lock().taken_back);
            if !taken.is_empty() {
                return taken;
            }
            lost.await;
        }
    }

    /// Returns `true` if this is the queue with that name on the server.
    pub(crate) fn reads(&self, queue: &str) -> bool {
        self.source.queue == queue
    }

    /// Returns the number of messages in this process that are visible: not handed out and not held back.
    pub(crate) fn visible(&self) -> u64 {
        self.lock().unacked.waiting().0 as u64
    }
}
