//! State that a queue shares with its tasks: the messages in hand, the open requests, and the leases that were lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::Message;
use hostler_queue::{LeaseHandle, QueueError};
use hostler_types::channel::Filter;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::envelope::Mail;
use crate::hand::{Hand, Handed};
use crate::pulls::{End, Pulls, request_of};
use crate::screening::{Screening, Watched};
use crate::source::Source;
use crate::stamp::Stamp;
use crate::{Service, server_wait};

/// Time for which messages that can be handed out, or that wait for their groups, are kept while nothing is received. Other hosts
/// may have free slots for them.
const KEPT: Duration = Duration::from_secs(5);

/// Interval at which the server's timer is read while messages are in hand. Another host may change it.
const REREAD: Duration = Duration::from_secs(10);

/// State that the queue shares with its tasks.
pub(crate) struct SharedState {
    pub(super) hand: Hand,
    pub(super) pulls: Pulls,
    /// Fault that ended a request. The next receive returns it.
    pub(super) fault: Option<String>,
    /// Reason why the attempts of messages cannot be told.
    pub(super) uncounted: Option<QueueError>,
    taken_back: Vec<LeaseHandle>,
    /// Number of receives that are under way.
    receives: usize,
    /// End of the last receive.
    received_at: Instant,
    /// Time at which the server's timer was last read.
    timer_read_at: Instant,
}

impl SharedState {
    fn new(hand: Hand, now: Instant) -> Self {
        Self {
            hand,
            pulls: Pulls::default(),
            fault: None,
            uncounted: None,
            taken_back: Vec::new(),
            receives: 0,
            received_at: now,
            timer_read_at: now,
        }
    }

    /// Returns the time at which the messages that no receive asks for go back. `None`: there are none, or they are asked for.
    fn leave_at(&self) -> Option<Instant> {
        (self.receives == 0 && self.hand.waiting().0 > 0).then(|| self.received_at + KEPT)
    }

    /// Returns the time at which the server's timer is read again. `None`: nothing depends on it.
    fn read_timer_at(&self) -> Option<Instant> {
        (!self.hand.is_empty()).then(|| self.timer_read_at + REREAD)
    }

    /// Returns the next time at which the clock has something to do.
    pub(super) fn next_due(&mut self) -> Option<Instant> {
        [self.hand.next_due(), self.leave_at(), self.read_timer_at()].into_iter().flatten().min()
    }

    /// Returns `true` if it is time to read the server's timer again. The caller reads it.
    pub(super) fn must_read_timer(&mut self, now: Instant) -> bool {
        let is_due = self.read_timer_at().is_some_and(|at| at <= now);
        if is_due {
            self.timer_read_at = now;
        }
        is_due
    }

    /// Takes out the messages that no receive has asked for in a while, because they are about to go back.
    pub(super) fn leftover(&mut self, now: Instant) -> Vec<Handed> {
        if self.leave_at().is_some_and(|at| at <= now) { self.hand.give_back() } else { Vec::new() }
    }
}

/// A receive that is under way. Dropping this value ends it.
pub(super) struct Receiving<'a>(&'a Shared);

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.receives -= 1;
        state.received_at = Instant::now();
        if state.leave_at().is_some() {
            self.0.sooner.notify_one();
        }
    }
}

/// The messages of a queue in this process. The tasks of the queue use it at the same time.
pub(crate) struct Shared {
    pub(super) service: Arc<Service>,
    pub(super) source: Source,
    pub(super) screening: Screening,
    state: Mutex<SharedState>,
    /// Notified when more may be there to hand out, and when a request ends.
    pub(super) changed: Notify,
    /// Notified when something is due earlier than before.
    pub(super) sooner: Notify,
    /// Notified when leases were lost.
    lost: Notify,
}

