//! Turns: which messages are written and read.

use std::collections::HashSet;
use std::sync::Arc;

use super::memory::expires_soon;
use super::window::{Room, Span};
use super::{AHEAD, Known, Message, Millis, Scheduler};
use hostler_queue_embedded::{Cursor, Load, Place, Step, Turn, Wanted};

/// Maximum number of messages that one load reads, and of their bytes.
const CHUNK: Room = Room { messages: 512, bytes: 4 << 20 };

/// Maximum number of lanes of one priority whose parked messages a turn reads.
const RELOADS: usize = 16;

/// Smallest number of bytes that a load is granted.
const LEAST_BYTES: usize = 64 << 10;

/// Maximum number of changes that one turn writes.
const CHANGES: usize = 4_096;

/// Shortest time between two searches for forgotten subjects, and between two loads of a search.
const SWEEP_EVERY: Millis = 5_000;
const NEXT_SWEEP: Millis = 100;

/// Maximum number of forgotten subjects that one load finds.
const SWEPT: usize = 64;

/// Longest time for which a power failure can undo a change.
const UNSYNCED: Millis = 1_000;

/// A change that the store has not yet confirmed.
#[derive(Debug, Clone)]
pub(super) struct Queued {
    /// Number of the change, from 1.
    pub(super) number: u64,
    pub(super) step: Step,
    /// Set if the message is no longer known once the change is confirmed.
    pub(super) leaves: bool,
}

impl Queued {
    fn place(&self) -> Option<Place> {
        match &self.step {
            Step::Remove(place)
            | Step::Reschedule { place, .. }
            | Step::Park { place, .. }
            | Step::DeadLetter { place, .. } => Some(*place),
            Step::Close { .. } => None,
        }
    }
}

/// The reason for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Frontier,
    Backlog,
    Lane,
    Sweep,
}

/// A turn that is being carried out.
#[derive(Debug)]
pub(super) struct Pending {
    steps: Vec<Queued>,
    loads: Vec<(Purpose, Load)>,
    /// Number of the last change that the turn carries out.
    until: u64,
    begun_at: Millis,
    /// Priorities and subjects whose new messages are stored as parked ones if they are due.
    parks: HashSet<(usize, Box<str>)>,
    flushes: bool,
}

/// Messages that a turn has read.
#[derive(Debug)]
pub struct Read<C> {
    /// The messages.
    pub messages: Vec<Message<C>>,
    /// Set if there are more.
    pub has_more: bool,
    /// Position of the last message of the page.
    pub end: Option<Cursor>,
}

impl<C> Scheduler<C> {
    /// Tells that the store has parked messages of a subject. To be called for each at the start.
    pub fn restore(&mut self, now: Millis, priority: usize, subject: &Arc<str>) {
        self.lanes.parked(subject, priority, 0, now);
        self.lanes.forget_idle(subject);
    }

    /// Tells that a subject is closed. To be called for each at the start.
    pub fn restore_closed(&mut self, now: Millis, subject: &Arc<str>, until: Millis) {
        self.lanes.close(subject, until, now);
    }

    /// Returns `true` if a new message of the turn that has begun, with this subject and priority, must be stored as a parked
    /// one, provided that it is due at once.
    pub fn parks(&mut self, subject: &str, priority: usize) -> bool {
        let Some(now) = self.pending.as_ref().map(|pending| pending.begun_at) else { return false };
        let parks = self.is_too_much(subject, priority, now);
        if parks && let Some(pending) = &mut self.pending {
            pending.parks.insert((priority, subject.into()));
        }
        parks
    }

    /// Returns what is to be written and read now. [`Self::turned`] or [`Self::turn_failed`] must follow before the next
    /// turn. `always`: a turn is needed in any case, because the caller adds new messages to it. `None`: there is nothing
    /// to do, or the last turn has not ended.
    pub fn turn(&mut self, now: Millis, always: bool) -> Option<Turn> {
        if self.pending.is_some() {
            return None;
        }
        self.advance(now);
        let loads = self.plan_loads(now);
        let flush = always || self.unsynced_since.is_some_and(|since| since.saturating_add(UNSYNCED) <= now);
        if self.steps.is_empty() && loads.is_empty() && !flush {
            return None;
        }
        let steps: Vec<_> = self.steps.drain(..self.steps.len().min(CHANGES)).collect();
        let until = match self.steps.front() {
            Some(next) => next.number - 1,
            None => self.changes,
        };
        let turn = Turn {
            new: Vec::new(),
            steps: steps.iter().map(|queued| queued.step.clone()).collect(),
            loads: loads.iter().map(|(_, load)| load.clone()).collect(),
            flush,
        };
        self.pending = Some(Pending { steps, loads, until, begun_at: now, parks: HashSet::new(), flushes: flush });
        Some(turn)
    }

