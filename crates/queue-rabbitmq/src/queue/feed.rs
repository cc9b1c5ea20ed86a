//! The channel through which the server sends a queue's messages, and the tasks that take them and watch the clock.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use hostler_queue::QueueError;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, ChannelFlowOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::answer::{PATIENCE, answer, no_answer};
use super::shared::{Acks, Shared};
use crate::envelope::Mail;
use crate::fault::{is_missing, queue_error};
use crate::send::missing;
use crate::unacked::{Key, Unacked};

/// Interval at which the channel is looked at while messages are in hand. While nothing is received, no other sign tells that
/// the connection is lost.
const LOOK: Duration = Duration::from_secs(1);

/// Maximum sleep of the clock while no message is in hand.
const IDLE: Duration = Duration::from_secs(3600);

/// Number of messages that one receive passes over until it lets the server send more than one at a time: each is settled before
/// the next one comes.
const MOST_PASSED: usize = 64;

/// The messages that a receive call needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Maximum number of messages that it returns.
    pub(super) max: usize,
    /// Number of messages that came and could not be handed out.
    pub(super) passed: usize,
}

impl Need {
    /// Returns `true` if a window is too small, in which this number of messages may stay for long.
    fn exceeds(self, window: usize, busy: usize) -> bool {
        busy + self.max > window || self.passed >= MOST_PASSED
    }
}

/// A channel that receives a queue's messages.
pub(super) struct Feed {
    shared: Arc<Shared>,
    acks: Acks,
    /// Takes messages. `None`: the server sends none, or will soon send no more.
    inflow: Option<Inflow>,
    /// The end of the last consumer, which the server has not yet confirmed.
    stopping: JoinSet<lapin::Result<()>>,
    /// Set if a rest did not wait for the end of the consumer.
    is_late: Arc<AtomicBool>,
    /// Set if nothing is to be received for a while.
    rests: bool,
    /// Tasks that live as long as the channel.
    _watches: JoinSet<()>,
    /// Tell whether these tasks work.
    watching: [AbortHandle; 2],
}

/// A consumer on the server, and the task that takes its messages.
struct Inflow {
    consumer: Consumer,
    /// Smallest tag of its messages.
    from: u64,
    /// Number of messages that the server may send it ahead.
    window: u16,
    pump: JoinSet<()>,
    /// Tells whether the pump works.
    pumping: AbortHandle,
}

/// The means to learn what the server has.
pub(super) struct Glance {
    shared: Arc<Shared>,
    acks: Acks,
    /// The consumer, and whether its pump works.
    consumer: Option<(Consumer, AbortHandle)>,
    from: u64,
    window: u16,
}

impl Feed {
    /// Begins to receive through a channel. `probe`: another channel of its connection, on which nothing else is asked. `window`:
    /// number of messages that the server may send ahead.
    ///
    /// # Errors
    /// The queue is missing or refused, or the server does not answer. The channel has ended.
    pub(super) async fn open(
        shared: &Arc<Shared>,
        channel: Channel,
        probe: Channel,
        window: u16,
    ) -> Result<Self, QueueError> {
        let acks = shared.open(channel);
        let mut watches = JoinSet::new();
        let watching = [
            watches.spawn(watch_clock(Arc::clone(shared), acks.clone())),
            watches.spawn(watch_link(Arc::clone(shared), acks.number, probe)),
        ];
        let (shared, stopping, is_late) = (Arc::clone(shared), JoinSet::new(), Arc::default());
        let mut feed =
            Self { shared, acks, inflow: None, stopping, is_late, rests: false, _watches: watches, watching };
        feed.resume(window).await?;
        Ok(feed)
    }

    /// Asks the server for messages, and for at most `window` ahead.
    async fn begin(&mut self, window: u16) -> Result<(), QueueError> {
        let (channel, number) = (&self.acks.channel, self.acks.number);
        let queue = self.shared.source.queue.as_str();
        let failed = |error: lapin::Error| cannot_receive(&self.shared, &error);
        answer(channel.basic_qos(window, BasicQosOptions::default()), failed).await?;
        let (tag, options, arguments) = ("".into(), BasicConsumeOptions::default(), FieldTable::default());
        let from = self.shared.lock().unacked.next_tag();
        let consumer = answer(channel.basic_consume(queue.into(), tag, options, arguments), failed).await?;
        let mut pump = JoinSet::new();
        let pumping = pump.spawn(run_pump(Arc::clone(&self.shared), consumer.clone(), number));
        self.inflow = Some(Inflow { consumer, from, window, pump, pumping });
        Ok(())
    }

