//! The part of a priority's messages that is in memory, and how far the store is read.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::{AHEAD, Millis};
use hostler_queue_embedded::{Cursor, Place};

/// A position before all messages.
const START: Cursor = (i64::MIN, i64::MIN, i64::MIN);

/// Wait after which messages that are behind get room that is otherwise kept for those that become due.
const DENIED: Millis = 500;

/// A part of the store that is to be read, by the time at which its messages are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) after: Cursor,
    pub(super) until: Cursor,
}

/// Number of messages and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl Room {
    pub(super) fn is_empty(self) -> bool {
        self.messages == 0 || self.bytes == 0
    }

    pub(super) fn less(self, other: Self) -> Self {
        Self { messages: self.messages.saturating_sub(other.messages), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    pub(super) fn min(self, other: Self) -> Self {
        Self { messages: self.messages.min(other.messages), bytes: self.bytes.min(other.bytes) }
    }
}

/// The window of a priority.
#[derive(Debug)]
pub(super) struct Window {
    max: Room,
    /// Position up to which the store is read, except for the backlog and for parked messages.
    pub(super) frontier: Cursor,
    /// Messages that have to be read again, or were due before they could be read.
    pub(super) backlog: Option<Span>,
    /// Time from which the store has to be read again.
    rewind: Option<Millis>,
    /// Messages that are not yet due, by the time at which they are.
    pub(super) upcoming: BTreeSet<(Millis, Place)>,
    /// The messages that are held.
    pub(super) held: Room,
    /// Numbers of the messages that are held. Shared with the loads of a turn.
    pub(super) seqs: Arc<HashSet<i64>>,
    /// Earliest time for the next search for messages that take room which others need.
    pub(super) shed_at: Millis,
    /// Time since which messages that are behind have had no room.
    denied_since: Option<Millis>,
    /// Name of the subject after which parked messages of forgotten subjects are to be found. `None`: there are none.
    pub(super) sweep: Option<String>,
    /// Earliest time for the next search for forgotten subjects.
    pub(super) sweep_at: Millis,
}

impl Window {
    pub(super) fn new(max: Room) -> Self {
        Self {
            max,
            frontier: START,
            backlog: None,
            rewind: None,
            upcoming: BTreeSet::new(),
            held: Room { messages: 0, bytes: 0 },
            seqs: Arc::default(),
            shed_at: Millis::MIN,
            denied_since: None,
            sweep: None,
            sweep_at: Millis::MIN,
        }
    }

    /// Returns `true` if the store will not be asked again for a message that becomes due at this time.
    pub(super) fn covers(&self, due: Millis, place: Place) -> bool {
        (due, place.enqueued_at, place.seq) <= self.frontier
    }

    /// Makes the store be read again from this time.
    pub(super) fn rewind(&mut self, due: Millis) {
        self.rewind = Some(self.rewind.map_or(due, |before| before.min(due)));
    }

    /// Makes the backlog what is to be read again, and what has become due before it was read.
    pub(super) fn catch_up(&mut self, now: Millis) {
        let mut after = self.rewind.take().map(|due| (due, i64::MIN, i64::MIN));
        if self.frontier.0 < now {
            after = Some(after.map_or(self.frontier, |after| after.min(self.frontier)));
            self.frontier = (now, i64::MAX, i64::MAX);
        }
        if let Some(after) = after {
            let after = self.backlog.map_or(after, |span| span.after.min(after));
            self.backlog = Some(Span { after, until: self.frontier });
        }
    }

    /// Returns the time from which the store is to be read on.
    pub(super) fn read_at(&self) -> Millis {
        self.frontier.0.saturating_sub(AHEAD / 2)
    }

    /// Returns `true` if the backlog is not empty, or will not be in the next turn.
    pub(super) fn is_behind(&self) -> bool {
        self.backlog.is_some() || self.rewind.is_some()
    }

    /// Returns the room that is left for messages that become due soon.
    pub(super) fn room(&self) -> Room {
        self.max.less(self.held)
    }

    /// Returns the room that is left for messages that are behind: half of all room is for those that become due soon,
    /// unless this has left no room to those that are behind for a while.
    pub(super) fn room_behind(&self, now: Millis) -> Room {
        if self.is_starved(now) { self.room() } else { self.half().less(self.held) }
    }

    fn half(&self) -> Room {
        Room { messages: (self.max.messages / 2).max(1), bytes: (self.max.bytes / 2).max(1) }
    }

    /// Returns `true` if messages that are behind have had no room for a while.
    pub(super) fn is_starved(&self, now: Millis) -> bool {
        self.denied_since.is_some_and(|since| since.saturating_add(DENIED) <= now)
    }

    /// Records if messages that are behind had no room.
    pub(super) fn deny(&mut self, is_denied: bool, now: Millis) {
        self.denied_since = is_denied.then(|| self.denied_since.unwrap_or(now));
    }

    /// Returns the time at which messages that had no room may get some without another event.
    pub(super) fn grants_at(&self) -> Option<Millis> {
        self.denied_since.map(|since| since.saturating_add(DENIED))
    }

    /// Returns `true` if messages take room which others need.
    pub(super) fn is_crowded(&self) -> bool {
        self.half().less(self.held).is_empty()
    }

    /// Returns the number of messages of the mean size that fit into the window.
    pub(super) fn capacity(&self) -> usize {
        self.max.messages.min(self.max.bytes / self.mean().max(1))
    }

    /// Returns the mean size of the messages that are held.
    pub(super) fn mean(&self) -> usize {
        self.held.bytes.checked_div(self.held.messages).unwrap_or(0)
    }

    pub(super) fn add(&mut self, seq: i64, size: usize) {
        self.held.messages += 1;
        self.held.bytes += size;
        Arc::make_mut(&mut self.seqs).insert(seq);
    }

    pub(super) fn remove(&mut self, seq: i64, size: usize) {
        if Arc::make_mut(&mut self.seqs).remove(&seq) {
            self.held = self.held.less(Room { messages: 1, bytes: size });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        Window::new(Room { messages: 10, bytes: 1_000 })
    }

    const fn at(due: Millis) -> Cursor {
        (due, i64::MAX, i64::MAX)
    }

    #[test]
    fn what_becomes_due_comes_before_what_is_behind() {
        let mut window = window();
        window.catch_up(100);
        assert_eq!(window.backlog, Some(Span { after: START, until: at(100) }), "everything, at the start");
        assert_eq!(window.frontier, at(100));
        window.backlog = None;
        window.frontier = at(1_100);
        window.catch_up(1_100);
        assert_eq!((window.backlog, window.frontier), (None, at(1_100)), "nothing was missed");
        window.catch_up(1_500);
        assert_eq!((window.backlog, window.frontier), (Some(Span { after: at(1_100), until: at(1_500) }), at(1_500)));
        window.rewind(1_400);
        window.rewind(1_300);
        window.catch_up(1_500);
        assert_eq!(window.backlog.map(|span| span.after), Some(at(1_100)), "it is among what is behind");
        window.rewind(50);
        assert!(window.is_behind());
        window.catch_up(1_500);
        assert_eq!(window.backlog.map(|span| span.after.0), Some(50));
    }

    #[test]
    fn half_of_the_room_is_for_what_becomes_due_but_not_for_ever() {
        let mut window = window();
        for seq in 0..5 {
            window.add(seq, 10);
        }
        assert_eq!((window.room().messages, window.room_behind(0).messages, window.is_crowded()), (5, 0, true));
        window.deny(true, 100);
        window.deny(true, 200);
        assert_eq!((window.is_starved(599), window.grants_at()), (false, Some(600)));
        assert_eq!((window.is_starved(600), window.room_behind(600).messages), (true, 5));
        window.deny(false, 600);
        assert!(!window.is_starved(9_999));
        window.remove(0, 10);
        window.remove(0, 10);
        assert_eq!((window.held.messages, window.is_crowded(), window.mean(), window.capacity()), (4, false, 10, 10));
        window.add(9, 460);
        assert!(window.is_crowded() && window.capacity() == 10 && window.mean() == 100, "bytes count too");
    }
}
