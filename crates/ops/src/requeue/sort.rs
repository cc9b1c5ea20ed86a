//! Which messages of a batch move, and in which order they may be sent.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use super::Condition;
use hostler_queue::Delivery;
use hostler_types::message::Message;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes to the target.
    Move,
    /// It stays: a condition does not hold.
    Left,
    /// It stays: one of its group that comes before it stays.
    Behind,
    /// It stays: it came after the run began.
    Late,
}

/// Sorts messages by what becomes of them.
#[derive(Debug)]
pub(super) struct Sorter {
    conditions: Vec<Condition>,
    began: SystemTime,
    ordered: bool,
    /// Groups of an ordered queue of which a message stays: nothing behind it may move.
    stuck: HashSet<Option<String>>,
}

impl Sorter {
    /// For a queue that keeps an order within groups, or does not; later than `began` is late.
    pub(super) fn new(conditions: Vec<Condition>, began: SystemTime, ordered: bool) -> Self {
        Self { conditions, began, ordered, stuck: HashSet::new() }
    }

    /// Whether the conditions ask for the body.
    pub(super) fn needs_body(&self) -> bool {
        self.conditions.iter().any(Condition::needs_body)
    }

    /// What becomes of a message. If it stays, so does what comes behind it in its group.
    pub(super) fn judge(&mut self, message: &Message) -> Verdict {
        let verdict = match () {
            () if self.ordered && self.stuck.contains(&message.group) => Verdict::Behind,
            () if message.enqueued_at > self.began => Verdict::Late,
            () if self.conditions.iter().all(|condition| condition.holds(message, self.began)) => Verdict::Move,
            () => Verdict::Left,
        };
        if verdict != Verdict::Move {
            self.stays(message);
        }
        verdict
    }

    /// A message stays, whatever was thought of it before.
    pub(super) fn stays(&mut self, message: &Message) {
        if self.ordered && !self.stuck.contains(&message.group) {
            self.stuck.insert(message.group.clone());
        }
    }

    /// Splits a batch into what may be sent in one call each: of an ordered queue one message per group, as of two in one
    /// call the first could fail alone.
    pub(super) fn waves(&self, batch: Vec<Delivery>) -> Vec<Vec<Delivery>> {
        if !self.ordered {
            return vec![batch];
        }
        let mut places: HashMap<Option<String>, usize> = HashMap::new();
        let mut waves: Vec<Vec<Delivery>> = Vec::new();
        for delivery in batch {
            let place = places.entry(delivery.message.group.clone()).or_default();
            match waves.get_mut(*place) {
                Some(wave) => wave.push(delivery),
                None => waves.push(vec![delivery]),
            }
            *place += 1;
        }
        waves
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use hostler_queue::Receipt;

    const BEGAN: SystemTime = SystemTime::UNIX_EPOCH;

    /// `g1`: the body, and the group as its first letter.
    fn message(body: &str) -> Message {
        Message {
            id: body.into(),
            body: body.to_owned().into(),
            attributes: Default::default(),
            enqueued_at: BEGAN,
            group: Some(body[..1].into()),
            routing_key: None,
            claim: None,
            trace: None,
        }
    }

    fn waves(ordered: bool, bodies: &[&str]) -> Vec<Vec<String>> {
        let batch = bodies.iter().map(|body| {
            let message = Arc::new(message(body));
            Delivery { message, receipt: Receipt::new(*body), attempt: 1, leased_at: Instant::now() }
        });
        let waves = Sorter::new(Vec::new(), BEGAN, ordered).waves(batch.collect());
        let ids = |wave: Vec<Delivery>| wave.iter().map(|delivery| delivery.message.id.clone()).collect();
        waves.into_iter().map(ids).collect()
    }

    #[test]
    fn of_a_group_one_message_is_sent_at_a_time() {
        let bodies = ["a1", "a2", "b1", "a3", "c1", "b2"];
        assert_eq!(waves(true, &bodies), [vec!["a1", "b1", "c1"], vec!["a2", "b2"], vec!["a3"]]);
        assert_eq!(waves(false, &bodies), [bodies]);
    }

    #[test]
    fn nothing_passes_a_message_of_its_group_that_stays() {
        let verdicts = |ordered| {
            let mut sorter = Sorter::new(vec![Condition::Body("m".into())], BEGAN, ordered);
            ["a1m", "a2", "a3m", "b1m"].map(|body| sorter.judge(&message(body)))
        };
        assert_eq!(verdicts(true), [Verdict::Move, Verdict::Left, Verdict::Behind, Verdict::Move]);
        assert_eq!(verdicts(false), [Verdict::Move, Verdict::Left, Verdict::Move, Verdict::Move]);
    }

    #[test]
    fn what_fails_blocks_its_group_too() {
        let mut sorter = Sorter::new(Vec::new(), BEGAN, true);
        assert_eq!(sorter.judge(&message("a1")), Verdict::Move);
        sorter.stays(&message("a1"));
        assert_eq!(sorter.judge(&message("a2")), Verdict::Behind);
    }

    #[test]
    fn what_came_after_the_begin_is_late() {
        let mut sorter = Sorter::new(Vec::new(), BEGAN, false);
        let late = Message { enqueued_at: BEGAN + Duration::from_millis(1), ..message("a1") };
        assert_eq!((sorter.judge(&late), sorter.judge(&message("a1"))), (Verdict::Late, Verdict::Move));
    }
}
