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
//! | `reports.rs` | reports to producers, the log and the observer |
//! | `denials.rs` | subjects to which the server lets nothing be published |
//! | `suspects.rs` | subjects whose receivers may be why the connection was lost |

mod denials;
mod reports;
mod suspects;
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
use crate::targets::Targets;
use denials::Denials;
use hostler_queue::QueueError;
use hostler_queue_embedded::OwnedQueues;
use hostler_types::Backoff;
pub use reports::{Ended, Observer};
use suspects::Suspects;
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

/// Time after which a turn that has not ended counts as hung. Producers are then told to come back later.
const HUNG: Millis = 10_000;

/// Reason for refusals while a turn hangs.
const HANGS: &str = "the store does not answer; check that its disk works";

/// Time without a reply after which a proof that the connection works is asked for again.
const PROOF: Millis = 1_000;

/// Longest time for a proof. A connection that takes longer was stuck, and the receivers may not have had their time.
const PROMPT: Millis = 500;

/// The parts of a message that its delivery needs.
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
    /// The server lets nothing be published to this subject.
    Denied(String),
    /// A request can never be sent. The text is the reason.
    Unsendable(Token, String),
    /// The connection to receivers works. The number grows with each connection. The one before is lost.
    Connected(u64),
    /// The connection to receivers is lost.
    Disconnected,
    /// The connection is known to have worked at this time, by the store's clock.
    Heard(Millis),
    /// The store has no room for further messages, or has room again (`None`). The text is the reason.
    Full(Option<String>),
    /// Receivers of messages of another store have asked for these subjects to be closed until these times.
    Closed(Vec<(String, Millis)>),
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
        /// Number of the connection. The request must not be sent on another one, because its replies are not awaited there.
        link: u64,
        /// Number for the reply subject.
        token: Token,
        /// Subject.
        subject: Arc<str>,
        /// Number of the delivery, from 1.
        attempt: u32,
        /// Message.
        content: Arc<Content>,
    },
    /// A message that only brings [`Event::Heard`] with this time, when the connection works.
    Probe(Millis),
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
    /// Subjects to which messages are delivered.
    pub targets: Targets,
    /// Settings of messages that set none themselves.
    pub defaults: Defaults,
    /// Rules of the scheduler.
    pub rules: Rules,
    /// Longest wait for the reply of a receiver.
    pub ack_timeout: Duration,
    /// Longest wait that a receiver may ask for.
    pub longest_wait: Duration,
    /// Maximum number of bytes of messages that wait to be stored. Beyond it, producers are told to come back later.
    pub max_incoming: usize,
}

/// The event loop of a store.
pub struct Engine<O> {
    plan: Plan,
    store: OwnedQueues,
    scheduler: Scheduler<Content>,
    requests: Requests,
    suspects: Suspects,
    denials: Denials,
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
    /// Number of the connection. `None`: there is none.
    link: Option<u64>,
    /// Last time at which the connection is known to have worked, and the last time at which a proof was asked for.
    heard_at: Millis,
    probed_at: Option<Millis>,
    /// Reason for which no further messages are stored.
    shortage: Option<String>,
    /// Number of messages that were lost because their producers waited for no reply, and the time of the next warning.
    unanswered: u64,
    warn_unanswered_at: Millis,
    is_paused: bool,
    is_draining: bool,
    is_closed: bool,
}

