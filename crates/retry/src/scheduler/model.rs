//! A store in memory, for tests of the scheduler: carries out turns as the embedded queue does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::turns::Read;
use super::{Expired, Message, Millis, Rules, Scheduler};
use crate::settings::{Growth, Settings};
use hostler_queue_embedded::{Cursor, Load, Place, Step, Turn, Wanted};
use hostler_types::Backoff;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Content of a test's message: its number.
pub(super) type Number = u32;

/// Size of a test's message.
pub(super) const SIZE: usize = 100;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) number: Number,
    pub(super) subject: Arc<str>,
    visible_at: Option<Millis>,
    due: Millis,
    is_parked: bool,
    pub(super) attempts: u32,
    pub(super) settings: Settings,
}

/// Position of a parked message in its index.
type Parked = (usize, Arc<str>, Millis, i64);

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) rows: BTreeMap<Place, Row>,
    visible: BTreeSet<(usize, Cursor)>,
    parked: BTreeMap<Parked, Place>,
    pub(super) dead: BTreeMap<Number, String>,
    pub(super) removed: Vec<Number>,
    pub(super) closed: BTreeMap<Arc<str>, Millis>,
    /// Number of rows that were written to park a message.
    pub(super) parks: usize,
    last: i64,
}

impl Store {
    pub(super) fn insert(
        &mut self,
        now: Millis,
        number: Number,
        subject: &Arc<str>,
        settings: Settings,
        parked: bool,
    ) -> Message<Number> {
        self.last += 1;
        let place = Place { queue: settings.priority, enqueued_at: now, seq: self.last };
        let expires = settings.ttl.map(|ttl| now + super::millis(ttl));
        let delayed = now + super::millis(settings.delay);
        let due = expires.map_or(delayed, |expires| expires.min(delayed));
        let is_parked = parked && due <= now;
        let visible_at = (!is_parked).then_some(due);
        let row = Row { number, subject: Arc::clone(subject), visible_at, due, is_parked, attempts: 0, settings };
        let message = message(place, &row);
        self.put(place, row);
        message
    }

    fn put(&mut self, place: Place, row: Row) {
        if let Some(at) = row.visible_at {
            self.visible.insert((place.queue, (at, place.enqueued_at, place.seq)));
        }
        if row.is_parked {
            self.parked.insert((place.queue, Arc::clone(&row.subject), row.due, place.seq), place);
        }
        self.rows.insert(place, row);
    }

    fn take(&mut self, place: Place) -> Option<Row> {
        let row = self.rows.remove(&place)?;
        if let Some(at) = row.visible_at {
            self.visible.remove(&(place.queue, (at, place.enqueued_at, place.seq)));
        }
        self.parked.remove(&(place.queue, Arc::clone(&row.subject), row.due, place.seq));
        Some(row)
    }

    /// Carries out the changes and the loads of a turn.
    pub(super) fn carry_out(&mut self, turn: &Turn) -> Vec<Read<Number>> {
        for step in &turn.steps {
            self.apply(step);
        }
        turn.loads.iter().map(|load| self.read(load)).collect()
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Remove(place) => {
                if let Some(row) = self.take(*place) {
                    self.removed.push(row.number);
                }
            }
            Step::Reschedule { place, attempts, due } => {
                if let Some(row) = self.take(*place) {
                    let row = Row { visible_at: Some(*due), due: *due, is_parked: false, attempts: *attempts, ..row };
                    self.put(*place, row);
                }
            }
            Step::Park { place, subject, due, until } => {
                if let Some(row) = self.take(*place) {
                    assert_eq!(row.subject, *subject);
                    self.parks += 1;
                    self.put(*place, Row { visible_at: *until, due: *due, is_parked: true, ..row });
                }
            }
            Step::Close { subject, until } => drop(self.closed.insert(Arc::clone(subject), *until)),
            Step::DeadLetter { place, reason, .. } => {
                if let Some(row) = self.take(*place) {
                    self.dead.insert(row.number, reason.clone());
                }
            }
        }
    }

    fn read(&self, load: &Load) -> Read<Number> {
        let queue = load.queue;
        let place = |(_, enqueued_at, seq): Cursor| Place { queue, enqueued_at, seq };
        let min = (i64::MIN, i64::MIN, i64::MIN);
        match &load.wanted {
            Wanted::Due { after, until } => {
                let (after, until) = (after.unwrap_or(min), (*until, i64::MAX, i64::MAX));
                let found = self.visible.range((queue, after)..=(queue, until)).map(|(_, at)| *at);
                self.page(load, found.filter(|at| *at > after).map(|at| (place(at), Some(at))))
            }
            Wanted::Parked(subject) => {
                let first = (queue, Arc::clone(subject), i64::MIN, i64::MIN);
                let last = (queue, Arc::clone(subject), i64::MAX, i64::MAX);
                self.page(load, self.parked.range(first..=last).map(|(_, place)| (*place, None)))
            }
            Wanted::Subjects { after } => {
                let mut last: Arc<str> = after.as_str().into();
                let next = std::iter::from_fn(|| {
                    let mut later = self.parked.range((queue, Arc::clone(&last), i64::MAX, i64::MAX)..);
                    let ((found, subject, ..), place) = later.next()?;
                    last = Arc::clone(subject);
                    (*found == queue).then_some((*place, None))
                });
                self.page(load, next)
            }
        }
    }

    fn page(&self, load: &Load, found: impl Iterator<Item = (Place, Option<Cursor>)>) -> Read<Number> {
        let mut read = Read { messages: Vec::new(), has_more: false, end: None };
        for (place, at) in found.filter(|(place, _)| !load.skip.contains(&place.seq)) {
            if read.messages.len() == load.max || read.messages.len() * SIZE >= load.max_bytes {
                read.has_more = true;
                break;
            }
            read.end = at;
            read.messages.push(message(place, &self.rows[&place]));
        }
        read
    }

    /// Tells a new scheduler what it has to know at a start of the service.
    pub(super) fn restore(&self, scheduler: &mut Scheduler<Number>, now: Millis) {
        let subjects: BTreeSet<_> = self.parked.keys().map(|(queue, subject, ..)| (*queue, subject)).collect();
        for (priority, subject) in subjects {
            scheduler.restore(now, priority, subject);
        }
        for (subject, until) in &self.closed {
            scheduler.restore_closed(now, subject, *until);
        }
    }

    /// Returns the number of rows that are parked.
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }
}

fn message(place: Place, row: &Row) -> Message<Number> {
    Message {
        place,
        subject: Arc::clone(&row.subject),
        due: row.due,
        attempts: row.attempts,
        settings: row.settings,
        size: SIZE,
        content: Arc::new(row.number),
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        retries: 3,
        ttl: None,
        delay: Duration::ZERO,
        backoff: Growth::Fixed,
        base: SECOND,
        max: SECOND * 60,
        priority: 0,
    }
}

pub(super) fn rules() -> Rules {
    Rules {
        weights: vec![1],
        in_flight: 100,
        in_flight_per_subject: 100,
        expired: Expired::DeadLetter,
        silence: Backoff::new(SECOND, SECOND * 60),
        window: 1_000,
        window_bytes: 1 << 20,
        lane: 100,
    }
}
