//! Decides which message is delivered when, and what is written to the store. Performs no I/O and reads no clock: the
//! caller passes the time, in milliseconds by the store's clock, and random numbers.
//!
//! The store holds all messages. The scheduler holds a bounded part of them, in messages and in bytes, for each priority:
//!
//! - The store is read by the time at which messages become due, up to a *frontier* of about [`AHEAD`] from now. A message
//!   that is not yet due waits in memory, and is never parked. Whatever could not be read in time is the *backlog*. It is
//!   read beside the frontier, never before it, so no message that becomes due waits for the backlog.
//! - A due message joins its *lane*: the due messages of its subject and priority. If others need the room, and the lane is
//!   closed or has its share, the message is *parked* instead: the store lists it under its subject, by the time at which
//!   it was due. Messages that become due later then follow it. A lane reads them back in this order when it has room.
//! - Lanes that can deliver take turns. Subjects whose receivers do not answer share half of the slots (`slots.rs`). A gate
//!   opens for one message, and the answers to it open the subject for more (`subject.rs`).
//! - Half of the room is for what becomes due soon. The rest is for the backlog and for parked messages. A parked message is
//!   also read when it expires.
//!
//! All reads and writes happen in turns, one at a time. The caller carries a turn out in one transaction, and passes the
//! result back. Changes are numbered, so that a read says which of them it has seen.
//!
//! | file | job |
//! |---|---|
//! | `mod.rs` | types, deliveries and answers |
//! | `subject.rs` | a subject: its gate and its allowance |
//! | `slots.rs` | the limits of messages in flight |
//! | `lanes.rs` | all subjects: waiting messages, and whose turn it is |
//! | `shares.rs` | the choice between priorities, by their weights |
//! | `window.rs` | the room of a priority, and how far the store is read |
//! | `turns.rs` | turns: which messages are written and read |
//! | `memory.rs` | which messages are held in memory, and which are parked |

mod lanes;
mod memory;
mod shares;
mod slots;
mod subject;
mod turns;
mod window;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::settings::{SHORTEST_WAIT, Settings};
use hostler_queue_embedded::{Place, Step};
use hostler_types::Backoff;
use lanes::Lanes;
use subject::Landing;
use turns::{Pending, Queued};
use window::{Room, Window};

pub use turns::Read;

/// A time, in milliseconds by the store's clock.
pub type Millis = i64;

/// Time by which messages are read from the store before they are due.
pub const AHEAD: Millis = 1_000;

/// Shortest wait for which the store remembers that a subject is closed.
const STORED_GATE: Duration = Duration::from_secs(1);

/// End of a message that expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// The message is removed.
    Drop,
    /// The message moves to the dead-letter queue.
    DeadLetter,
}

/// The rules of a scheduler.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Weight of each priority: at least 1.
    pub weights: Vec<u32>,
    /// Maximum number of messages in flight.
    pub in_flight: usize,
    /// Maximum number of messages in flight to one subject.
    pub in_flight_per_subject: usize,
    /// End of messages that expire.
    pub expired: Expired,
    /// Waits for a subject to which nobody listens.
    pub silence: Backoff,
    /// Maximum number of messages of one priority in memory.
    pub window: usize,
    /// Maximum number of bytes of one priority's messages in memory.
    pub window_bytes: usize,
    /// Maximum number of waiting messages of one subject and priority in memory.
    pub lane: usize,
}

/// A message as the scheduler holds it. `C`: what the caller needs to deliver it.
#[derive(Debug, Clone)]
pub struct Message<C> {
    /// Place in the store.
    pub place: Place,
    /// Subject to which the message is delivered.
    pub subject: Arc<str>,
    /// Time at which the message is due.
    pub due: Millis,
    /// Number of deliveries so far, without those that nobody received.
    pub attempts: u32,
    /// Settings of the message.
    pub settings: Settings,
    /// Number of bytes that the message takes in memory.
    pub size: usize,
    /// Content.
    pub content: Arc<C>,
}

impl<C> Message<C> {
    /// Returns the time at which the message expires. `None`: never.
    fn expires(&self) -> Option<Millis> {
        self.settings.ttl.map(|ttl| self.place.enqueued_at.saturating_add(millis(ttl)))
    }
}

/// A message to deliver now.
#[derive(Debug, Clone)]
pub struct Delivery<C> {
    /// Place in the store. Identifies the delivery in [`Scheduler::answered`].
    pub place: Place,
    /// Subject.
    pub subject: Arc<str>,
    /// Number of the delivery, from 1.
    pub attempt: u32,
    /// Time at which the message was due.
    pub due: Millis,
    /// Content.
    pub content: Arc<C>,
}