    /// Ends a turn that was carried out. `reads`: one for each load of the turn. `others_wrote`: another process has changed
    /// the store.
    pub fn turned(&mut self, now: Millis, reads: Vec<Read<C>>, others_wrote: bool) {
        let Some(Pending { steps, loads, until, parks, flushes, .. }) = self.pending.take() else { return };
        self.parks = parks;
        if flushes {
            self.unsynced_since = None;
        } else if !steps.is_empty() {
            self.unsynced_since = self.unsynced_since.or(Some(now));
        }
        for queued in steps.iter().filter(|queued| queued.leaves) {
            self.confirm(queued);
        }
        for ((purpose, load), read) in loads.into_iter().zip(reads) {
            self.take_page(now, purpose, load, read, until);
        }
        if others_wrote {
            self.reread();
        }
    }

    fn confirm(&mut self, queued: &Queued) {
        let Some(place) = queued.place() else { return };
        self.known.remove(&place);
        // The store may have been read past the time before it had the change.
        let at = match queued.step {
            Step::Reschedule { due, .. } => Some(due),
            Step::Park { until, .. } => until,
            _ => None,
        };
        if let Some(window) = self.windows.get_mut(place.queue)
            && let Some(at) = at.filter(|at| window.covers(*at, place))
        {
            window.rewind(at);
        }
    }

    fn take_page(&mut self, now: Millis, purpose: Purpose, load: Load, read: Read<C>, until: u64) {
        let Read { messages, has_more, end } = read;
        let Some(window) = self.windows.get_mut(load.queue) else { return };
        match (purpose, load.wanted) {
            (Purpose::Frontier, Wanted::Due { until, .. }) => {
                let end = if has_more { end } else { Some((until, i64::MAX, i64::MAX)) };
                window.frontier = end.map_or(window.frontier, |end| end.max(window.frontier));
            }
            (Purpose::Backlog, Wanted::Due { .. }) => {
                let rest = |span: Span| Span { after: end.unwrap_or(span.after), ..span };
                window.backlog = window.backlog.filter(|_| has_more).map(rest);
            }
            (Purpose::Lane, Wanted::Parked(subject)) => {
                for message in messages {
                    self.unpark(message, now);
                }
                let until = (!has_more).then_some(until);
                return self.lanes.reloaded(&subject, load.queue, until, now);
            }
            (_, Wanted::Subjects { .. }) => {
                let last = messages.last().map(|message| message.subject.to_string());
                window.sweep = has_more.then(|| last.unwrap_or_default());
                for message in messages {
                    self.lanes.parked(&message.subject, load.queue, 0, now);
                    self.unpark(message, now);
                }
                return;
            }
            _ => return,
        }
        for message in messages {
            if !self.known.contains_key(&message.place) {
                self.hold(message, now);
            }
        }
    }

    /// Reads the store from its beginning, because others have added messages to it.
    pub fn reread(&mut self) {
        self.windows.iter_mut().for_each(|window| window.rewind(Millis::MIN));
    }

    /// Ends a turn of which nothing was carried out.
    pub fn turn_failed(&mut self, now: Millis) {
        let Some(Pending { steps, loads, .. }) = self.pending.take() else { return };
        for queued in steps.into_iter().rev() {
            self.steps.push_front(queued);
        }
        for (_, load) in loads {
            if let Wanted::Parked(subject) = load.wanted {
                self.lanes.reloaded(&subject, load.queue, None, now);
            }
        }
    }

