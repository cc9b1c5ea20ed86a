//! The channel through which the server sends a queue's messages, and the tasks that take them and watch the clock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use hostler_queue::QueueError;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, ChannelFlowOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Shared;
use crate::envelope::Mail;
use crate::fault::{is_missing, queue_error};
use crate::send::missing;
use crate::unacked::Unacked;

/// Interval at which the channel is looked at while messages are in hand. While nothing is received, no other sign tells that
/// the connection is lost.
const LOOK: Duration = Duration::from_secs(1);

/// Maximum sleep of the clock while no message is in hand.
const IDLE: Duration = Duration::from_secs(3600);

/// A channel that receives a queue's messages.
pub(super) struct Feed {
    shared: Arc<Shared>,
    acks: Acks,
    /// Takes messages. `None`: the server sends none.
    source: Option<Consumer>,
    /// Set if nothing is to be received for a while.
    rests: bool,
    pump: JoinSet<()>,
    /// Tasks that live as long as the channel.
    _watches: JoinSet<()>,
}

/// The way to settle the messages of a channel.
#[derive(Clone)]
pub(super) struct Acks {
    channel: Channel,
    number: u64,
}

impl Acks {
    /// Returns `true` if this is the channel with that number.
    pub(super) fn are_of(&self, number: u64) -> bool {
        self.number == number
    }

    pub(super) async fn ack(&self, tag: u64) -> lapin::Result<()> {
        self.channel.basic_ack(tag, BasicAckOptions::default()).await
    }

    /// Returns a message to its queue.
    pub(super) async fn requeue(&self, tag: u64) -> lapin::Result<()> {
        self.channel.basic_nack(tag, BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await
    }

    /// Returns messages to their queue. If that fails, the channel is lost, and the server takes them back itself.
    async fn requeue_all(&self, tags: Vec<u64>) {
        for tag in tags {
            if let Err(error) = self.requeue(tag).await {
                tracing::debug!(%error, "cannot return messages");
                return;
            }
        }
    }
}

impl Feed {
    /// Opens a channel, and begins to receive.
    ///
    /// # Errors
    /// There is no connection, or the queue is missing or refused.
    pub(super) async fn open(shared: &Arc<Shared>, deadline: Instant) -> Result<Self, QueueError> {
        let channel = shared.service.consuming.channel(deadline).await?;
        let qos = channel.basic_qos(shared.source.window, BasicQosOptions::default()).await;
        qos.map_err(|error| queue_error("cannot limit the messages that RabbitMQ sends ahead", &error))?;
        shared.begin(None);
        let number = shared.lock().unacked.channel();
        let acks = Acks { channel, number };
        let mut watches = JoinSet::new();
        watches.spawn(watch_clock(Arc::clone(shared), acks.clone()));
        watches.spawn(watch_link(Arc::clone(shared), acks.clone()));
        let shared = Arc::clone(shared);
        let mut feed = Self { shared, acks, source: None, rests: false, pump: JoinSet::new(), _watches: watches };
        feed.begin().await?;
        Ok(feed)
    }

    /// Asks the server for messages.
    async fn begin(&mut self) -> Result<(), QueueError> {
        let queue = self.shared.source.queue.as_str();
        let (tag, options, arguments) = ("".into(), BasicConsumeOptions::default(), FieldTable::default());
        let consuming = self.acks.channel.basic_consume(queue.into(), tag, options, arguments).await;
        let consumer = consuming.map_err(|error| match is_missing(&error) {
            true => missing(&format!("queue `{queue}`")),
            false => queue_error(&format!("cannot receive from `{queue}`"), &error),
        })?;
        self.source = Some(consumer.clone());
        self.pump.spawn(pump(Arc::clone(&self.shared), consumer, self.acks.number));
        Ok(())
    }

    /// Returns `true` if the channel works, as far as is known.
    pub(super) fn is_alive(&self) -> bool {
        self.acks.channel.status().connected() && self.acks.are_of(self.shared.lock().unacked.channel())
    }

    /// Returns the way to settle the messages of this channel.
    pub(super) fn acks(&self) -> Acks {
        self.acks.clone()
    }

