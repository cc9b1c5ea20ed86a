//! Turns: which messages are read from the store, held in memory, and parked.

use std::collections::HashSet;
use std::sync::Arc;

use super::{AHEAD, Known, Message, Millis, Scheduler};
use hostler_queue_embedded::{Cursor, Load, Place, Step, Turn, Wanted};

/// Maximum number of messages that one load reads.
const CHUNK: usize = 2_048;

/// Maximum number of lanes whose parked messages one turn reads.
const RELOADS: usize = 64;

/// Shortest time between two searches for messages that take room which others could use.
const SHED_EVERY: Millis = 250;

/// The messages of one priority that are in memory.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Position up to which all messages of the store are known, except parked ones. `None`: the store is read from its
    /// beginning.
    cursor: Option<Cursor>,
    /// Latest time that the cursor has reached. Up to it, the store may have messages that are known.
    reached: Millis,
    /// Set if the store has messages before the cursor that are not known.
    must_reset: bool,
    /// Number of messages that are held.
    held: usize,
    /// Number of their bytes.
    bytes: usize,
    /// Numbers of the messages that are held. Those that leave are not among them: the turn that reads next has carried out
    /// their changes before it reads.
    seqs: HashSet<i64>,
    /// Earliest time for the next search for excess messages.
    shed_at: Millis,
}

impl Window {
    /// Returns `true` if the store will not be asked again for a message that becomes due at this time.
    pub(super) fn covers(&self, due: Millis, place: Place) -> bool {
        !self.must_reset && self.cursor.is_some_and(|cursor| (due, place.enqueued_at, place.seq) <= cursor)
    }

    /// Returns the time from which the store is to be read on.
    fn load_at(&self) -> Millis {
        match self.cursor {
            Some((due, ..)) if !self.must_reset => due.saturating_sub(AHEAD / 2),
            _ => Millis::MIN,
        }
    }
}

/// A change that the store has not yet confirmed.
#[derive(Debug, Clone)]
pub(super) struct Queued {
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

/// A turn that is being carried out.
#[derive(Debug)]
pub(super) struct Pending {
    steps: Vec<Queued>,
    loads: Vec<Load>,
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
        self.lanes.parked(subject, priority, now);
    }

    /// Tells that a subject is closed. To be called for each at the start.
    pub fn restore_closed(&mut self, now: Millis, subject: &Arc<str>, until: Millis) {
        self.lanes.close(subject, until, now);
    }

    /// Returns `true` if a new message of this subject and priority must be stored as a parked one.
    pub fn parks(&self, subject: &str, priority: usize) -> bool {
        self.lanes.waiting(subject, priority).is_none()
    }

    /// Returns what is to be written and read now. [`Self::turned`] or [`Self::turn_failed`] must follow before the next
    /// turn. `always`: a turn is needed in any case, because the caller adds new messages to it. `None`: there is nothing
    /// to do, or the last turn has not ended.
    pub fn turn(&mut self, now: Millis, always: bool) -> Option<Turn> {
        if self.pending.is_some() {
            return None;
        }
        self.advance(now);
        self.lanes.refill_below(self.share() / 2);
        let loads = self.plan_loads(now);
        if self.steps.is_empty() && loads.is_empty() && !always {
            return None;
        }
        let steps = std::mem::take(&mut self.steps);
        let turn = Turn {
            new: Vec::new(),
            steps: steps.iter().map(|queued| queued.step.clone()).collect(),
            loads: loads.clone(),
        };
        self.pending = Some(Pending { steps, loads });
        Some(turn)
    }