    /// Asks the server for no more messages, and takes those that were sent before it took notice. Returns `false` if the server
    /// does not answer in time: a queue without a leader keeps its channel waiting, while the leases are still good. The answer
    /// is then waited for by a task.
    ///
    /// # Errors
    /// The channel does not work.
    async fn stop(&mut self) -> Result<bool, QueueError> {
        if let Some(Inflow { mut consumer, mut pump, .. }) = self.inflow.take() {
            pump.shutdown().await;
            let (shared, acks, is_late) = (Arc::clone(&self.shared), self.acks.clone(), Arc::clone(&self.is_late));
            self.stopping.spawn(async move {
                let cancelled = acks.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
                let _ = draw(&shared, &mut consumer, &mut Context::from_waker(Waker::noop()), acks.number);
                if is_late.load(Ordering::SeqCst) {
                    shared.give_back(shared.change(Unacked::rest)).await;
                }
                cancelled
            });
        }
        let Ok(stopped) = timeout(PATIENCE, self.stopping.join_next()).await else { return Ok(false) };
        let cancelled = stopped.unwrap_or(Ok(Ok(()))).unwrap_or_else(|error| Err(io::Error::other(error).into()));
        let queue = self.shared.source.queue.as_str();
        cancelled.map_err(|error| queue_error(&format!("cannot stop receiving from `{queue}`"), &error))?;
        Ok(true)
    }

    /// Asks the server for messages, after the last consumer has ended.
    async fn restart(&mut self, window: u16) -> Result<(), QueueError> {
        let stopped = self.stop().await;
        if !self.checked(stopped)? {
            return Err(no_answer());
        }
        let begun = self.begin(window).await;
        self.checked(begun)
    }

    /// Ends the channel if an operation on it has failed: what the server made of the operation is not known.
    fn checked<T>(&self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        result.inspect_err(|error| self.shared.end(self.acks.number, &error.to_string()))
    }

    /// Returns `true` if the channel and its tasks work, as far as is known.
    pub(super) fn is_alive(&self) -> bool {
        let pumping = self.inflow.iter().map(|inflow| &inflow.pumping);
        let mut tasks = self.watching.iter().chain(pumping);
        !tasks.any(AbortHandle::is_finished)
            && self.acks.channel.status().connected()
            && self.shared.is_current(self.acks.number)
    }

    /// Returns `true` if messages come.
    pub(super) fn is_receiving(&self) -> bool {
        self.is_alive() && self.inflow.is_some() && !self.rests
    }

    /// Ends the channel for a reason, if it has not ended. The server takes back its messages.
    pub(super) fn end(self, why: &str) {
        self.shared.end(self.acks.number, why);
    }

    /// Returns `true` if nothing is to be received for a while.
    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// Ends the rest. `window`: number of messages that the server may send ahead from now on.
    ///
    /// # Errors
    /// The queue is missing or refused, or the server does not answer. Except in the last case, the channel has ended.
    pub(super) async fn resume(&mut self, window: u16) -> Result<(), QueueError> {
        self.rests = false;
        self.is_late.store(false, Ordering::SeqCst);
        if self.inflow.is_some() { Ok(()) } else { self.restart(window).await }
    }