    /// Returns `true` if nothing is to be received for a while.
    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// Ends the rest.
    pub(super) async fn resume(&mut self) -> Result<(), QueueError> {
        self.rests = false;
        if self.source.is_none() { self.begin().await } else { Ok(()) }
    }

    /// Gives back what is not handed out, and receives nothing more until [`Self::resume`]. An ordered queue keeps everything
    /// until nothing of it is in hand: given back, its messages would be delivered to another receiver, past those in hand.
    pub(super) async fn rest(&mut self) {
        self.rests = true;
        if self.shared.source.ordered {
            return;
        }
        let Some(mut consumer) = self.source.take() else { return };
        self.pump.shutdown().await;
        if let Err(error) = self.acks.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await {
            tracing::debug!(%error, "cannot cancel the consumer");
        }
        // What was sent before the server took notice.
        let _ = draw(&self.shared, &mut consumer, &mut Context::from_waker(Waker::noop()), self.acks.number);
        let tags = self.shared.change(Unacked::rest);
        self.acks.requeue_all(tags).await;
    }

    /// Waits for an answer of the server, and takes the messages that came before. Returns the number of messages that the
    /// server has ready.
    pub(super) async fn catch_up(&self) -> Result<u32, QueueError> {
        let (queue, options) = (self.shared.source.queue.as_str(), QueueDeclareOptions::durable().passive());
        let answer = self.acks.channel.queue_declare(queue.into(), options, FieldTable::default()).await;
        let answer = answer.map_err(|error| match is_missing(&error) {
            true => missing(&format!("queue `{queue}`")),
            false => queue_error(&format!("cannot receive from `{queue}`"), &error),
        })?;
        if let Some(mut consumer) = self.source.clone() {
            let _ = draw(&self.shared, &mut consumer, &mut Context::from_waker(Waker::noop()), self.acks.number);
        }
        Ok(answer.message_count())
    }

    /// Closes the channel. The server takes back its messages.
    pub(super) async fn close(mut self) {
        self.pump.shutdown().await;
        if let Err(error) = self.acks.channel.close(200, "".into()).await {
            tracing::debug!(%error, "cannot close the channel");
        }
    }
}

/// Takes messages until the server sends no more, and then ends the channel.
async fn pump(shared: Arc<Shared>, mut consumer: Consumer, number: u64) {
    let why = std::future::poll_fn(|cx| draw(&shared, &mut consumer, cx, number)).await;
    end(&shared, number, why);
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
    loop {
        let (due, is_in_use) = {
            let held = shared.lock();
            if !acks.are_of(held.unacked.channel()) {
                return;
            }
            (held.unacked.next_due(), held.unacked.len() > 0)
        };
        let look = Instant::now() + if is_in_use { LOOK } else { IDLE };
        tokio::select! {
            () = sleep_until(due.map_or(look, |due| due.min(look))) => {}
            () = shared.sooner.notified() => continue,
        }
        if !acks.channel.status().connected() {
            return end(&shared, acks.number, "the connection is lost".to_owned());
        }
        let back = shared.change(|unacked| unacked.tick(Instant::now()));
        acks.requeue_all(back).await;
    }
}

/// Ends the channel when the server has given no sign of life for an interval of heartbeats. The server itself takes a silent
/// client's messages back after two intervals, and the client library notices a silent server after two. The handlers must be
/// stopped before.
async fn watch_link(shared: Arc<Shared>, acks: Acks) {
    let half = shared.service.options.heartbeat / 2;
    loop {
        sleep(half).await;
        if shared.lock().unacked.len() == 0 {
            continue;
        }
        // The server answers this without asking the queue, which may have no leader for a while.
        match timeout(half, acks.channel.channel_flow(ChannelFlowOptions { active: true })).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return end(&shared, acks.number, error.to_string()),
            Err(_) => return end(&shared, acks.number, format!("no sign of life for {:?}", 2 * half)),
        }
    }
}

/// Ends the channel with this number, unless it has ended.
fn end(shared: &Shared, number: u64, why: String) {
    if shared.lock().unacked.channel() == number {
        tracing::warn!(queue = shared.source.queue, error = why, "RabbitMQ stopped sending messages");
        shared.begin(Some(why));
    }
}
