//! Subjects and their lanes: a lane has the waiting messages of one subject and one priority.
//!
//! A subject is closed while its gate is, and while it has as many messages in flight as it may have.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::shares::Shares;
use super::{AHEAD, Millis, millis};
use hostler_queue_embedded::Place;
use hostler_types::Backoff;

/// Index of a subject.
type Id = usize;

/// A subject that has messages in memory or parked ones, or whose gate is closed.
#[derive(Debug)]
struct Subject {
    name: Arc<str>,
    in_flight: usize,
    /// Time at which the gate opens. `None`: it is open.
    gate: Option<Millis>,
    /// Number of waits in a row because nobody listened.
    silences: u32,
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Default)]
struct Lane {
    /// Messages that wait, by the time at which they are due.
    waiting: BTreeSet<(Millis, Place)>,
    /// Set if the store may have parked messages of this lane that are not in memory.
    is_parked: bool,
    /// Set while parked messages are being read.
    is_loading: bool,
    spot: Option<Spot>,
    /// Time for which the lane is listed in [`Lanes::reloads`].
    reload: Option<Millis>,
}

/// Place of a lane with waiting messages in the lists of [`Lanes`].
#[derive(Debug, Clone, Copy)]
enum Spot {
    /// The lane is ready. The time is that at which its first message was due.
    Ready(Millis),
    /// The lane may be ready at this time.
    Later(Millis),
}

/// All subjects.
#[derive(Debug)]
pub(super) struct Lanes {
    shares: Shares,
    priorities: usize,
    /// Maximum number of messages in flight to one subject.
    cap: usize,
    subjects: Vec<Option<Subject>>,
    free: Vec<Id>,
    ids: HashMap<Arc<str>, Id>,
    /// Lanes of each priority that can deliver now, by the time at which their first message was due.
    ready: Vec<BTreeSet<(Millis, Id)>>,
    /// Lanes that may be ready later.
    later: BTreeSet<(Millis, Id, usize)>,
    /// Lanes whose parked messages are to be read, by the time from which they are.
    reloads: BTreeSet<(Millis, Id, usize)>,
    gates: BTreeSet<(Millis, Id)>,
    /// Number of waiting messages of a lane below which its parked messages are read.
    low: usize,
}

impl Lanes {
    pub(super) fn new(weights: Vec<u32>, cap: usize) -> Self {
        let priorities = weights.len();
        Self {
            shares: Shares::new(weights),
            priorities,
            cap: cap.max(1),
            subjects: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            ready: vec![BTreeSet::new(); priorities],
            later: BTreeSet::new(),
            reloads: BTreeSet::new(),
            gates: BTreeSet::new(),
            low: 1,
        }
    }

    /// Returns the number of subjects.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Sets the number of waiting messages of a lane below which its parked messages are read.
    pub(super) fn refill_below(&mut self, low: usize) {
        self.low = low.max(1);
    }

    /// Takes the message to deliver next. It is then in flight.
    pub(super) fn take(&mut self, now: Millis) -> Option<Place> {
        let ready = &self.ready;
        let priority = self.shares.choose(|priority| !ready[priority].is_empty())?;
        let (_, id) = *self.ready[priority].first()?;
        let subject = self.subjects[id].as_mut()?;
        let (_, place) = subject.lanes[priority].waiting.pop_first()?;
        subject.in_flight += 1;
        self.arrange_all(id, now);
        Some(place)
    }

    /// Adds a waiting message.
    pub(super) fn add(&mut self, name: &Arc<str>, due: Millis, place: Place, now: Millis) {
        let id = self.id(name);
        if let Some(lane) = self.lane(id, place.queue) {
            lane.waiting.insert((due, place));
        }
        self.arrange(id, place.queue, now);
    }

    /// Removes a waiting message.
    pub(super) fn remove(&mut self, name: &str, due: Millis, place: Place, now: Millis) {
        let Some(id) = self.ids.get(name).copied() else { return };
        if let Some(lane) = self.lane(id, place.queue) {
            lane.waiting.remove(&(due, place));
        }
        self.arrange(id, place.queue, now);
        self.tidy(id, now);
    }

