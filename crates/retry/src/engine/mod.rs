//! The event loop of a store: takes requests of producers and replies of receivers, and carries out what the scheduler
//! decides. Speaks to NATS by an [`Outbox`], so that tests need no server.
//!
//! A producer's reply is sent only after the turn that stores its message has ended, which is after the flush to the
//! disk. If the turn fails, nothing is stored, and the producer is told so.
//!
//! | file | job |
//! |---|---|
//! | `mod.rs` | the loop |
//! | `turns.rs` | turns: stores what came in, and converts what is read |
//! | `told.rs` | reports to producers, the log and the observer |

mod told;
mod turns;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::accept::{Accepted, Incoming, accept};
use crate::answer::Reply;
use crate::envelope::Headers;
use crate::requests::{Requests, Token};
use crate::scheduler::{Answer, Delivery, Millis, Rules, Scheduler};
use crate::settings::Defaults;
use hostler_queue::QueueError;
use hostler_queue_embedded::OwnedQueues;
use hostler_types::Backoff;
pub use told::{Ended, Observer};
use turns::Turning;

/// Maximum number of events that are handled before the loop looks at everything else.
const BATCH: usize = 512;

/// Waits after a turn that failed.
const AFTER_FAILURE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Pause after a turn, in which changes of messages gather for the next one. New messages do not wait for it.
const GATHER: Millis = 5;

/// Number of changes that wait for no others.
const ENOUGH: usize = 512;

/// Longest time without a look at the scheduler.
const LONGEST_SLEEP: Millis = 1_000;

/// What a message needs to be delivered.
#[derive(Debug)]
pub struct Content {
    /// Id of the message.
    pub id: String,
    /// Headers, in their order.
    pub headers: Headers,
    /// Body.
    pub body: Bytes,
}

/// An event for the engine.
#[derive(Debug)]
pub enum Event {
    /// A producer sent a message.
    Incoming(Incoming),
    /// A receiver replied.
    Reply(Token, Reply),
    /// A request can never be sent. The text is the reason.
    Unsendable(Token, String),
    /// The connection works (`true`) or is lost.
    Link(bool),
    /// An operator pauses deliveries (`true`), or resumes them.
    Pause(bool),
    /// Messages of another store were added to this one.
    Adopted,
    /// No further messages of producers will come.
    NoMoreIncoming,
}

/// A message of the engine for NATS.
#[derive(Debug, Clone)]
pub enum Outgoing {
    /// A request to a receiver.
    Request {
        /// Number for the reply subject.
        token: Token,
        /// Subject.
        subject: Arc<str>,
        /// Number of the delivery, from 1.
        attempt: u32,
        /// Message.
        content: Arc<Content>,
    },
    /// The reply to a producer whose message is stored. Has the id of the message.
    Stored {
        /// Subject for the reply.
        to: String,
        /// Id of the message.
        id: String,
    },
    /// The reply to a producer whose message is not stored.
    Refused {
        /// Subject for the reply.
        to: String,
        /// Code: 400 if the request is faulty, 503 if it may be repeated.
        code: u16,
        /// The reason.
        reason: String,
        /// Wait before the request is repeated. `None`: it must not be repeated.
        retry_after: Option<Duration>,
    },
}

/// The way of messages to NATS. Never blocks, and sends in order.
pub type Outbox = UnboundedSender<Outgoing>;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Subject of the retry service.
    pub subject: String,
    /// Settings of messages that set none themselves.
    pub defaults: Defaults,
    /// Rules of the scheduler.
    pub rules: Rules,
    /// Longest wait for the reply of a receiver.
    pub ack_timeout: Duration,
    /// Maximum number of bytes of messages that wait to be stored. Beyond it, producers are told to come back later.
    pub max_incoming: usize,
}

/// The event loop of a store.
pub struct Engine<O> {
    plan: Plan,
    store: OwnedQueues,
    scheduler: Scheduler<Content>,
    requests: Requests,
    outbox: Outbox,
    observer: O,
    /// Messages that wait to be stored, and the number of their bytes.
    incoming: VecDeque<Accepted>,
    incoming_bytes: usize,
    turning: Option<Turning>,
    /// Number of turns that failed in a row, the error of the last one, and the time of the next.
    failures: u32,
    failure: Option<QueueError>,
    next_turn_at: Millis,
    /// End of the pause after the last turn.
    gathers_until: Millis,
    is_linked: bool,
    is_paused: bool,
    is_draining: bool,
    is_closed: bool,
}

