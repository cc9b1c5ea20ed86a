//! Decides which message is delivered when, and what is written to the store. Performs no I/O and reads no clock: the
//! caller passes the time, in milliseconds by the store's clock, and random numbers.
//!
//! The store holds all messages. The scheduler holds a window of them: those that are due now or within
//! [`AHEAD`]. Each priority has its own window, so that many messages of one priority cannot keep out another. A
//! message of a subject that cannot be delivered to now (because of a gate, or of the limit of messages in flight) is
//! *parked* in the store if its subject already has its share of the window. It then waits for its subject instead of a
//! time.
//!
//! All reads and writes happen in turns, one at a time. The caller carries a turn out in one transaction, and passes the
//! result back.
//!
//! | file | job |
//! |---|---|
//! | `mod.rs` | types, deliveries and answers |
//! | `lanes.rs` | subjects: gates, limits, waiting messages |
//! | `shares.rs` | the choice between priorities, by their weights |
//! | `window.rs` | turns: which messages are read, held, parked |

mod lanes;
mod shares;
mod window;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::settings::Settings;
use hostler_queue_embedded::{Place, Step};
use hostler_types::Backoff;
use lanes::Lanes;
use window::{Pending, Queued, Window};

pub use window::Read;

/// A time, in milliseconds by the store's clock.
pub type Millis = i64;

/// Time by which messages are read from the store before they are due.
pub const AHEAD: Millis = 2_000;

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
    /// What happened.
    pub outcome: Outcome,
    /// Content.
    pub content: Arc<C>,
}

/// A message whose place in the store is known.
#[derive(Debug)]
enum Known<C> {
    /// The message is in the window.
    Held { message: Message<C>, in_flight: bool },
    /// The message has left the window, but the store has not yet confirmed it.
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
    /// Number of messages in flight.
    in_flight: usize,
    /// Changes for the next turn.
    steps: Vec<Queued>,
    /// The turn that is being carried out.
    pending: Option<Pending>,
    reports: Vec<Report<C>>,
}

impl<C> Scheduler<C> {
    /// Creates a scheduler that knows no messages.
    pub fn new(rules: Rules) -> Self {
        let windows = rules.weights.iter().map(|_| Window::default()).collect();
        Self {
            lanes: Lanes::new(rules.weights.clone(), rules.in_flight_per_subject),
            windows,
            rules,
            known: HashMap::new(),
            expiries: BTreeSet::new(),
            in_flight: 0,
            steps: Vec::new(),
            pending: None,
            reports: Vec::new(),
        }
    }

    /// Returns the number of messages in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the reports since the last call.
    pub fn reports(&mut self) -> Vec<Report<C>> {
        std::mem::take(&mut self.reports)
    }

    /// Returns the next message to deliver. The message is then in flight until [`Self::answered`]. `None`: no message
    /// can be delivered now.
    pub fn next(&mut self, now: Millis) -> Option<Delivery<C>> {
        self.advance(now);
        if self.in_flight >= self.rules.in_flight {
            return None;
        }
        let place = self.lanes.take(now)?;
        let Some(Known::Held { message, in_flight }) = self.known.get_mut(&place) else { return None };
        *in_flight = true;
        self.in_flight += 1;
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
        let Some(Known::Held { message, in_flight: in_flight @ true }) = self.known.get_mut(&place) else { return };
        *in_flight = false;
        self.in_flight -= 1;
        let subject = Arc::clone(&message.subject);
        if !matches!(answer, Answer::NoResponders | Answer::Unsent) {
            message.attempts = message.attempts.saturating_add(1);
            self.lanes.heard(&subject);
        }
        let (settings, attempts) = (message.settings, message.attempts);
        self.lanes.landed(&subject, now);
        let backoff = |wait: Duration| now.saturating_add(millis(wait));
        match answer {
            Answer::Ack => self.leave(place, Step::Remove(place), Outcome::Delivered),
            Answer::Term(reason) => self.bury(place, format!("refused for good by its receiver: {reason}")),
            Answer::Nak(Some(delay)) => {
                if self.lanes.close(&subject, backoff(delay), now) && delay >= STORED_GATE {
                    let step = Step::Close { subject: Arc::clone(&subject), until: backoff(delay) };
                    self.steps.push(Queued { step, leaves: false });
                }
                self.retry(now, place, backoff(delay), "its receiver asked for a later delivery".to_owned());
            }
            Answer::Nak(None) => {
                let due = backoff(settings.wait_after(attempts, random));
                self.retry(now, place, due, "refused by its receiver".to_owned());
            }
            Answer::NoAck(what) => {
                let due = backoff(settings.wait_after(attempts, random));
                self.retry(now, place, due, what);
            }
            Answer::NoResponders => {
                self.lanes.silent(&subject, now, self.rules.silence, random);
                self.wait(now, place, "nobody listens to its subject");
            }
            Answer::Unsent => self.wait(now, place, "the connection to NATS was lost"),
        }
        self.lanes.forget_idle(&subject, now);
    }