    /// Ends a delivery. Remembers the subject until [`Self::forget_idle`].
    pub(super) fn landed(&mut self, name: &str, now: Millis) {
        let Some(id) = self.ids.get(name).copied() else { return };
        if let Some(subject) = &mut self.subjects[id] {
            subject.in_flight = subject.in_flight.saturating_sub(1);
        }
        self.arrange_all(id, now);
    }

    /// Forgets a subject about which there is nothing to remember.
    pub(super) fn forget_idle(&mut self, name: &str, now: Millis) {
        if let Some(id) = self.ids.get(name).copied() {
            self.tidy(id, now);
        }
    }

    /// Records that somebody listens to a subject.
    pub(super) fn heard(&mut self, name: &str) {
        if let Some(subject) = self.ids.get(name).and_then(|id| self.subjects[*id].as_mut()) {
            subject.silences = 0;
        }
    }

    /// Closes the gate of a subject until a time. Returns `false` if the gate is closed for longer, and stays so.
    pub(super) fn close(&mut self, name: &Arc<str>, until: Millis, now: Millis) -> bool {
        let id = self.id(name);
        let Some(subject) = &mut self.subjects[id] else { return false };
        if until <= now || subject.gate.is_some_and(|gate| gate >= until) {
            return false;
        }
        if let Some(gate) = subject.gate.replace(until) {
            self.gates.remove(&(gate, id));
        }
        self.gates.insert((until, id));
        self.arrange_all(id, now);
        true
    }

    /// Closes the gate of a subject to which nobody listens, for longer each time in a row. Deliveries that were under way
    /// together count as one.
    pub(super) fn silent(&mut self, name: &Arc<str>, now: Millis, waits: Backoff, random: f64) {
        let id = self.id(name);
        let Some(subject) = &mut self.subjects[id] else { return };
        if subject.gate.is_some_and(|gate| gate > now) {
            return;
        }
        let wait = waits.rest(subject.silences, random);
        subject.silences = subject.silences.saturating_add(1);
        self.close(name, now.saturating_add(millis(wait).max(1)), now);
    }

    /// Opens the gates that end, and lists the lanes that are ready now.
    pub(super) fn advance(&mut self, now: Millis) {
        while let Some(&(at, id)) = self.gates.first()
            && at <= now
        {
            self.gates.pop_first();
            if let Some(subject) = &mut self.subjects[id] {
                subject.gate = None;
            }
            self.arrange_all(id, now);
            self.tidy(id, now);
        }
        while let Some(&(at, id, priority)) = self.later.first()
            && at <= now
        {
            // Lists the lane elsewhere.
            self.arrange(id, priority, now);
        }
    }

    /// Returns the time after `now` at which a lane may be ready, or parked messages are to be read.
    pub(super) fn wake_at(&self, now: Millis) -> Option<Millis> {
        // The end of a gate without waiting messages needs no wake.
        let ready = self.later.first().map(|(at, ..)| *at);
        let reload = self.reloads.range((now.saturating_add(1), 0, 0)..).next().map(|(at, ..)| *at);
        ready.into_iter().chain(reload).min()
    }

    /// Returns the number of waiting messages of a lane. `None`: the store has parked messages of the lane, so that
    /// further ones have to be parked too.
    pub(super) fn waiting(&self, name: &str, priority: usize) -> Option<usize> {
        let lane = self.ids.get(name).and_then(|id| self.subjects[*id].as_ref()?.lanes.get(priority));
        lane.map_or(Some(0), |lane| (!lane.is_parked).then_some(lane.waiting.len()))
    }

    /// Records that the store has parked messages of a lane.
    pub(super) fn parked(&mut self, name: &Arc<str>, priority: usize, now: Millis) {
        let id = self.id(name);
        if let Some(lane) = self.lane(id, priority) {
            lane.is_parked = true;
        }
        self.arrange(id, priority, now);
    }

    /// Returns the next lane whose parked messages are to be read now, with its number of waiting messages.
    pub(super) fn reload(&mut self, now: Millis, has_room: impl Fn(usize) -> bool) -> Option<(Arc<str>, usize, usize)> {
        let due = self.reloads.iter().take_while(|(at, ..)| *at <= now);
        let (_, id, priority) = due.copied().find(|(_, _, priority)| has_room(*priority))?;
        let lane = self.lane(id, priority)?;
        lane.is_loading = true;
        let waiting = lane.waiting.len();
        self.arrange(id, priority, now);
        self.subjects[id].as_ref().map(|subject| (Arc::clone(&subject.name), priority, waiting))
    }