    /// Ends a turn that was carried out. `reads`: one for each load of the turn. `others_wrote`: another process has changed
    /// the store.
    pub fn turned(&mut self, now: Millis, reads: Vec<Read<C>>, others_wrote: bool) {
        let Some(Pending { steps, loads }) = self.pending.take() else { return };
        for place in steps.iter().filter(|queued| queued.leaves).filter_map(Queued::place) {
            self.known.remove(&place);
        }
        let (mut due, mut parked) = (Vec::new(), Vec::new());
        for (load, read) in loads.into_iter().zip(reads) {
            match load.wanted {
                Wanted::Due { until, .. } => due.push((load.queue, until, read)),
                Wanted::Parked(subject) => parked.push((load.queue, subject, read)),
            }
        }
        // The parked messages come first: the others may add to the parked ones.
        for (priority, subject, read) in parked {
            for message in read.messages {
                self.hold(message, now);
            }
            self.lanes.reloaded(&subject, priority, read.has_more, now);
        }
        for (priority, until, read) in due {
            self.proceed(priority, until, &read);
            for message in read.messages {
                self.take_due(message, now);
            }
        }
        self.find_overtaken();
        if others_wrote {
            self.reread();
        }
    }

    /// Reads the store from its beginning, because others have added messages to it.
    pub fn reread(&mut self) {
        self.windows.iter_mut().for_each(|window| window.must_reset = true);
    }

    /// Ends a turn of which nothing was carried out.
    pub fn turn_failed(&mut self, now: Millis) {
        let Some(Pending { mut steps, loads }) = self.pending.take() else { return };
        steps.append(&mut self.steps);
        self.steps = steps;
        for load in loads {
            if let Wanted::Parked(subject) = load.wanted {
                self.lanes.reloaded(&subject, load.queue, true, now);
            }
        }
    }

    /// Takes a message that the last turn has stored, if it is due so soon that it belongs in memory.
    pub fn admit(&mut self, message: Message<C>, now: Millis) {
        let priority = message.place.queue;
        let Some(window) = self.windows.get(priority) else { return };
        if self.known.contains_key(&message.place) || !window.covers(message.due, message.place) {
            return;
        }
        let has_room = self.has_room(priority)
            && self.lanes.waiting(&message.subject, priority).is_some_and(|waiting| waiting < self.share());
        if has_room {
            self.hold(message, now);
        } else if let Some(window) = self.windows.get_mut(priority) {
            window.must_reset = true;
        }
    }

    /// Dead-letters a message of the last turn's pages that the caller cannot deliver.
    pub fn refuse(&mut self, place: Place, attempts: u32, reason: String) {
        if self.known.contains_key(&place) {
            return;
        }
        self.known.insert(place, Known::Leaving);
        self.steps.push(Queued { step: Step::DeadLetter { place, attempts, reason }, leaves: true });
    }

    /// Returns the number of changes that wait for the next turn.
    pub fn changes(&self) -> usize {
        self.steps.len()
    }

    /// Returns `true` if no change is left to write, and no turn is under way.
    pub fn is_written(&self) -> bool {
        self.steps.is_empty() && self.pending.is_none()
    }

    pub(super) fn next_load_at(&self, now: Millis) -> Option<Millis> {
        self.windows.iter().map(Window::load_at).filter(|at| *at > now).min()
    }

    fn plan_loads(&mut self, now: Millis) -> Vec<Load> {
        let mut loads = Vec::new();
        for priority in 0..self.windows.len() {
            let window = &mut self.windows[priority];
            if std::mem::take(&mut window.must_reset) {
                window.cursor = None;
            }
            if window.load_at() > now {
                continue;
            }
            if !self.has_room(priority) {
                self.shed(priority, now);
                if !self.has_room(priority) {
                    continue;
                }
            }
            let window = &self.windows[priority];
            let may_be_known = window.cursor.is_none_or(|(due, ..)| due < window.reached);
            let wanted = Wanted::Due { after: window.cursor, until: now.saturating_add(AHEAD).max(window.reached) };
            loads.push(self.load(priority, wanted, self.chunk(), may_be_known));
        }
        for _ in 0..RELOADS {
            let (windows, chunk) = (&self.windows, self.chunk());
            let (max, max_bytes) = (self.rules.window, self.rules.window_bytes);
            let has_room = |priority: usize| {
                windows.get(priority).is_some_and(|window| window.held + chunk <= max && window.bytes < max_bytes)
            };
            let Some((subject, priority, waiting)) = self.lanes.reload(now, has_room) else { break };
            let max = self.share().saturating_sub(waiting).max(1);
            loads.push(self.load(priority, Wanted::Parked(subject), max, true));
        }
        loads
    }

