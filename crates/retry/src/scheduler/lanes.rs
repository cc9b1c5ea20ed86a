//! Subjects and their lanes: a lane has the messages of one subject and one priority that are due.
//!
//! Lanes that can deliver take turns, whatever the number of their messages. Within a lane, the message that was due first
//! goes first.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::shares::Shares;
use super::slots::{Class, Slots};
use super::subject::{Landing, Lane, Subject};
use super::{Millis, millis};
use hostler_queue_embedded::Place;
use hostler_types::Backoff;

/// Index of a subject.
type Id = usize;

/// Time by which parked messages are read before the gate of their subject opens.
const LEAD: Millis = 200;

/// Number of parked messages of a lane that are read while its subject has one message in flight at a time.
const FEW: usize = 4;

/// Number of subjects that are remembered although nothing but parked messages is known of them.
const REMEMBERED: usize = 20_000;

/// Number of subjects that are closed at the same time at most. Messages of further ones wait one by one.
const CLOSED: usize = 100_000;

/// Number of subjects of a priority that are looked at to find one to forget.
const LOOKED_AT: usize = 8;

/// A lane whose parked messages are to be read now.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) subject: Arc<str>,
    /// Number of messages that the lane has room for: at least 1.
    pub(super) room: usize,
}

/// All subjects.
#[derive(Debug)]
pub(super) struct Lanes {
    shares: Shares,
    slots: Slots,
    priorities: usize,
    /// Maximum number of messages in flight to one subject.
    cap: usize,
    pub(super) remembered: usize,
    max_closed: usize,
    subjects: Vec<Option<Subject>>,
    free: Vec<Id>,
    ids: HashMap<Arc<str>, Id>,
    /// Lanes of each priority and class that can deliver now, by their turns.
    ready: Vec<[BTreeSet<(u64, Id)>; 4]>,
    /// The last turn that was given to a lane.
    turn: u64,
    /// Lanes of each priority whose parked messages are to be read, by the time from which they are.
    reloads: Vec<BTreeSet<(Millis, Id)>>,
    /// Number of lanes of each priority with waiting messages.
    occupied: Vec<usize>,
    /// Priorities with parked messages of subjects that were forgotten.
    forgotten: Vec<bool>,
    gates: BTreeSet<(Millis, Id)>,
    /// Number of messages of each priority that a lane may have in memory while others need the room.
    share: Vec<usize>,
}

impl Lanes {
    pub(super) fn new(weights: Vec<u32>, in_flight: usize, cap: usize) -> Self {
        let priorities = weights.len();
        Self {
            shares: Shares::new(weights),
            slots: Slots::new(in_flight),
            priorities,
            cap: cap.max(1),
            remembered: REMEMBERED,
            max_closed: CLOSED,
            subjects: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            ready: (0..priorities).map(|_| Default::default()).collect(),
            turn: 0,
            reloads: vec![BTreeSet::new(); priorities],
            occupied: vec![0; priorities],
            forgotten: vec![false; priorities],
            gates: BTreeSet::new(),
            share: vec![1; priorities],
        }
    }