    /// Receives nothing more until [`Self::resume`]. Returns the messages that are not handed out, and must now be given back.
    /// An ordered queue keeps everything until nothing of it is in hand: given back, its messages would be delivered to another
    /// receiver, past those in hand.
    pub(super) async fn rest(&mut self) -> Vec<Key> {
        self.rests = true;
        if self.shared.source.ordered {
            return Vec::new();
        }
        let stopped = self.stop().await;
        match self.checked(stopped) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    queue = self.shared.source.queue,
                    "RabbitMQ does not confirm that it stops sending messages; what it sends until then goes back"
                );
                self.is_late.store(true, Ordering::SeqCst);
            }
            Err(error) => tracing::debug!(%error, "cannot rest"),
        }
        self.shared.change(Unacked::rest)
    }

    /// Returns `true` if the server may send as many messages ahead as the queue's window has.
    pub(super) fn is_wide(&self) -> bool {
        self.inflow.as_ref().is_some_and(|inflow| inflow.window >= self.shared.source.window)
    }

    /// Returns `true` if the consumer has no room for what a receive needs, or if its messages are of an ordered queue and all wait
    /// for the heads of their groups. Otherwise a group whose head is held would hold up all groups behind it.
    pub(super) fn lacks(&self, need: Need) -> bool {
        let (source, Some(inflow)) = (&self.shared.source, &self.inflow) else { return false };
        if self.rests {
            return false;
        }
        let state = self.shared.lock();
        let (from, window) = (inflow.from, usize::from(inflow.window));
        !self.is_wide() && need.exceeds(window, state.unacked.busy_from(from))
            || source.ordered && state.unacked.is_stuck(from, window)
    }

    /// Lets the server send more messages ahead if a receive lacks them, unless the queue rests.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub(super) async fn widen(&mut self, need: Need) -> Result<(), QueueError> {
        if !self.lacks(need) {
            return Ok(());
        }
        let source = &self.shared.source;
        tracing::debug!(queue = source.queue, "more messages are needed than the server sends ahead");
        let window = source.window;
        // The prefetch of a consumer cannot be changed. What it has stays here when it is cancelled.
        self.restart(window).await
    }

    /// Waits until the queue has every ack that was sent up to now. A quorum queue's acks wait in the channel while many others are
    /// not yet stored, and are given up if the channel closes.
    ///
    /// # Errors
    /// The channel does not work, or the server does not answer. The channel has ended: the acks may hold or not.
    pub(super) async fn flush(&self) -> Result<(), QueueError> {
        let flushed = self.ask_queue().await;
        self.checked(flushed)
    }

    /// Waits for answers that the queue gives after the acks before, with the news that these are stored. The channel reads the news
    /// before the next question, and then sends on the acks that waited.
    ///
    /// The questions are the begin and the end of a second consumer. The queue has a single active consumer, so the first one
    /// goes on, and the second gets a message only if there is no other: one at most, which stays here.
    async fn ask_queue(&self) -> Result<(), QueueError> {
        let (channel, queue) = (&self.acks.channel, self.shared.source.queue.as_str());
        let failed = |error: lapin::Error| queue_error(&format!("cannot settle messages of `{queue}`"), &error);
        answer(channel.basic_qos(1, BasicQosOptions::default()), failed).await?;
        let (tag, options, arguments) = ("".into(), BasicConsumeOptions::default(), FieldTable::default());
        let mut second = answer(channel.basic_consume(queue.into(), tag, options, arguments), failed).await?;
        answer(channel.basic_cancel(second.tag(), BasicCancelOptions::default()), failed).await?;
        let _ = draw(&self.shared, &mut second, &mut Context::from_waker(Waker::noop()), self.acks.number);
        answer(channel.channel_flow(ChannelFlowOptions { active: true }), failed).await.map(drop)
    }

    /// Returns the means to learn what the server has.
    pub(super) fn glance(&self) -> Glance {
        let (consumer, from, window) = match &self.inflow {
            Some(inflow) => (Some((inflow.consumer.clone(), inflow.pumping.clone())), inflow.from, inflow.window),
            None => (None, 0, self.shared.source.window),
        };
        Glance { shared: Arc::clone(&self.shared), acks: self.acks.clone(), consumer, from, window }
    }

    /// Closes the channel. The server takes back its messages.
    pub(super) async fn close(mut self) {
        self.shared.close(self.acks.number);
        if let Some(inflow) = &mut self.inflow {
            inflow.pump.shutdown().await;
        }
        self.acks.hang_up().await;
    }
}

impl Glance {
    /// Waits for an answer of the server, and takes the messages that came before. Returns `true` if more are on their way.
    ///
    /// # Errors
    /// The channel does not work.
    pub(super) async fn catch_up(&mut self) -> Result<bool, QueueError> {
        let (queue, options) = (self.shared.source.queue.as_str(), QueueDeclareOptions::durable().passive());
        let asked = self.acks.channel.queue_declare(queue.into(), options, FieldTable::default());
        let answered = answer(asked, |error| cannot_receive(&self.shared, &error)).await?;
        if let Some((consumer, pumping)) = &mut self.consumer {
            let drawn = draw(&self.shared, consumer, &mut Context::from_waker(Waker::noop()), self.acks.number);
            // The client library reports an end once, so the pump does not hear of it. `Feed::stop` ends the pump first.
            if let Poll::Ready(why) = drawn
                && !pumping.is_finished()
            {
                self.shared.end(self.acks.number, &why);
            }
        }
        let state = self.shared.lock();
        let is_full = state.unacked.len_from(self.from) >= usize::from(self.window);
        Ok(may_come(is_full, state.unacked.expects_returns(), answered.message_count()))
    }
}