    fn load(&self, queue: usize, wanted: Wanted, max: usize, may_be_known: bool) -> Load {
        let window = &self.windows[queue];
        let skip = if may_be_known { window.seqs.clone() } else { HashSet::new() };
        let max_bytes = self.rules.window_bytes.saturating_sub(window.bytes).max(1);
        Load { queue, wanted, skip: Arc::new(skip), max, max_bytes }
    }

    /// Returns the number of messages that one load reads at most.
    fn chunk(&self) -> usize {
        CHUNK.min(self.rules.window / 4).max(1)
    }

    /// Returns the share of one lane: the number of its waiting messages that are held at most.
    fn share(&self) -> usize {
        let equal = self.rules.window / (4 * (self.lanes.len() + 1));
        equal.clamp(4, self.rules.lane.max(4))
    }

    fn has_room(&self, priority: usize) -> bool {
        let window = &self.windows[priority];
        window.held + self.chunk() <= self.rules.window && window.bytes < self.rules.window_bytes
    }

    /// Moves the cursor to the end of a page.
    fn proceed(&mut self, priority: usize, until: Millis, read: &Read<C>) {
        let Some(window) = self.windows.get_mut(priority) else { return };
        window.cursor = if read.has_more { read.end.or(window.cursor) } else { Some((until, Millis::MAX, i64::MAX)) };
        if let Some((due, ..)) = window.cursor {
            window.reached = window.reached.max(due);
        }
    }

    /// Holds a message that is due soon, or parks it if its lane has its share.
    fn take_due(&mut self, message: Message<C>, now: Millis) {
        let place = message.place;
        if self.known.contains_key(&place) {
            return;
        }
        if self.lanes.waiting(&message.subject, place.queue).is_some_and(|waiting| waiting < self.share()) {
            return self.hold(message, now);
        }
        self.known.insert(place, Known::Leaving);
        self.park(&message.subject, place, now);
    }

    fn hold(&mut self, message: Message<C>, now: Millis) {
        let (place, due, subject) = (message.place, message.due, Arc::clone(&message.subject));
        if self.known.contains_key(&place) {
            return;
        }
        let Some(window) = self.windows.get_mut(place.queue) else { return };
        window.held += 1;
        window.bytes += message.size;
        window.seqs.insert(place.seq);
        if let Some(expires) = message.expires() {
            self.expiries.insert((expires, place));
        }
        self.known.insert(place, Known::Held { message, in_flight: false });
        self.lanes.add(&subject, due, place, now);
    }

    /// Takes a message out of the window. It stays known until the store confirms its last change.
    pub(super) fn forget(&mut self, place: Place) {
        let Some(Known::Held { message, .. }) = self.known.insert(place, Known::Leaving) else { return };
        if let Some(expires) = message.expires() {
            self.expiries.remove(&(expires, place));
        }
        if let Some(window) = self.windows.get_mut(place.queue) {
            window.seqs.remove(&place.seq);
            window.held -= 1;
            window.bytes -= message.size;
        }
    }

    fn park(&mut self, subject: &Arc<str>, place: Place, now: Millis) {
        self.steps.push(Queued { step: Step::Park { place, subject: Arc::clone(subject) }, leaves: true });
        self.lanes.parked(subject, place.queue, now);
    }

    /// Parks due messages that take room which others could use.
    fn shed(&mut self, priority: usize, now: Millis) {
        let window = &mut self.windows[priority];
        if now < window.shed_at {
            return;
        }
        window.shed_at = now.saturating_add(SHED_EVERY);
        for (subject, due, place) in self.lanes.excess(priority, self.share(), now) {
            // First, so that the subject is not forgotten in between.
            self.park(&subject, place, now);
            self.lanes.remove(&subject, due, place, now);
            self.forget(place);
        }
    }

    /// Finds changes that are not yet written, although the cursor has passed the time to which they move their messages.
    fn find_overtaken(&mut self) {
        for queued in self.steps.iter().filter(|queued| queued.leaves) {
            if let Step::Reschedule { place, due, .. } = queued.step
                && let Some(window) = self.windows.get_mut(place.queue)
                && window.covers(due, place)
            {
                window.must_reset = true;
            }
        }
    }
}