impl<O: Observer> Engine<O> {
    /// Creates an engine over an opened store. Finds the parked messages and the closed subjects of earlier runs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(plan: Plan, store: OwnedQueues, outbox: Outbox, observer: O) -> Result<Self, QueueError> {
        let mut scheduler = Scheduler::new(plan.rules.clone());
        let now = store.now();
        for (priority, subject) in store.parked().await? {
            scheduler.restore(now, priority, &subject.into());
        }
        for (subject, until) in store.closed().await? {
            scheduler.restore_closed(now, &subject.into(), until);
        }
        let requests = Requests::new(plan.ack_timeout);
        Ok(Self {
            plan,
            store,
            scheduler,
            requests,
            outbox,
            observer,
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            turning: None,
            failures: 0,
            failure: None,
            next_turn_at: Millis::MIN,
            gathers_until: Millis::MIN,
            is_linked: true,
            is_paused: false,
            is_draining: false,
            is_closed: false,
        })
    }

    /// Runs until `drain` is cancelled and then all deliveries and turns have ended, or until `deadline` is cancelled.
    /// Returns the number of messages that were in flight at the end. They stay in the store.
    pub async fn run(
        &mut self,
        events: &mut Receiver<Event>,
        drain: &CancellationToken,
        deadline: &CancellationToken,
    ) -> usize {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let now = self.act();
            if self.is_done() || deadline.is_cancelled() {
                return self.requests.len();
            }
            let wake = self.wake_at(now);
            let sleep = Duration::from_millis(u64::try_from(wake.saturating_sub(now)).unwrap_or(0));
            let (is_draining, turning) = (self.is_draining, &mut self.turning);
            let turned = async {
                match turning {
                    Some(turning) => turning.done.as_mut().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = events.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return self.requests.len();
                    }
                    let now = self.store.now();
                    for event in batch.drain(..) {
                        self.handle(event, now);
                    }
                }
                turned = turned => self.end_turn(turned),
                () = drain.cancelled(), if !is_draining => self.is_draining = true,
                () = deadline.cancelled() => return self.requests.len(),
                () = sleep_until(Instant::now() + sleep) => {}
            }
        }
    }

    /// Does everything that can be done now. Returns the time.
    fn act(&mut self) -> Millis {
        let now = self.store.now();
        for (place, answer) in self.requests.expired(now) {
            self.scheduler.answered(now, place, answer, fastrand::f64());
        }
        self.scheduler.advance(now);
        self.begin_turn(now);
        if self.is_linked && !self.is_paused && !self.is_draining {
            while let Some(delivery) = self.scheduler.next(now) {
                self.deliver(delivery, now);
            }
        }
        self.report(now);
        // What `next` has ended, such as expired messages, is written at once.
        self.begin_turn(now);
        now
    }

    fn deliver(&mut self, delivery: Delivery<Content>, now: Millis) {
        let Delivery { place, subject, attempt, due, content } = delivery;
        let token = self.requests.start(place, now);
        self.observer.delivers(Duration::from_millis(u64::try_from(now.saturating_sub(due)).unwrap_or(0)));
        // If the other end is gone, the process is ending.
        let _ = self.outbox.send(Outgoing::Request { token, subject, attempt, content });
    }

    fn handle(&mut self, event: Event, now: Millis) {
        match event {
            Event::Incoming(incoming) => self.take(incoming, now),
            Event::Reply(token, reply) => {
                if let Some((place, answer)) = self.requests.reply(token, reply, now) {
                    self.scheduler.answered(now, place, answer, fastrand::f64());
                }
            }
            Event::Unsendable(token, reason) => {
                if let Some(place) = self.requests.end(token) {
                    self.scheduler.answered(now, place, Answer::Term(reason), fastrand::f64());
                }
            }
            Event::Link(is_linked) => {
                self.is_linked = is_linked;
                if !is_linked {
                    for place in self.requests.lost() {
                        self.scheduler.answered(now, place, Answer::Unsent, fastrand::f64());
                    }
                }
            }
            Event::Pause(is_paused) => self.is_paused = is_paused,
            Event::Adopted => self.scheduler.reread(),
            Event::NoMoreIncoming => self.is_closed = true,
        }
    }

    /// Takes a message of a producer, or tells the producer why not.
    fn take(&mut self, incoming: Incoming, now: Millis) {
        let (reply, size) = (incoming.reply.clone(), incoming.size());
        if self.incoming_bytes + size > self.plan.max_incoming {
            let reason = "more messages wait to be stored than fit into memory";
            return self.refuse(reply, 503, reason.to_owned());
        }
        if let Some(failure) = self.failure.as_ref().filter(|_| now < self.next_turn_at) {
            return self.refuse(reply, 503, failure.to_string());
        }
        match accept(&self.plan.subject, &self.plan.defaults, incoming) {
            Ok(accepted) => {
                self.incoming_bytes += size;
                self.incoming.push_back(accepted);
            }
            Err(reason) => self.refuse(reply, 400, reason),
        }
    }

    fn wake_at(&self, now: Millis) -> Millis {
        let scheduler = if self.is_draining { None } else { self.scheduler.wake_at(now) };
        let turn = Some(self.next_turn_at).filter(|at| *at > now);
        let gathered = Some(self.gathers_until).filter(|at| *at > now && self.scheduler.changes() > 0);
        let longest = now.saturating_add(LONGEST_SLEEP);
        [scheduler, turn, gathered, self.requests.wake_at()].into_iter().flatten().fold(longest, Millis::min)
    }

    /// Returns `true` if the engine is draining and nothing is left to do.
    fn is_done(&self) -> bool {
        let has_work = !self.requests.is_empty() || !self.incoming.is_empty() || self.turning.is_some();
        // A store that fails would not accept the rest in time either.
        let is_written = self.scheduler.is_written() || self.failure.is_some();
        self.is_draining && self.is_closed && !has_work && is_written
    }
}

/// A future that carries out a turn.
type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[cfg(test)]
mod tests;