    /// Returns the number of messages in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.used
    }

    /// Returns the number of subjects.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns `true` if a subject is remembered.
    #[cfg(test)]
    pub(super) fn knows(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    /// Returns the number of lanes of a priority with waiting messages.
    pub(super) fn occupied(&self, priority: usize) -> usize {
        self.occupied[priority]
    }

    /// Sets the number of messages of a priority that a lane may have in memory while others need the room.
    pub(super) fn set_share(&mut self, priority: usize, share: usize) {
        self.share[priority] = share.max(1);
    }

    /// Takes the message to deliver next. It is then in flight.
    pub(super) fn take(&mut self, now: Millis) -> Option<Place> {
        let (ready, slots) = (&self.ready, &self.slots);
        let first = |priority: usize| {
            let classes = ready[priority].iter().zip(Class::ALL);
            classes.filter(|(_, class)| slots.admits(*class)).filter_map(|(lanes, _)| lanes.first().copied()).min()
        };
        let priority = self.shares.choose(|priority| first(priority).is_some())?;
        let (_, id) = first(priority)?;
        let mut taken = None;
        self.change(id, now, |subject| {
            let lane = &mut subject.lanes[priority];
            taken = lane.waiting.pop_first();
            subject.in_flight += usize::from(taken.is_some());
        });
        self.slots.used += usize::from(taken.is_some());
        // The lane's next turn comes after those of all others.
        self.give_turn(id, priority);
        taken.map(|(_, place)| place)
    }

    /// Adds a message that is due.
    pub(super) fn push(&mut self, name: &Arc<str>, due: Millis, place: Place, now: Millis) {
        let id = self.id(name, now);
        self.change_lane(id, place.queue, now, |lane| {
            lane.waiting.insert((due, place));
        });
    }

    /// Removes a waiting message. Remembers the subject until [`Self::forget_idle`].
    pub(super) fn remove(&mut self, name: &str, due: Millis, place: Place, now: Millis) {
        if let Some(id) = self.ids.get(name).copied() {
            self.change_lane(id, place.queue, now, |lane| {
                lane.waiting.remove(&(due, place));
            });
        }
    }

    /// Ends a delivery. Remembers the subject until [`Self::forget_idle`].
    pub(super) fn landed(&mut self, name: &str, landing: Landing, now: Millis) {
        self.slots.used = self.slots.used.saturating_sub(1);
        if let Some(id) = self.ids.get(name).copied() {
            let cap = self.cap;
            self.change(id, now, |subject| subject.landed(landing, cap));
        }
    }

    /// Forgets a subject about which there is nothing to remember.
    pub(super) fn forget_idle(&mut self, name: &str) {
        if let Some(id) = self.ids.get(name).copied() {
            self.tidy(id);
        }
    }

    /// Closes the gate of a subject until a time. Returns `false` if the gate is closed for longer, and stays so, or if there
    /// is no room to remember one more closed subject.
    pub(super) fn close(&mut self, name: &Arc<str>, until: Millis, now: Millis) -> bool {
        let id = self.id(name, now);
        let Some(subject) = &self.subjects[id] else { return false };
        let has_room = subject.gate.is_some() || self.gates.len() < self.max_closed;
        if until <= now || !has_room || subject.gate.is_some_and(|gate| gate >= until) {
            self.tidy(id);
            return false;
        }
        if let Some(gate) = subject.gate {
            self.gates.remove(&(gate, id));
        }
        self.gates.insert((until, id));
        self.change(id, now, |subject| subject.gate = Some(until));
        true
    }

    /// Closes the gate of a subject to which nobody listens, for longer each time in a row. Deliveries that were under way
    /// together count as one. Returns `false` if there is no room to remember one more subject.
    pub(super) fn silent(&mut self, name: &Arc<str>, now: Millis, waits: Backoff, random: f64) -> bool {
        let is_full = self.ids.len() > self.remembered.max(1);
        let id = self.id(name, now);
        let Some(subject) = &mut self.subjects[id] else { return false };
        if subject.gate.is_some() {
            return true;
        }
        if is_full {
            return false;
        }
        let wait = waits.rest(subject.silences, random);
        subject.silences = subject.silences.saturating_add(1);
        self.close(name, now.saturating_add(millis(wait).max(1)), now)
    }

    /// Opens the gates that end.
    pub(super) fn advance(&mut self, now: Millis) {
        while let Some(&(at, id)) = self.gates.first()
            && at <= now
        {
            self.gates.pop_first();
            self.change(id, now, Subject::half_open);
            self.tidy(id);
        }
    }

    /// Returns the time after `now` at which a gate opens, or parked messages are to be read.
    pub(super) fn wake_at(&self, now: Millis) -> Option<Millis> {
        let gate = self.gates.first().map(|(at, _)| *at);
        let later =
            |lanes: &BTreeSet<(Millis, Id)>| lanes.range((now.saturating_add(1), 0)..).next().map(|(at, _)| *at);
        self.reloads.iter().filter_map(later).chain(gate).min()
    }

    /// Returns `true` if a lane has no room for one more message that is due. `is_crowded`: others need the room.
    pub(super) fn is_full(&self, name: &str, priority: usize, is_crowded: bool, now: Millis) -> bool {
        let Some(subject) = self.ids.get(name).and_then(|id| self.subjects[*id].as_ref()) else { return false };
        let lane = &subject.lanes[priority];
        let most = match (lane.parked, is_crowded) {
            (None, false) => return false,
            (None, true) => self.kept(subject, priority, now),
            // Those that are parked go first. But a lane that keeps up with them parks no others, so that it ends.
            (Some(_), false) if !subject.is_small(now) => self.low(priority),
            (Some(_), _) => 0,
        };
        lane.waiting.len() >= most
    }

    /// Records that a change with this number parks a message of a lane.
    pub(super) fn parked(&mut self, name: &Arc<str>, priority: usize, change: u64, now: Millis) {
        let id = self.id(name, now);
        self.change_lane(id, priority, now, |lane| lane.parked = lane.parked.max(Some(change)));
    }

    /// Returns the next lane of a priority whose parked messages are to be read now.
    pub(super) fn reload(&mut self, priority: usize, now: Millis) -> Option<Reload> {
        let (_, id) = self.reloads[priority].first().copied().filter(|(at, _)| *at <= now)?;
        let subject = self.subjects[id].as_ref()?;
        let most = if subject.is_small(now) { FEW.min(self.share[priority]) } else { self.share[priority] };
        let room = most.saturating_sub(subject.lanes[priority].waiting.len()).max(1);
        let subject = Arc::clone(&subject.name);
        self.change_lane(id, priority, now, |lane| lane.is_loading = true);
        Some(Reload { subject, room })
    }

    /// Returns `true` if parked messages of a priority are to be read now.
    pub(super) fn wants_reload(&self, priority: usize, now: Millis) -> bool {
        self.reloads[priority].first().is_some_and(|(at, _)| *at <= now)
    }

    /// Ends the read of parked messages. `until`: number of the last change that the store had carried out before. `None`:
    /// there may be more parked messages.
    pub(super) fn reloaded(&mut self, name: &str, priority: usize, until: Option<u64>, now: Millis) {
        let Some(id) = self.ids.get(name).copied() else { return };
        self.change_lane(id, priority, now, |lane| {
            lane.is_loading = false;
            lane.parked = lane.parked.filter(|change| until.is_none_or(|until| *change > until));
        });
        self.tidy(id);
    }

    /// Returns messages of a priority that take room which others need, at most `max`: all of subjects that do not deliver,
    /// and of the others what exceeds the share.
    pub(super) fn excess(&self, priority: usize, max: usize, now: Millis) -> Vec<Place> {
        let mut excess = Vec::new();
        for subject in self.subjects.iter().flatten() {
            let waiting = &subject.lanes[priority].waiting;
            let more = waiting.len().saturating_sub(self.kept(subject, priority, now));
            // The last ones, so that those that stay in memory are those that were due first.
            excess.extend(waiting.iter().rev().take(more.min(max - excess.len())).map(|(_, place)| *place));
            if excess.len() >= max {
                break;
            }
        }
        excess
    }

    /// Records that the store may have parked messages of subjects that are not known.
    pub(super) fn note_forgotten(&mut self, priority: usize) {
        if let Some(forgotten) = self.forgotten.get_mut(priority) {
            *forgotten = true;
        }
    }

    /// Returns `true` if the store may have parked messages of forgotten subjects of a priority, and resets it.
    pub(super) fn take_forgotten(&mut self, priority: usize) -> bool {
        std::mem::take(&mut self.forgotten[priority])
    }

    /// Returns the number of messages that a lane may have in memory while others need the room.
    fn kept(&self, subject: &Subject, priority: usize, now: Millis) -> usize {
        if subject.is_stuck(now.saturating_add(LEAD)) { 0 } else { self.share[priority] }
    }

    /// Returns the number of waiting messages of a lane below which its parked messages are read.
    fn low(&self, priority: usize) -> usize {
        (self.share[priority] / 2).max(1)
    }

    fn id(&mut self, name: &Arc<str>, now: Millis) -> Id {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.ids.len() >= self.remembered {
            self.make_room(now);
        }
        let subject = Subject::new(Arc::clone(name), self.cap, self.priorities);
        let id = match self.free.pop() {
            Some(id) => {
                self.subjects[id] = Some(subject);
                id
            }
            None => {
                self.subjects.push(Some(subject));
                self.subjects.len() - 1
            }
        };
        self.ids.insert(Arc::clone(name), id);
        id
    }

    /// Changes a subject, and lists its lanes where they belong.
    fn change(&mut self, id: Id, now: Millis, change: impl FnOnce(&mut Subject)) {
        let Some(subject) = &mut self.subjects[id] else { return };
        let unproven = |subject: &Subject| if subject.is_proven() { 0 } else { subject.in_flight };
        let before = unproven(subject);
        change(subject);
        self.slots.unproven = (self.slots.unproven + unproven(subject)).saturating_sub(before);
        for priority in 0..self.priorities {
            self.arrange(id, priority, now);
        }
    }

    fn change_lane(&mut self, id: Id, priority: usize, now: Millis, change: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.subjects[id].as_mut().and_then(|subject| subject.lanes.get_mut(priority)) {
            change(lane);
            self.arrange(id, priority, now);
        }
    }

    /// Gives a lane that can deliver the last turn.
    fn give_turn(&mut self, id: Id, priority: usize) {
        let Some(subject) = &mut self.subjects[id] else { return };
        if let Some((class, turn)) = &mut subject.lanes[priority].ready {
            let ready = &mut self.ready[priority][*class as usize];
            ready.remove(&(*turn, id));
            self.turn += 1;
            *turn = self.turn;
            ready.insert((*turn, id));
        }
    }

    /// Lists a lane where it belongs.
    fn arrange(&mut self, id: Id, priority: usize, now: Millis) {
        let low = self.low(priority);
        let Some(subject) = &mut self.subjects[id] else { return };
        let (class, is_open) = (subject.class(), subject.is_open());
        let low = if subject.is_small(now) || subject.in_flight >= subject.allowance { 1 } else { low };
        let opens = subject.gate.map(|gate| gate.saturating_sub(LEAD));
        let lane = &mut subject.lanes[priority];

        let is_occupied = !lane.waiting.is_empty();
        if std::mem::replace(&mut lane.is_occupied, is_occupied) != is_occupied {
            let occupied = &mut self.occupied[priority];
            *occupied = if is_occupied { *occupied + 1 } else { occupied.saturating_sub(1) };
        }

        let before = lane.ready.take();
        if let Some((class, turn)) = before {
            self.ready[priority][class as usize].remove(&(turn, id));
        }
        if is_occupied && is_open {
            let turn = before.map_or_else(
                || {
                    self.turn += 1;
                    self.turn
                },
                |(_, turn)| turn,
            );
            self.ready[priority][class as usize].insert((turn, id));
            lane.ready = Some((class, turn));
        }

        let before = lane.reload.take();
        if let Some(at) = before {
            self.reloads[priority].remove(&(at, id));
        }
        if lane.parked.is_some() && !lane.is_loading && lane.waiting.len() < low {
            // A lane keeps its place among those that wait for their read.
            let at = match (opens, before) {
                (Some(opens), _) if opens > now => opens,
                (_, Some(before)) if before <= now => before,
                _ => now,
            };
            self.reloads[priority].insert((at, id));
            lane.reload = Some(at);
        }
    }

    /// Forgets a subject about which there is nothing to remember.
    fn tidy(&mut self, id: Id) {
        if self.subjects[id].as_ref().is_some_and(|subject| subject.is_idle() && !subject.is_parked()) {
            self.forget(id);
        }
    }

    /// Forgets a subject of which nothing but parked messages is known: the one whose messages would be read last.
    fn make_room(&mut self, now: Millis) {
        let is_idle = |id: &Id| self.subjects[*id].as_ref().is_some_and(Subject::is_idle);
        let last = self.reloads.iter().flat_map(|lanes| lanes.range(..=(now, Id::MAX)).rev().take(LOOKED_AT));
        if let Some(id) = last.map(|(_, id)| *id).find(is_idle) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: Id) {
        let Some(subject) = self.subjects[id].take() else { return };
        for (priority, lane) in subject.lanes.iter().enumerate() {
            self.forgotten[priority] |= lane.parked.is_some();
            if let Some(at) = lane.reload {
                self.reloads[priority].remove(&(at, id));
            }
        }
        self.ids.remove(&subject.name);
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_parks_is_not_forgotten_because_an_older_one_is_found() {
        let mut lanes = Lanes::new(vec![1], 64, 16);
        let subject: Arc<str> = "a".into();
        lanes.parked(&subject, 0, 41, 0);
        assert_eq!(lanes.reload(0, 0).map(|reload| reload.subject), Some(Arc::clone(&subject)));
        // A search for forgotten subjects finds one of its messages, while a read that does not see change 41 is under way.
        lanes.parked(&subject, 0, 0, 0);
        lanes.reloaded(&subject, 0, Some(40), 0);
        assert!(lanes.wants_reload(0, 0), "the message of change 41 is stuck");
        lanes.reload(0, 0).unwrap();
        lanes.reloaded(&subject, 0, Some(41), 0);
        assert!(!lanes.wants_reload(0, 0) && lanes.len() == 0);
    }
    #[test]
    fn closed_subjects_do_not_fill_the_memory() {
        let mut lanes = Lanes::new(vec![1], 64, 16);
        lanes.max_closed = 50;
        let closed = (0..100).filter(|number| lanes.close(&format!("s{number}").into(), 9, 0)).count();
        assert_eq!((closed, lanes.len()), (50, 50));
        assert!(lanes.close(&"s0".into(), 10, 0), "a closed one may stay closed for longer");
        lanes.advance(10);
        assert_eq!(lanes.len(), 0);
    }
}