    /// Takes a message that the last turn has stored, if it is due so soon that it belongs in memory.
    pub fn admit(&mut self, message: Message<C>, now: Millis) {
        let (place, due) = (message.place, message.due);
        let Some(window) = self.windows.get_mut(place.queue) else { return };
        if self.known.contains_key(&place) {
            return;
        }
        if due <= place.enqueued_at && self.parks.contains(&(place.queue, Box::from(&*message.subject))) {
            if expires_soon(message.expires(), now) {
                return self.unpark(message, now);
            }
            // The store has it as a parked one. It does not know when the message expires.
            let subject = Arc::clone(&message.subject);
            let number = match message.expires() {
                Some(expires) => {
                    self.known.insert(place, Known::Leaving);
                    let step = Step::Park { place, subject: Arc::clone(&subject), due, until: Some(expires) };
                    self.queue(step, true)
                }
                None => {
                    self.changes += 1;
                    self.changes
                }
            };
            self.lanes.parked(&subject, place.queue, number, now);
            return;
        }
        if !window.covers(due, place) {
            return;
        }
        if window.room().is_empty() {
            return window.rewind(due);
        }
        self.hold(message, now);
    }

    /// Dead-letters a message of the last turn's pages that the caller cannot deliver.
    pub fn refuse(&mut self, place: Place, attempts: u32, reason: String) {
        if self.known.contains_key(&place) {
            return;
        }
        self.known.insert(place, Known::Leaving);
        self.queue(Step::DeadLetter { place, attempts, reason }, true);
        // A search for forgotten subjects finds one message of each. If it is this one, the others are not yet found.
        self.lanes.note_forgotten(place.queue);
    }

    /// Returns `true` if the store has been read past this time, or will have been after the turn that is under way.
    pub(super) fn is_read(&self, due: Millis, place: Place) -> bool {
        let is_being_read = |(purpose, load): &(Purpose, Load)| match load.wanted {
            Wanted::Due { until, .. } => *purpose == Purpose::Frontier && load.queue == place.queue && due <= until,
            _ => false,
        };
        self.windows.get(place.queue).is_some_and(|window| window.covers(due, place))
            || self.pending.iter().flat_map(|pending| &pending.loads).any(is_being_read)
    }

    /// Returns the number of changes that wait for the next turn.
    pub fn changes(&self) -> usize {
        self.steps.len()
    }

    /// Returns `true` if no change is left to write, and no turn is under way.
    pub fn is_written(&self) -> bool {
        self.steps.is_empty() && self.pending.is_none()
    }

    /// Returns the time after `now` at which a turn may have something to do without another event.
    pub(super) fn next_turn_at(&self, now: Millis) -> Option<Millis> {
        if self.pending.is_some() {
            return None;
        }
        let flush = self.unsynced_since.map(|since| since.saturating_add(UNSYNCED));
        let reads = self.windows.iter().flat_map(|window| {
            let crowded = window.is_crowded() && (window.grants_at().is_some() || window.read_at() <= now);
            let sweep = window.sweep.is_some().then_some(window.sweep_at);
            [Some(window.read_at()), window.grants_at(), crowded.then_some(window.shed_at), sweep]
        });
        reads.chain([flush]).flatten().filter(|at| *at > now).min()
    }

    /// Queues a change for the next turn. Returns its number.
    pub(super) fn queue(&mut self, step: Step, leaves: bool) -> u64 {
        self.changes += 1;
        self.steps.push_back(Queued { number: self.changes, step, leaves });
        self.changes
    }

    fn plan_loads(&mut self, now: Millis) -> Vec<(Purpose, Load)> {
        let mut loads = Vec::new();
        for priority in 0..self.windows.len() {
            self.windows[priority].catch_up(now);
            self.sweep_forgotten(priority);
            self.share_out(priority);
            let window = &self.windows[priority];
            let is_wanted = window.is_behind() || window.read_at() <= now || self.lanes.wants_reload(priority, now);
            if is_wanted && window.is_crowded() {
                self.shed(priority, now);
            }
            let room = self.windows[priority].room();
            if self.windows[priority].is_starved(now) {
                let left = self.plan_behind(priority, room, now, &mut loads);
                self.plan_frontier(priority, left, now, &mut loads);
            } else {
                let left = self.plan_frontier(priority, room, now, &mut loads);
                let behind = self.windows[priority].room_behind(now);
                self.plan_behind(priority, left.min(behind), now, &mut loads);
            }
        }
        loads
    }