    /// Puts a message that was in flight back into its lane.
    fn wait(&mut self, now: Millis, place: Place, reason: &'static str) {
        let Some(Known::Held { message, .. }) = self.known.get(&place) else { return };
        let (subject, due) = (Arc::clone(&message.subject), message.due);
        if message.expires().is_some_and(|expires| expires <= now) {
            return self.expire(place);
        }
        self.report(place, Outcome::Waits(reason));
        self.lanes.add(&subject, due, place, now);
    }

    /// Schedules the next delivery, unless the message has had all of its deliveries or has expired.
    fn retry(&mut self, now: Millis, place: Place, due: Millis, reason: String) {
        let Some(Known::Held { message, .. }) = self.known.get_mut(&place) else { return };
        let (attempts, expires) = (message.attempts, message.expires());
        if expires.is_some_and(|expires| expires <= now) {
            return self.expire(place);
        }
        if attempts > message.settings.retries {
            return self.bury(place, format!("not acknowledged in {attempts} deliveries; the last one: {reason}"));
        }
        // A message that would expire while it waits ends when it expires.
        let due = expires.map_or(due, |expires| due.min(expires));
        message.due = due;
        let subject = Arc::clone(&message.subject);
        let step = Step::Reschedule { place, attempts, due };
        let outcome = Outcome::Retry(due, reason);
        if self.windows.get(place.queue).is_some_and(|window| window.covers(due, place)) {
            // The store would not be asked for this time again, so the message stays in memory.
            self.report(place, outcome);
            self.steps.push(Queued { step, leaves: false });
            self.lanes.add(&subject, due, place, now);
        } else {
            self.leave(place, step, outcome);
        }
    }

    fn bury(&mut self, place: Place, reason: String) {
        let Some(Known::Held { message, .. }) = self.known.get(&place) else { return };
        let step = Step::DeadLetter { place, attempts: message.attempts, reason: reason.clone() };
        self.leave(place, step, Outcome::DeadLettered(reason));
    }

    fn expire(&mut self, place: Place) {
        let Some(Known::Held { message, .. }) = self.known.get(&place) else { return };
        match self.rules.expired {
            Expired::Drop => self.leave(place, Step::Remove(place), Outcome::Dropped),
            Expired::DeadLetter => {
                let reason = format!("expired, after {} deliveries", message.attempts);
                self.bury(place, reason);
            }
        }
    }

    /// Moves a message out of the window, once `step` is carried out.
    fn leave(&mut self, place: Place, step: Step, outcome: Outcome) {
        self.report(place, outcome);
        self.forget(place);
        self.steps.push(Queued { step, leaves: true });
    }

    fn report(&mut self, place: Place, outcome: Outcome) {
        if let Some(Known::Held { message, .. }) = self.known.get(&place) {
            let (subject, content) = (Arc::clone(&message.subject), Arc::clone(&message.content));
            self.reports.push(Report { subject, attempts: message.attempts, outcome, content });
        }
    }

    /// Ends the messages that have expired, and opens the subjects whose gates end. [`Self::next`] and [`Self::turn`] do so
    /// too. A caller that calls neither at a time calls this one, so that [`Self::wake_at`] names a later time.
    pub fn advance(&mut self, now: Millis) {
        while let Some(&(at, place)) = self.expiries.first()
            && at <= now
        {
            self.expiries.pop_first();
            // A message in flight expires when its delivery ends.
            if let Some(Known::Held { message, in_flight: false }) = self.known.get(&place) {
                let (subject, due) = (Arc::clone(&message.subject), message.due);
                self.lanes.remove(&subject, due, place, now);
                self.expire(place);
            }
        }
        self.lanes.advance(now);
    }

    /// Returns the time after `now` at which [`Self::next`] or [`Self::turn`] may have something to do without another
    /// event. One of them, or [`Self::advance`], must have been called at `now`.
    pub fn wake_at(&self, now: Millis) -> Option<Millis> {
        let expiry = self.expiries.first().map(|(at, _)| *at);
        let load = if self.pending.is_some() { None } else { self.next_load_at(now) };
        [expiry, load, self.lanes.wake_at(now)].into_iter().flatten().min()
    }
}

/// Returns a duration in whole milliseconds, rounded up, so that nothing is early.
pub(crate) fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