/// The result of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The message was delivered.
    Ack,
    /// The message was refused. The delay, if there is one, is kept exactly, and closes the subject for as long.
    Nak(Option<Duration>),
    /// The message must not be delivered again.
    Term(String),
    /// There was no valid answer. The text says what there was instead.
    NoAck(String),
    /// Nobody listens to the subject. Costs no retry.
    NoResponders,
    /// The server lets nothing be published to the subject. Costs no retry.
    Denied,
    /// The request may not have left this process, or its answer may have been lost on the way. Costs no retry.
    Unsent,
}

/// The end of a delivery, or of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The message was delivered, and is removed.
    Delivered,
    /// The message is delivered again at this time. The text is the reason.
    Retry(Millis, String),
    /// The message waits, and no retry was counted. The text is the reason.
    Waits(&'static str),
    /// The server refused the delivery, and the message waits. No retry was counted.
    Denied,
    /// The message moves to the dead-letter queue. The text is the reason.
    DeadLettered(String),
    /// The message expired, and is removed.
    Dropped,
}

/// A report for logs and metrics.
#[derive(Debug, Clone)]
pub struct Report<C> {
    /// Subject of the message.
    pub subject: Arc<str>,
    /// Number of deliveries so far.
    pub attempts: u32,
    /// Outcome of the delivery.
    pub outcome: Outcome,
    /// Content.
    pub content: Arc<C>,
}

/// A message in memory.
#[derive(Debug)]
struct Held<C> {
    message: Message<C>,
    stage: Stage,
    /// Set if the store has the message as a parked one.
    is_parked: bool,
    /// Number of deliveries in a row that were lost on the way.
    losses: u32,
}

/// State of a message in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The message waits until this time.
    Upcoming(Millis),
    /// The message is in its lane.
    Waiting,
    InFlight,
}

/// A message whose place in the store is known.
#[derive(Debug)]
enum Known<C> {
    Held(Held<C>),
    /// The message has left the memory, but the store has not yet confirmed it.
    Leaving,
}

/// The scheduler of one store.
#[derive(Debug)]
pub struct Scheduler<C> {
    rules: Rules,
    known: HashMap<Place, Known<C>>,
    lanes: Lanes,
    windows: Vec<Window>,
    /// Times at which held messages expire.
    expiries: BTreeSet<(Millis, Place)>,
    /// Changes for the next turns, in their order.
    steps: VecDeque<Queued>,
    /// Number of the last change.
    changes: u64,
    /// Priorities and subjects whose new messages were stored as parked ones in the last turn.
    parks: HashSet<(usize, Box<str>)>,
    /// The turn that is being carried out.
    pending: Option<Pending>,
    /// Time since which there are changes that a power failure can undo.
    unsynced_since: Option<Millis>,
    reports: Vec<Report<C>>,
}

impl<C> Scheduler<C> {
    /// Creates a scheduler that knows no messages.
    pub fn new(rules: Rules) -> Self {
        let room = Room { messages: rules.window, bytes: rules.window_bytes };
        Self {
            lanes: Lanes::new(rules.weights.clone(), rules.in_flight, rules.in_flight_per_subject),
            windows: rules.weights.iter().map(|_| Window::new(room)).collect(),
            rules,
            known: HashMap::new(),
            expiries: BTreeSet::new(),
            steps: VecDeque::new(),
            changes: 0,
            parks: HashSet::new(),
            pending: None,
            unsynced_since: None,
            reports: Vec::new(),
        }
    }

    /// Returns the number of messages in flight.
    pub fn in_flight(&self) -> usize {
        self.lanes.in_flight()
    }

    /// Returns the reports since the last call.
    pub fn reports(&mut self) -> Vec<Report<C>> {
        std::mem::take(&mut self.reports)
    }

    /// Returns the next message to deliver. The message is then in flight until [`Self::answered`]. `None`: no message
    /// can be delivered now.
    pub fn next(&mut self, now: Millis) -> Option<Delivery<C>> {
        self.advance(now);
        let place = self.lanes.take(now)?;
        let Some(Known::Held(held)) = self.known.get_mut(&place) else { return None };
        held.stage = Stage::InFlight;
        let message = &held.message;
        Some(Delivery {
            place,
            subject: Arc::clone(&message.subject),
            attempt: message.attempts.saturating_add(1),
            due: message.due,
            content: Arc::clone(&message.content),
        })
    }