/// Returns `true` if messages may be on their way. `is_full`: the server has sent as many ahead as it may. `ready`: number of
/// messages that it has.
fn may_come(is_full: bool, expects_returns: bool, ready: u32) -> bool {
    !is_full && (expects_returns || ready > 0)
}

fn cannot_receive(shared: &Shared, error: &lapin::Error) -> QueueError {
    let queue = &shared.source.queue;
    if is_missing(error) {
        missing(&format!("queue `{queue}`"), shared.service.options.create_missing)
    } else {
        queue_error(&format!("cannot receive from `{queue}`"), error)
    }
}

/// Takes messages until the server sends no more, and then ends the channel.
async fn run_pump(shared: Arc<Shared>, mut consumer: Consumer, number: u64) {
    let why = std::future::poll_fn(|cx| draw(&shared, &mut consumer, cx, number)).await;
    shared.end(number, &why);
}

/// Takes the messages that have come. Ready with the reason when there will be no more. The messages are taken and noted under
/// one lock, as two tasks may do so, and the order counts.
fn draw(shared: &Shared, consumer: &mut Consumer, cx: &mut Context<'_>, number: u64) -> Poll<String> {
    let is_ladder = |exchange: &str| shared.service.names.is_ladder(exchange);
    let ordered = shared.source.ordered;
    shared.change(|unacked| {
        loop {
            match Pin::new(&mut *consumer).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    return Poll::Ready("RabbitMQ cancelled the consumer; was the queue deleted?".to_owned());
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(error.to_string()),
                Poll::Ready(Some(Ok(_))) if unacked.channel() != number => {}
                Poll::Ready(Some(Ok(delivery))) => {
                    let now = SystemTime::now();
                    let mail = Mail::read(delivery, is_ladder, ordered, now);
                    let wait = mail.not_before.and_then(|at| at.duration_since(now).ok());
                    unacked.delivered(mail, wait.filter(|_| ordered), Instant::now());
                }
            }
        }
    })
}

/// Ends leases in time, and the channel when its connection is lost.
async fn watch_clock(shared: Arc<Shared>, acks: Acks) {
    while shared.is_current(acks.number) {
        let (due, is_in_use) = {
            let state = shared.lock();
            (state.unacked.next_due(), state.unacked.len() > 0)
        };
        let look = Instant::now() + if is_in_use { LOOK } else { IDLE };
        tokio::select! {
            () = sleep_until(due.map_or(look, |due| due.min(look))) => {}
            () = shared.sooner.notified() => continue,
        }
        if !acks.channel.status().connected() {
            return shared.end(acks.number, "the connection is lost");
        }
        let ended = shared.change(|unacked| unacked.tick(Instant::now()));
        if !ended.is_empty() {
            let shared = Arc::clone(&shared);
            // A task, because the clock must go on.
            tokio::spawn(async move { shared.expire(ended).await });
        }
    }
}

/// Ends the channel when the server has given no sign of life for an interval of heartbeats. The server itself takes a silent
/// client's messages back after two intervals, and the client library notices a silent server after two. The handlers must be
/// stopped before. The server is asked on a channel of its own, as it answers the questions of a channel in their order, and a
/// queue without a leader keeps its channel waiting.
async fn watch_link(shared: Arc<Shared>, number: u64, probe: Channel) {
    let half = shared.service.consuming.heartbeat(shared.service.options.heartbeat) / 2;
    loop {
        sleep(half).await;
        if shared.lock().unacked.len() == 0 {
            continue;
        }
        // The server answers this without asking a queue.
        match timeout(half, probe.channel_flow(ChannelFlowOptions { active: true })).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return shared.end(number, &error.to_string()),
            Err(_) => return shared.end(number, &format!("no sign of life for {:?}", 2 * half)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_to_a_full_window() {
        assert_eq!([may_come(true, true, 1), may_come(true, true, 0)], [false, false]);
        assert_eq!(
            [may_come(false, true, 0), may_come(false, false, 1), may_come(false, false, 0)],
            [true, true, false]
        );
    }

    #[test]
    fn a_probe_gets_past_many_messages_that_cannot_be_handed_out() {
        let exceeds = |max, passed, busy| Need { max, passed }.exceeds(1, busy);
        assert!(!exceeds(1, 0, 0) && !exceeds(1, MOST_PASSED - 1, 0));
        assert!(exceeds(1, MOST_PASSED, 0));
        assert!(exceeds(2, 0, 0) && exceeds(1, 0, 1), "there is no room");
    }
}