impl<O: Observer> Engine<O> {
    /// Creates an engine over an opened store, without a connection: [`Event::Connected`] must come first. Finds the parked messages and the closed subjects of earlier runs.
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
            suspects: Suspects::default(),
            denials: Denials::default(),
            outbox,
            observer,
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            turning: None,
            failures: 0,
            failure: None,
            next_turn_at: Millis::MIN,
            gathers_until: Millis::MIN,
            link: None,
            heard_at: Millis::MIN,
            probed_at: None,
            shortage: None,
            unanswered: 0,
            warn_unanswered_at: Millis::MIN,
            is_paused: false,
            is_draining: false,
            is_closed: false,
        })
    }

    /// Pauses deliveries before the engine runs.
    pub fn pause(&mut self) {
        self.is_paused = true;
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
        for (ended, answer) in self.requests.expired(now, self.heard_at) {
            self.suspects.clear(&ended.subject);
            self.scheduler.answered(now, ended.place, answer, fastrand::f64());
        }
        self.ask_for_proof(now);
        if self.is_hung(now) {
            self.refuse_waiting(HANGS);
        }
        self.scheduler.advance(now);
        self.begin_turn(now);
        // A message that is delivered must be removed soon, so nothing is delivered while the store fails.
        let can_settle = self.failure.is_none() && !self.is_hung(now);
        if let Some(link) = self.link
            && can_settle
            && !self.is_paused
            && !self.is_draining
        {
            while let Some(delivery) = self.scheduler.next(now) {
                self.deliver(delivery, link, now);
            }
        }
        self.report(now);
        self.observer.works(can_settle && self.link.is_some());
        // What `next` has ended, such as expired messages, is written at once.
        self.begin_turn(now);
        now
    }

    fn deliver(&mut self, delivery: Delivery<Content>, link: u64, now: Millis) {
        let Delivery { place, subject, attempt, due, content } = delivery;
        let token = self.requests.start(place, Arc::clone(&subject), now);
        self.observer.delivers(Duration::from_millis(u64::try_from(now.saturating_sub(due)).unwrap_or(0)));
        // If the other end is gone, the process is ending.
        let _ = self.outbox.send(Outgoing::Request { link, token, subject, attempt, content });
    }

    /// Asks for a proof that the connection works, if a request has waited long enough without one.
    fn ask_for_proof(&mut self, now: Millis) {
        let is_asked = self.probed_at.is_some_and(|at| now.saturating_sub(at) < PROOF);
        if self.requests.has_overdue(now) && !is_asked {
            self.probed_at = Some(now);
            let _ = self.outbox.send(Outgoing::Probe(now));
        }
    }

    fn handle(&mut self, event: Event, now: Millis) {
        match event {
            // It came over another connection, and proves nothing about the one to receivers.
            Event::Incoming(incoming) => self.take(incoming, now),
            Event::Reply(token, reply) => {
                self.hear(now);
                if let Some(subject) = self.requests.subject(token) {
                    self.suspects.clear(subject);
                    self.denials.end(subject);
                }
                if let Some((ended, answer)) = self.requests.reply(token, reply, now) {
                    let answer = self.within_longest_wait(&ended.subject, answer);
                    self.scheduler.answered(now, ended.place, answer, fastrand::f64());
                }
            }
            Event::Denied(subject) => self.deny(&subject, now),
            Event::Unsendable(token, reason) => {
                if let Some(ended) = self.requests.end(token) {
                    self.scheduler.answered(now, ended.place, Answer::Term(reason), fastrand::f64());
                }
            }
            Event::Connected(link) => {
                if self.link.replace(link).is_some_and(|before| before != link) {
                    self.lose(now);
                }
            }
            Event::Disconnected => {
                self.link = None;
                self.lose(now);
            }
            Event::Heard(at) => {
                self.probed_at = None;
                if now.saturating_sub(at) > PROMPT {
                    self.requests.renew(now);
                }
                self.hear(at);
            }
            Event::Full(shortage) => self.note_shortage(shortage),
            Event::Closed(subjects) => {
                for (subject, until) in subjects {
                    self.scheduler.restore_closed(now, &subject.into(), until);
                }
            }
            Event::Pause(is_paused) => self.is_paused = is_paused,
            Event::Adopted => self.scheduler.reread(),
            Event::NoMoreIncoming => self.is_closed = true,
        }
    }

    /// Cuts a wait that a receiver asks for and that is longer than allowed, such as one in milliseconds instead of seconds:
    /// it would close the subject for as long.
    fn within_longest_wait(&self, subject: &str, answer: Answer) -> Answer {
        match answer {
            Answer::Nak(Some(delay)) if delay > self.plan.longest_wait => {
                let (asked, kept) = (delay.as_secs_f64(), self.plan.longest_wait.as_secs_f64());
                tracing::warn!(
                    subject,
                    asked_seconds = asked,
                    kept_seconds = kept,
                    "a receiver asks for a longer wait than `retry.longest_wait` allows, which is kept instead"
                );
                Answer::Nak(Some(self.plan.longest_wait))
            }
            answer => answer,
        }
    }

    /// Notes that the connection worked. While a proof is awaited, only that counts: other messages may come sooner from a
    /// connection that was stuck.
    fn hear(&mut self, at: Millis) {
        if self.probed_at.is_none() {
            self.heard_at = self.heard_at.max(at);
        }
    }

    /// Returns `true` if a turn has not ended for long.
    fn is_hung(&self, now: Millis) -> bool {
        self.turning.as_ref().is_some_and(|turning| now.saturating_sub(turning.began) > HUNG)
    }

    /// Takes a message of a producer, or tells the producer why not.
    fn take(&mut self, incoming: Incoming, now: Millis) {
        let (reply, size) = (incoming.reply.clone(), incoming.size());
        if self.incoming_bytes + size > self.plan.max_incoming {
            let reason = "more messages wait to be stored than fit into memory";
            return self.refuse(reply, 503, reason.to_owned());
        }
        if self.is_hung(now) {
            return self.refuse(reply, 503, HANGS.to_owned());
        }
        let failure = self.failure.as_ref().filter(|_| now < self.next_turn_at).map(ToString::to_string);
        if let Some(failure) = failure {
            return self.refuse(reply, 503, failure);
        }
        if let Some(shortage) = self.shortage.clone() {
            return self.refuse(reply, 503, shortage);
        }
        match accept(&self.plan.targets, &self.plan.defaults, incoming) {
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
        // The scheduler names no time for what it could read at once.
        let gathered = Some(self.gathers_until).filter(|at| *at > now);
        let longest = now.saturating_add(LONGEST_SLEEP);
        [scheduler, turn, gathered, self.requests.wake_at(now)].into_iter().flatten().fold(longest, Millis::min)
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