    /// Ends a delivery. `random`: a number from 0 to 1.
    pub fn answered(&mut self, now: Millis, place: Place, answer: Answer, random: f64) {
        let Some(Known::Held(held)) = self.known.get_mut(&place) else { return };
        if held.stage != Stage::InFlight {
            return;
        }
        held.stage = Stage::Waiting;
        held.losses = if answer == Answer::Unsent { held.losses.saturating_add(1) } else { 0 };
        let message = &mut held.message;
        if !matches!(answer, Answer::NoResponders | Answer::Denied | Answer::Unsent) {
            message.attempts = message.attempts.saturating_add(1);
        }
        let (subject, settings, attempts) = (Arc::clone(&message.subject), message.settings, message.attempts);
        self.lanes.landed(&subject, landing(&answer), now);
        let after = |wait: Duration| now.saturating_add(millis(wait));
        match answer {
            Answer::Ack => self.leave(now, place, Step::Remove(place), Outcome::Delivered),
            Answer::Term(reason) => self.bury(now, place, format!("refused for good by its receiver: {reason}")),
            Answer::Nak(Some(delay)) if !delay.is_zero() => {
                let until = after(delay.max(SHORTEST_WAIT));
                if self.lanes.close(&subject, until, now) && delay >= STORED_GATE {
                    self.queue(Step::Close { subject: Arc::clone(&subject), until }, false);
                }
                self.retry(now, place, until, "its receiver asked for a later delivery".to_owned());
            }
            // No wait at all would have the receiver refuse the message again and again, until its retries are spent.
            Answer::Nak(_) => {
                let due = after(settings.wait_after(attempts, random));
                self.retry(now, place, due, "refused by its receiver".to_owned());
            }
            Answer::NoAck(what) => {
                let due = after(settings.wait_after(attempts, random));
                self.retry(now, place, due, what);
            }
            Answer::NoResponders => {
                self.silent(now, place, &subject, random, Outcome::Waits("nobody listens to its subject"));
            }
            Answer::Denied => self.silent(now, place, &subject, random, Outcome::Denied),
            Answer::Unsent => self.lost(now, place, random),
        }
        self.lanes.forget_idle(&subject);
    }

    /// Lets a message wait until its subject can be reached.
    fn silent(&mut self, now: Millis, place: Place, subject: &Arc<str>, random: f64, outcome: Outcome) {
        if self.lanes.silent(subject, now, self.rules.silence, random) {
            return self.wait(now, place, now, outcome);
        }
        // Too many subjects are silent to remember them all, so the message waits by itself.
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        let wait = self.rules.silence.rest(u32::MAX, random);
        let (attempts, due) = (held.message.attempts, now.saturating_add(millis(wait)));
        let due = held.message.expires().map_or(due, |expires| due.min(expires));
        self.leave(now, place, Step::Reschedule { place, attempts, due }, outcome);
    }

    /// Lets a message wait whose delivery was lost on the way. The waits grow, because the message itself may be the reason.
    fn lost(&mut self, now: Millis, place: Place, random: f64) {
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        let wait = self.rules.silence.rest(held.losses.saturating_sub(1), random);
        let outcome = Outcome::Waits("the connection to NATS was lost");
        self.wait(now, place, now.saturating_add(millis(wait)), outcome);
    }

    /// Keeps a message that was in flight in memory until a time.
    fn wait(&mut self, now: Millis, place: Place, until: Millis, outcome: Outcome) {
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        if held.message.expires().is_some_and(|expires| expires <= now) {
            return self.expire(now, place);
        }
        self.report(place, outcome);
        self.place(place, until, now);
    }

    /// Schedules the next delivery, unless the message has had all of its deliveries or has expired.
    fn retry(&mut self, now: Millis, place: Place, due: Millis, reason: String) {
        let Some(Known::Held(held)) = self.known.get_mut(&place) else { return };
        let message = &mut held.message;
        let (attempts, expires) = (message.attempts, message.expires());
        if expires.is_some_and(|expires| expires <= now) {
            return self.expire(now, place);
        }
        if attempts > message.settings.retries {
            return self.bury(now, place, format!("not acknowledged in {attempts} deliveries; the last one: {reason}"));
        }
        // A message that would expire while it waits ends when it expires.
        let due = expires.map_or(due, |expires| due.min(expires));
        (message.due, held.is_parked) = (due, false);
        let step = Step::Reschedule { place, attempts, due };
        let outcome = Outcome::Retry(due, reason);
        if self.is_read(due, place) {
            // The store would not be asked for this time again, so the message stays in memory.
            self.report(place, outcome);
            self.queue(step, false);
            self.place(place, due, now);
        } else {
            self.leave(now, place, step, outcome);
        }
    }

