//! A store in memory, for tests of the scheduler: carries out turns as the embedded queue does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::window::Read;
use super::{Expired, Message, Millis, Rules, Scheduler};
use crate::settings::{Growth, Settings};
use hostler_queue_embedded::{Load, Place, Step, Turn, Wanted};
use hostler_types::Backoff;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Content of a test's message: its number.
pub(super) type Number = u32;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) number: Number,
    pub(super) subject: Arc<str>,
    /// `None`: parked.
    visible_at: Option<Millis>,
    due: Millis,
    pub(super) attempts: u32,
    pub(super) settings: Settings,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) rows: BTreeMap<Place, Row>,
    pub(super) dead: BTreeMap<Number, String>,
    pub(super) removed: Vec<Number>,
    pub(super) closed: BTreeMap<Arc<str>, Millis>,
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
        let due = now + super::millis(settings.delay);
        let visible_at = (!parked).then_some(due);
        let row = Row { number, subject: Arc::clone(subject), visible_at, due, attempts: 0, settings };
        let message = message(place, &row);
        self.rows.insert(place, row);
        message
    }

    /// Carries out the changes and the loads of a turn.
    pub(super) fn carry_out(&mut self, turn: &Turn) -> Vec<Read<Number>> {
        for step in &turn.steps {
            match step {
                Step::Remove(place) => {
                    if let Some(row) = self.rows.remove(place) {
                        self.removed.push(row.number);
                    }
                }
                Step::Reschedule { place, attempts, due } => {
                    if let Some(row) = self.rows.get_mut(place) {
                        (row.visible_at, row.due, row.attempts) = (Some(*due), *due, *attempts);
                    }
                }
                Step::Park { place, subject } => {
                    if let Some(row) = self.rows.get_mut(place) {
                        assert_eq!(row.subject, *subject);
                        row.visible_at = None;
                    }
                }
                Step::Close { subject, until } => drop(self.closed.insert(Arc::clone(subject), *until)),
                Step::DeadLetter { place, reason, .. } => {
                    if let Some(row) = self.rows.remove(place) {
                        self.dead.insert(row.number, reason.clone());
                    }
                }
            }
        }
        turn.loads.iter().map(|load| self.read(load)).collect()
    }

    fn read(&self, load: &Load) -> Read<Number> {
        let rows = self.rows.iter().filter(|(place, _)| place.queue == load.queue && !load.skip.contains(&place.seq));
        let mut found: Vec<_> = match &load.wanted {
            Wanted::Due { after, until } => rows
                .filter_map(|(place, row)| Some(((row.visible_at?, place.enqueued_at, place.seq), place, row)))
                .filter(|(at, ..)| at.0 <= *until && after.is_none_or(|after| *at > after))
                .collect(),
            Wanted::Parked(subject) => rows
                .filter(|(_, row)| row.visible_at.is_none() && row.subject == *subject)
                .map(|(place, row)| ((place.seq, 0, 0), place, row))
                .collect(),
        };
        found.sort_by_key(|(at, ..)| *at);
        let has_more = found.len() > load.max;
        found.truncate(load.max);
        let end = found.last().map(|(at, ..)| *at);
        Read { messages: found.into_iter().map(|(_, place, row)| message(*place, row)).collect(), has_more, end }
    }

    /// Returns a scheduler as after a start of the service.
    pub(super) fn scheduler(&self, rules: Rules, now: Millis) -> Scheduler<Number> {
        let mut scheduler = Scheduler::new(rules);
        for (place, row) in self.rows.iter().filter(|(_, row)| row.visible_at.is_none()) {
            scheduler.restore(now, place.queue, &row.subject);
        }
        for (subject, until) in &self.closed {
            scheduler.restore_closed(now, subject, *until);
        }
        scheduler
    }
}

fn message(place: Place, row: &Row) -> Message<Number> {
    Message {
        place,
        subject: Arc::clone(&row.subject),
        due: row.due,
        attempts: row.attempts,
        settings: row.settings,
        size: 100,
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