    /// Plans to read what becomes due soon. Returns the room that is left.
    fn plan_frontier(&self, priority: usize, room: Room, now: Millis, loads: &mut Vec<(Purpose, Load)>) -> Room {
        let window = &self.windows[priority];
        if window.read_at() > now || room.is_empty() {
            return room;
        }
        let wanted = Wanted::Due { after: Some(window.frontier), until: now.saturating_add(AHEAD) };
        let load = Load { wanted, ..self.load(priority, room.min(CHUNK), Arc::default()) };
        let left = room.less(granted(&load));
        loads.push((Purpose::Frontier, load));
        left
    }

    /// Plans to read the backlog, and messages that are parked. Returns the room that is left.
    fn plan_behind(&mut self, priority: usize, room: Room, now: Millis, loads: &mut Vec<(Purpose, Load)>) -> Room {
        let mut left = self.plan_sweep(priority, room, now, loads);
        let mean = self.windows[priority].mean();
        let mut is_denied = self.windows[priority].sweep.is_some() && room.is_empty();
        for _ in 0..RELOADS {
            if !self.lanes.wants_reload(priority, now) {
                break;
            }
            if left.is_empty() {
                is_denied = true;
                break;
            }
            let Some(reload) = self.lanes.reload(priority, now) else { break };
            let bytes = reload.room.saturating_mul(2 * mean).clamp(LEAST_BYTES, CHUNK.bytes);
            let max = left.min(Room { messages: reload.room, bytes });
            let load = self.load(priority, max, Arc::clone(&self.windows[priority].seqs));
            let load = Load { wanted: Wanted::Parked(reload.subject), ..load };
            left = left.less(granted(&load));
            loads.push((Purpose::Lane, load));
        }
        let window = &self.windows[priority];
        if let Some(Span { after, until: (until, ..) }) = window.backlog {
            is_denied |= left.is_empty();
            if !left.is_empty() {
                let wanted = Wanted::Due { after: Some(after), until };
                let load = Load { wanted, ..self.load(priority, left.min(CHUNK), Arc::clone(&window.seqs)) };
                left = left.less(granted(&load));
                loads.push((Purpose::Backlog, load));
            }
        }
        self.windows[priority].deny(is_denied, now);
        left
    }

    /// Plans to find parked messages of forgotten subjects. Returns the room that is left.
    fn plan_sweep(&mut self, priority: usize, room: Room, now: Millis, loads: &mut Vec<(Purpose, Load)>) -> Room {
        let window = &mut self.windows[priority];
        let Some(after) = window.sweep.clone().filter(|_| window.sweep_at <= now && !room.is_empty()) else {
            return room;
        };
        window.sweep_at = now.saturating_add(if after.is_empty() { SWEEP_EVERY } else { NEXT_SWEEP });
        let max = room.min(Room { messages: SWEPT, bytes: CHUNK.bytes });
        // Leaves nothing out: the first message of a subject may be in memory, and others not.
        let load = Load { wanted: Wanted::Subjects { after }, ..self.load(priority, max, Arc::default()) };
        let left = room.less(granted(&load));
        loads.push((Purpose::Sweep, load));
        left
    }

    fn load(&self, queue: usize, max: Room, skip: Arc<HashSet<i64>>) -> Load {
        let wanted = Wanted::Due { after: None, until: Millis::MIN };
        Load { queue, wanted, skip, max: max.messages.max(1), max_bytes: max.bytes.max(1) }
    }

    /// Sets the share of each lane of a priority: a part of the window that leaves room for as many lanes again.
    fn share_out(&mut self, priority: usize) {
        let equal = self.windows[priority].capacity() / (4 * (self.lanes.occupied(priority) + 1));
        self.lanes.set_share(priority, equal.clamp(1, self.rules.lane.max(1)));
    }

    fn sweep_forgotten(&mut self, priority: usize) {
        let sweep = &mut self.windows[priority].sweep;
        // A search that is under way may have passed a subject that was forgotten after it began.
        if sweep.is_none() && self.lanes.take_forgotten(priority) {
            *sweep = Some(String::new());
        }
    }
}

/// Returns the room that a load is granted.
fn granted(load: &Load) -> Room {
    Room { messages: load.max, bytes: load.max_bytes }
}