    fn bury(&mut self, now: Millis, place: Place, reason: String) {
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        let step = Step::DeadLetter { place, attempts: held.message.attempts, reason: reason.clone() };
        self.leave(now, place, step, Outcome::DeadLettered(reason));
    }

    fn expire(&mut self, now: Millis, place: Place) {
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        match self.rules.expired {
            Expired::Drop => self.leave(now, place, Step::Remove(place), Outcome::Dropped),
            Expired::DeadLetter => {
                let reason = format!("expired, after {} deliveries", held.message.attempts);
                self.bury(now, place, reason);
            }
        }
    }

    /// Moves a message out of the memory, once `step` is carried out.
    fn leave(&mut self, now: Millis, place: Place, step: Step, outcome: Outcome) {
        self.report(place, outcome);
        self.forget(place, now);
        self.queue(step, true);
    }

    /// Takes a message out of the memory. It stays known until the store confirms its last change.
    fn forget(&mut self, place: Place, now: Millis) {
        let Some(Known::Held(held)) = self.known.insert(place, Known::Leaving) else { return };
        let message = held.message;
        if let Some(expires) = message.expires() {
            self.expiries.remove(&(expires, place));
        }
        if let Some(window) = self.windows.get_mut(place.queue) {
            window.remove(place.seq, message.size);
            if let Stage::Upcoming(at) = held.stage {
                window.upcoming.remove(&(at, place));
            }
        }
        if held.stage == Stage::Waiting {
            self.lanes.remove(&message.subject, message.due, place, now);
        }
    }

    fn report(&mut self, place: Place, outcome: Outcome) {
        if let Some(Known::Held(held)) = self.known.get(&place) {
            let Message { subject, content, attempts, .. } = &held.message;
            let (subject, content) = (Arc::clone(subject), Arc::clone(content));
            self.reports.push(Report { subject, attempts: *attempts, outcome, content });
        }
    }

    /// Ends the messages that have expired, moves those that are due into their lanes, and opens the subjects whose gates
    /// end. [`Self::next`] and [`Self::turn`] do so too. A caller that calls neither at a time calls this one, so that
    /// [`Self::wake_at`] names a later time.
    pub fn advance(&mut self, now: Millis) {
        while let Some(&(at, place)) = self.expiries.first()
            && at <= now
        {
            self.expiries.pop_first();
            // A message in flight expires when its delivery ends.
            if let Some(Known::Held(held)) = self.known.get(&place)
                && held.stage != Stage::InFlight
            {
                let subject = Arc::clone(&held.message.subject);
                self.expire(now, place);
                self.lanes.forget_idle(&subject);
            }
        }
        for priority in 0..self.windows.len() {
            while let Some(&(at, place)) = self.windows[priority].upcoming.first()
                && at <= now
            {
                self.windows[priority].upcoming.pop_first();
                self.place(place, at, now);
            }
        }
        // Last, so that a subject whose messages are due when its gate opens is not forgotten, and opens for one.
        self.lanes.advance(now);
    }

    /// Returns the time after `now` at which [`Self::next`] or [`Self::turn`] may have something to do without another
    /// event. One of them, or [`Self::advance`], must have been called at `now`.
    pub fn wake_at(&self, now: Millis) -> Option<Millis> {
        let expiry = self.expiries.first().map(|(at, _)| *at);
        let upcoming = self.windows.iter().filter_map(|window| window.upcoming.first()).map(|(at, _)| *at);
        let others = [expiry, self.lanes.wake_at(now), self.next_turn_at(now)];
        others.into_iter().flatten().chain(upcoming).min()
    }
}

/// Returns what an answer tells about the subject.
fn landing(answer: &Answer) -> Landing {
    match answer {
        Answer::Ack | Answer::Nak(_) | Answer::Term(_) => Landing::Answered,
        Answer::NoAck(_) => Landing::Unanswered,
        Answer::NoResponders | Answer::Denied => Landing::Silent,
        Answer::Unsent => Landing::Lost,
    }
}

/// Returns a duration in whole milliseconds, rounded up, so that nothing is early.
pub(crate) fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod backlogs;
#[cfg(test)]
mod lateness;
#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
