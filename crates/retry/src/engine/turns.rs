//! Turns: stores what came in, and converts what is read.

use std::sync::Arc;

use uuid::Uuid;

use super::{AFTER_FAILURE, Content, Doing, ENOUGH, Engine, GATHER, Observer};
use crate::accept::Accepted;
use crate::envelope;
use crate::scheduler::{Message, Millis, Read, millis};
use hostler_queue::QueueError;
use hostler_queue_embedded::{NewMessage, Page, Stored, Turned};

/// Maximum number of new messages of one turn.
const MOST: usize = 2_048;

/// Number of bytes of new messages after which a turn takes no further one.
const MOST_BYTES: usize = 8 << 20;

/// Number of bytes that a message takes in memory besides its headers and its body.
const OVERHEAD: usize = 512;

/// A turn that is being carried out.
pub(super) struct Turning {
    pub(super) done: Doing<Result<Turned, QueueError>>,
    pub(super) began: Millis,
    new: Vec<New>,
}

#[cfg(test)]
impl Turning {
    /// Returns a turn that never ends.
    pub(super) fn that_hangs(began: Millis) -> Self {
        Self { done: Box::pin(std::future::pending()), began, new: Vec::new() }
    }
}

/// A message that the turn stores.
struct New {
    accepted: Accepted,
    content: Arc<Content>,
    due: Millis,
}

impl<O: Observer> Engine<O> {
    /// Begins a turn, if there is something to do and the last turn has ended.
    pub(super) fn begin_turn(&mut self, now: Millis) {
        if self.turning.is_some() || now < self.next_turn_at {
            return;
        }
        let gathers = now < self.gathers_until && self.scheduler.changes() < ENOUGH && !self.is_draining;
        if gathers && self.incoming.is_empty() {
            return;
        }
        if self.is_draining && self.scheduler.changes() == 0 && self.incoming.is_empty() {
            return;
        }
        // After a failure, an empty turn shows if the store works again.
        let always = !self.incoming.is_empty() || self.failure.is_some();
        let Some(mut turn) = self.scheduler.turn(now, always) else { return };
        if self.is_draining {
            // Nothing of it would be delivered.
            turn.loads.clear();
        }
        let (mut new, mut bytes) = (Vec::new(), 0);
        while new.len() < MOST
            && bytes < MOST_BYTES
            && let Some(accepted) = self.incoming.pop_front()
        {
            bytes += accepted.size;
            let settings = &accepted.settings;
            let delayed = now.saturating_add(millis(settings.delay));
            // A message that expires while it waits ends when it expires.
            let expires = settings.ttl.map(|ttl| now.saturating_add(millis(ttl)));
            let due = expires.map_or(delayed, |expires| expires.min(delayed));
            let content = Content {
                id: Uuid::now_v7().to_string(),
                headers: accepted.headers.clone(),
                body: accepted.body.clone(),
            };
            turn.new.push(NewMessage {
                queue: settings.priority,
                id: content.id.clone(),
                subject: accepted.target.clone(),
                attributes: envelope::seal(settings, accepted.headers.clone()),
                body: accepted.body.clone(),
                attempts: 0,
                enqueued_at: now,
                due,
                parked: self.scheduler.parks(&accepted.target, settings.priority),
            });
            new.push(New { accepted, content: Arc::new(content), due });
        }
        self.incoming_bytes = self.incoming_bytes.saturating_sub(bytes);
        let store = self.store.clone();
        self.turning = Some(Turning { done: Box::pin(async move { store.turn(turn).await }), began: now, new });
    }

    /// Ends the turn.
    pub(super) fn end_turn(&mut self, turned: Result<Turned, QueueError>) {
        let Some(Turning { new, .. }) = self.turning.take() else { return };
        let now = self.store.now();
        self.gathers_until = now.saturating_add(GATHER);
        match turned {
            Ok(turned) => {
                self.recovered();
                self.turned(now, turned, new);
            }
            Err(error) => {
                self.scheduler.turn_failed(now);
                let wait = AFTER_FAILURE.rest(self.failures, fastrand::f64());
                self.failed(&error);
                self.next_turn_at = now.saturating_add(millis(wait));
                let reason = error.to_string();
                for new in new {
                    self.refuse(new.accepted.reply, 503, reason.clone());
                }
                self.refuse_waiting(&reason);
            }
        }
    }

    /// Tells the producers of all messages that wait to be stored to come back later.
    pub(super) fn refuse_waiting(&mut self, reason: &str) {
        let waiting: Vec<_> = self.incoming.drain(..).collect();
        self.incoming_bytes = 0;
        for accepted in waiting {
            self.refuse(accepted.reply, 503, reason.to_owned());
        }
    }

    fn turned(&mut self, now: Millis, turned: Turned, new: Vec<New>) {
        let Turned { new: places, pages, others_wrote } = turned;
        let mut refused = Vec::new();
        let read = |page: Page| {
            let mut messages = Vec::with_capacity(page.messages.len());
            for stored in page.messages {
                let (place, attempts) = (stored.place, stored.attempts);
                match self.convert(stored) {
                    Ok(message) => messages.push(message),
                    Err(reason) => refused.push((place, attempts, reason)),
                }
            }
            Read { messages, has_more: page.has_more, end: page.end }
        };
        let reads = pages.into_iter().map(read).collect();
        self.scheduler.turned(now, reads, others_wrote);
        for (place, attempts, reason) in refused {
            tracing::error!(reason, "a message cannot be delivered and moves to the dead-letter queue");
            self.scheduler.refuse(place, attempts, reason);
        }
        for (place, New { accepted, content, due }) in places.into_iter().zip(new) {
            let Accepted { target, settings, reply, .. } = accepted;
            self.stored(reply, &content.id);
            let size = size(&content);
            let message = Message { place, subject: target.into(), due, attempts: 0, settings, size, content };
            self.scheduler.admit(message, now);
        }
    }

    /// Converts a stored message.
    fn convert(&self, stored: Stored) -> Result<Message<Content>, String> {
        let Stored { place, message, attempts, due } = stored;
        let (settings, headers) = envelope::open(&message.attributes, &self.plan.defaults)?;
        let subject = message.routing_key.filter(|subject| !subject.is_empty());
        let subject = subject.ok_or("it has no subject: send it with `--routing-key <subject>`")?;
        // An operator's message was not checked before, and `retry.targets` may have changed.
        if let Some(fault) = self.plan.targets.fault(&subject) {
            return Err(fault);
        }
        let content = Content { id: message.id, headers, body: message.body };
        let (size, content) = (size(&content), Arc::new(content));
        Ok(Message { place, subject: subject.into(), due, attempts, settings, size, content })
    }
}

fn size(content: &Content) -> usize {
    let headers: usize = content.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    OVERHEAD + headers + content.body.len()
}
