//! Which messages are held in memory, and which are left to the store until their subject has room.

use std::sync::Arc;

use super::window::Window;
use super::{AHEAD, Held, Known, Message, Millis, Scheduler, Stage};
use hostler_queue_embedded::{Place, Step};

/// Maximum number of messages that one search parks, and the shortest time between two searches.
const SHED: usize = 1_024;
const SHED_EVERY: Millis = 100;

impl<C> Scheduler<C> {
    /// Parks messages that take room which others need.
    pub(super) fn shed(&mut self, priority: usize, now: Millis) {
        let window = &mut self.windows[priority];
        if now < window.shed_at {
            return;
        }
        window.shed_at = now.saturating_add(SHED_EVERY);
        for place in self.lanes.excess(priority, SHED, now) {
            self.park(place, now);
        }
    }

    /// Holds a message in memory.
    pub(super) fn hold(&mut self, message: Message<C>, now: Millis) {
        let (place, due) = (message.place, message.due);
        if self.insert(message, false) {
            self.place(place, due, now);
        }
    }

    /// Holds a parked message in memory, in its lane.
    pub(super) fn unpark(&mut self, message: Message<C>, now: Millis) {
        let (place, due, subject) = (message.place, message.due, Arc::clone(&message.subject));
        let expires = message.expires();
        if self.known.contains_key(&place) || !self.insert(message, true) {
            return;
        }
        if expires.is_some_and(|expires| expires <= now) {
            self.expire(now, place);
        } else {
            self.lanes.push(&subject, due, place, now);
        }
    }

    fn insert(&mut self, message: Message<C>, is_parked: bool) -> bool {
        let place = message.place;
        let Some(window) = self.windows.get_mut(place.queue) else { return false };
        window.add(place.seq, message.size);
        if let Some(expires) = message.expires() {
            self.expiries.insert((expires, place));
        }
        let held = Held { message, stage: Stage::Waiting, is_parked, losses: 0 };
        self.known.insert(place, Known::Held(held));
        true
    }

    /// Puts a held message where it belongs: among those that are not yet due, or into its lane, or back into the store if
    /// its lane has its share.
    pub(super) fn place(&mut self, place: Place, at: Millis, now: Millis) {
        let Some(Known::Held(held)) = self.known.get_mut(&place) else { return };
        if at > now {
            held.stage = Stage::Upcoming(at);
            if let Some(window) = self.windows.get_mut(place.queue) {
                window.upcoming.insert((at, place));
            }
            return;
        }
        held.stage = Stage::Waiting;
        let (subject, due, expires) = (Arc::clone(&held.message.subject), held.message.due, held.message.expires());
        if expires.is_some_and(|expires| expires <= now) {
            return self.expire(now, place);
        }
        if !expires_soon(expires, now) && self.is_too_much(&subject, place.queue, now) {
            self.park(place, now);
        } else {
            self.lanes.push(&subject, due, place, now);
        }
    }

    /// Returns `true` if a lane has no room for one more message that is due.
    pub(super) fn is_too_much(&self, subject: &str, priority: usize, now: Millis) -> bool {
        let is_crowded = self.windows.get(priority).is_some_and(Window::is_crowded);
        self.lanes.is_full(subject, priority, is_crowded, now)
    }

    /// Leaves a message that is due to the store until its subject has room.
    fn park(&mut self, place: Place, now: Millis) {
        let Some(Known::Held(held)) = self.known.get(&place) else { return };
        let (subject, due, expires) = (Arc::clone(&held.message.subject), held.message.due, held.message.expires());
        let is_parked = held.is_parked;
        if expires_soon(expires, now) {
            return;
        }
        self.forget(place, now);
        let number = if is_parked {
            // The store has it as a parked one, and a read that is under way leaves it out.
            self.known.remove(&place);
            self.changes += 1;
            self.changes
        } else {
            self.queue(Step::Park { place, subject: Arc::clone(&subject), due, until: expires }, true)
        };
        self.lanes.parked(&subject, place.queue, number, now);
    }
}

/// Returns `true` if a message stays in memory because it expires soon: if it was parked, it was read for that.
pub(super) fn expires_soon(expires: Option<Millis>, now: Millis) -> bool {
    expires.is_some_and(|expires| expires <= now.saturating_add(2 * AHEAD))
}