impl Shared {
    pub(super) fn new(service: Arc<Service>, source: Source) -> Self {
        let hand = Hand::new(source.ordered, source.server);
        let state = SharedState::new(hand, Instant::now());
        let watched = Watched {
            stream: source.stream.clone(),
            consumer: source.consumer.clone(),
            exchange: None,
            filter: Filter::All,
            channel: source.channel.clone(),
            dead_letters: source.dead_letters.clone(),
        };
        Self {
            screening: Screening::new(Arc::clone(&service), watched),
            service,
            source,
            state: Mutex::new(state),
            changed: Notify::new(),
            sooner: Notify::new(),
            lost: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a receive.
    pub(super) fn receiving(&self) -> Receiving<'_> {
        self.lock().receives += 1;
        Receiving(self)
    }

    /// Changes the messages in hand. Wakes those who wait if more may be there to hand out.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Hand) -> T) -> T {
        let mut state = self.lock();
        let changes = state.hand.changes();
        let result = change(&mut state.hand);
        let (is_sooner, is_changed) = (state.hand.is_sooner(), state.hand.changes() != changes);
        drop(state);
        if is_sooner {
            self.sooner.notify_one();
        }
        if is_changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Takes what came for a request: a message, or a sign of the server.
    pub(super) fn came(&self, message: Message) {
        let stamp = message.reply.as_deref().and_then(Stamp::read);
        // A message may have a status, too: its sender's headers are the server's to store. No sign has such a subject for answers.
        match (message.status, stamp, message.reply.clone()) {
            (_, Some(stamp), Some(reply)) => {
                self.screening.saw(stamp.sequence);
                let delivered_after = self.lock().pulls.message(Instant::now());
                let mail = self.mail(message, stamp);
                let lost = self.change(|hand| hand.arrived(mail, reply, delivered_after));
                if let Some(lease) = lost {
                    tracing::warn!(
                        stream = self.source.stream,
                        "NATS delivered a message again whose lease had not ended"
                    );
                    self.lock().taken_back.push(lease);
                    self.lost.notify_one();
                }
            }
            (Some(status), ..) => {
                let text = message.description.as_deref().unwrap_or_default();
                // A sign has the subject of its request. A message has the one under which it is stored.
                let mut state = self.lock();
                let end = state.pulls.status(request_of(&message.subject), status, text);
                if let End::Fault(why) = &end {
                    tracing::debug!(stream = self.source.stream, why, "a request for messages ended early");
                    state.fault = Some(why.clone());
                }
                drop(state);
                if end != End::None {
                    self.changed.notify_waiters();
                }
            }
            _ => tracing::debug!(stream = self.source.stream, "something other than a message of the stream came"),
        }
    }

    fn mail(&self, message: Message, stamp: Stamp) -> Mail {
        let subject = message.subject.clone();
        Mail::read(&self.service.names, message, subject, stamp, None, self.source.ordered, SystemTime::now())
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

    /// Returns `true` if a request for messages is open on the server.
    pub(super) fn is_asking(&self) -> bool {
        let losses = self.service.line.losses();
        self.lock().pulls.open(losses).is_some()
    }

    /// Returns the time at which the server's last word on the open request is overdue. `None`: none is open on this connection.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let losses = self.service.line.losses();
        self.lock().pulls.overdue_at(losses)
    }

    /// Returns the time after which the server delivers a message again.
    pub(super) fn timer(&self) -> Duration {
        self.lock().hand.server()
    }

    /// Takes the server's timer over from what it tells of the consumer.
    pub(super) fn learn_timer(&self, info: &Value) {
        let wait = server_wait(info);
        if wait != self.timer() {
            tracing::debug!(stream = self.source.stream, ?wait, "the timer of the server has changed");
            self.change(|hand| hand.set_server(wait));
        }
    }

    /// Returns the error for a request that ended early.
    pub(super) fn take_fault(&self) -> Option<QueueError> {
        let why = self.lock().fault.take()?;
        Some(QueueError::Unavailable(format!("cannot receive from `{}`: {why}", self.source.stream)))
    }

    /// Returns the name of the stream.
    pub(crate) fn stream(&self) -> &str {
        &self.source.stream
    }

    /// Returns the number of messages that this process knows to be visible, though the server counts them as delivered.
    pub(crate) fn visible(&self) -> u64 {
        self.lock().hand.visible(Instant::now()) as u64
    }
}

#[cfg(test)]
mod tests {
    use hostler_types::message::Message as QueueMessage;

    use super::*;

    const SERVER: Duration = Duration::from_secs(32);

    fn holding_one(now: Instant) -> SharedState {
        let mut state = SharedState::new(Hand::new(false, SERVER), now);
        let mail = Mail {
            message: Arc::new(QueueMessage::new("1", "x")),
            stamp: Stamp { sequence: 1, deliveries: 1, stored_at: 0 },
            subject: "jobs".into(),
            not_before: None,
            has_id: false,
        };
        state.hand.arrived(mail, "reply".into(), now);
        state
    }

    #[test]
    fn what_no_receive_asks_for_goes_back_after_a_while() {
        let now = Instant::now();
        let mut state = holding_one(now);
        assert_eq!(state.next_due(), Some(now + KEPT));
        state.receives = 1;
        assert!(state.leftover(now + KEPT).is_empty(), "a receive is about to take it");
        (state.receives, state.received_at) = (0, now + KEPT);
        assert!(state.leftover(now + KEPT).is_empty());
        assert_eq!(state.leftover(now + 2 * KEPT).len(), 1);
        assert_eq!(state.leave_at(), None, "it is on its way");
    }

    #[test]
    fn the_servers_timer_is_read_again_while_messages_depend_on_it() {
        let now = Instant::now();
        let mut state = holding_one(now);
        assert!(
            !state.must_read_timer(now) && state.must_read_timer(now + REREAD) && !state.must_read_timer(now + REREAD)
        );
        let mut idle = SharedState::new(Hand::new(false, SERVER), now);
        assert!(!idle.must_read_timer(now + 9 * REREAD));
        assert_eq!(idle.next_due(), None);
    }
}