    /// Ends the read of parked messages. `is_parked`: there may be more.
    pub(super) fn reloaded(&mut self, name: &str, priority: usize, is_parked: bool, now: Millis) {
        let Some(id) = self.ids.get(name).copied() else { return };
        if let Some(lane) = self.lane(id, priority) {
            (lane.is_loading, lane.is_parked) = (false, is_parked);
        }
        self.arrange(id, priority, now);
        self.tidy(id, now);
    }

    /// Returns due messages of a priority that take room which others could use: all of closed subjects, and of the others
    /// what exceeds `share`.
    pub(super) fn excess(&self, priority: usize, share: usize, now: Millis) -> Vec<(Arc<str>, Millis, Place)> {
        let mut excess = Vec::new();
        for subject in self.subjects.iter().flatten() {
            let keep = match subject.gate {
                Some(gate) if gate > now.saturating_add(AHEAD) => 0,
                _ if subject.in_flight >= self.cap => 1,
                _ => share,
            };
            let Some(lane) = subject.lanes.get(priority) else { continue };
            let due = lane.waiting.iter().take_while(|(due, _)| *due <= now);
            excess.extend(due.skip(keep).map(|(due, place)| (Arc::clone(&subject.name), *due, *place)));
        }
        excess
    }

    fn id(&mut self, name: &Arc<str>) -> Id {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let lanes = vec![Lane::default(); self.priorities];
        let subject = Subject { name: Arc::clone(name), in_flight: 0, gate: None, silences: 0, lanes };
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

    fn lane(&mut self, id: Id, priority: usize) -> Option<&mut Lane> {
        self.subjects[id].as_mut()?.lanes.get_mut(priority)
    }

    fn arrange_all(&mut self, id: Id, now: Millis) {
        for priority in 0..self.priorities {
            self.arrange(id, priority, now);
        }
    }

    /// Lists a lane where it belongs.
    fn arrange(&mut self, id: Id, priority: usize, now: Millis) {
        let Some(subject) = &mut self.subjects[id] else { return };
        let is_full = subject.in_flight >= self.cap;
        let gate = subject.gate.filter(|gate| *gate > now);
        let Some(lane) = subject.lanes.get_mut(priority) else { return };
        match lane.spot.take() {
            Some(Spot::Ready(due)) => drop(self.ready[priority].remove(&(due, id))),
            Some(Spot::Later(at)) => drop(self.later.remove(&(at, id, priority))),
            None => {}
        }
        if let Some(&(due, _)) = lane.waiting.first()
            && !is_full
        {
            let at = gate.map_or(due, |gate| gate.max(due));
            if at <= now {
                self.ready[priority].insert((due, id));
                lane.spot = Some(Spot::Ready(due));
            } else {
                self.later.insert((at, id, priority));
                lane.spot = Some(Spot::Later(at));
            }
        }
        if let Some(at) = lane.reload.take() {
            self.reloads.remove(&(at, id, priority));
        }
        let low = if is_full { 1 } else { self.low };
        if lane.is_parked && !lane.is_loading && lane.waiting.len() < low {
            let at = gate.map_or(Millis::MIN, |gate| gate.saturating_sub(AHEAD));
            self.reloads.insert((at, id, priority));
            lane.reload = Some(at);
        }
    }

    fn tidy(&mut self, id: Id, now: Millis) {
        let Some(subject) = &self.subjects[id] else { return };
        let is_idle = |lane: &Lane| lane.waiting.is_empty() && !lane.is_parked && !lane.is_loading;
        let is_open = subject.gate.is_none_or(|gate| gate <= now);
        if subject.in_flight == 0 && is_open && subject.lanes.iter().all(is_idle) {
            if let Some(gate) = subject.gate {
                self.gates.remove(&(gate, id));
            }
            self.ids.remove(&subject.name);
            self.subjects[id] = None;
            self.free.push(id);
        }
    }
}
