//! Decides which messages of a batch move, and the order in which they are sent.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use super::Condition;
use hostler_queue::{Delivery, ORIGINAL_ID_ATTRIBUTE};
use hostler_types::message::{AttributeValue, Message};

/// Maximum lag of a message's timestamp behind our clock. The lag is 0.1 s in an embedded queue, and one second on SQS
/// because of rounding. A message with a timestamp up to this long before the run's start may have been sent after the
/// start.
const DRIFT: Duration = Duration::from_secs(2);

/// Decision about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The message moves to the target.
    Move,
    /// The message does not move, because a condition does not hold.
    Left,
    /// The message meets the conditions. It does not move, because an earlier message of its group does not move.
    Behind,
    /// The message does not move, because it was sent after the run began, or because it was dead-lettered again after
    /// this run moved it.
    Late,
}

/// Decides which messages move. Messages must be passed in the order of the queue.
#[derive(Debug)]
pub(super) struct Sorter {
    conditions: Vec<Condition>,
    began: SystemTime,
    ordered: bool,
    /// Set if several messages of the source may have the same id.
    ids_repeat: bool,
    /// Groups of an ordered queue in which a message did not move. No later message of these groups may move.
    stuck: HashSet<Option<String>>,
    /// Hashes of the ids of moved messages. Hashes save memory, because a run may move millions of messages.
    moved: HashSet<u64>,
    hasher: RandomState,
}

impl Sorter {
    /// Creates a sorter. `ordered`: the queue preserves the order within groups. `began`: start of the run. A message
    /// that was sent after the start is late.
    pub(super) fn new(conditions: Vec<Condition>, began: SystemTime, ordered: bool) -> Self {
        let (stuck, moved, hasher) = (HashSet::new(), HashSet::new(), RandomState::new());
        Self { conditions, began, ordered, ids_repeat: false, stuck, moved, hasher }
    }

    /// Sets whether several messages of the source may have the same id. The id of a moved message then says nothing of another.
    pub(super) fn with_ids(self, ids_repeat: bool) -> Self {
        Self { ids_repeat, ..self }
    }

    /// Returns `true` if a condition reads the body.
    pub(super) fn needs_body(&self) -> bool {
        self.conditions.iter().any(Condition::needs_body)
    }

    /// Decides whether a message moves. If it does not, later messages of its group do not move either.
    pub(super) fn judge(&mut self, message: &Message) -> Verdict {
        let verdict = match () {
            () if message.enqueued_at > self.began || self.came_back(message) => Verdict::Late,
            () if !self.conditions.iter().all(|condition| condition.holds(message, self.began)) => Verdict::Left,
            () if self.is_behind(message) => Verdict::Behind,
            () => Verdict::Move,
        };
        if verdict != Verdict::Move {
            self.stays(message);
        }
        verdict
    }

    /// Records that a copy of a message was sent. `copy`: id of the copy.
    pub(super) fn moved(&mut self, message: &Message, copy: &str) {
        // A copy has the message's original id as an attribute, unless the message had no room for that attribute.
        let original = Some(original_id(message)).filter(|_| !self.ids_repeat);
        for id in original.into_iter().chain([copy]) {
            self.moved.insert(self.hasher.hash_one(id));
        }
    }

    /// Returns `true` if this run has already moved the message and the message was then dead-lettered again. A known
    /// id alone does not prove this, because copies of one message in several queues have the same original id.
    /// Therefore, the message must also have been sent after the run began.
    fn came_back(&self, message: &Message) -> bool {
        let is_known = |id: &str| self.moved.contains(&self.hasher.hash_one(id));
        !self.moved.is_empty()
            && message.enqueued_at + DRIFT > self.began
            && (is_known(original_id(message)) || is_known(&message.id))
    }

    /// Returns `true` if this message must not move, because an earlier message of its group does not move.
    pub(super) fn is_behind(&self, message: &Message) -> bool {
        self.ordered && self.stuck.contains(&message.group)
    }

    /// Records that a message does not move, whatever [`Self::judge`] decided.
    pub(super) fn stays(&mut self, message: &Message) {
        if self.ordered && !self.stuck.contains(&message.group) {
            self.stuck.insert(message.group.clone());
        }
    }

    /// Splits a batch into waves of messages that may share a call. For an ordered queue, a wave has one message per
    /// group. If two messages of a group shared a call, the first could fail while the second succeeds.
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

/// Returns the id that a message had before its first move.
fn original_id(message: &Message) -> &str {
    message.attributes.get(ORIGINAL_ID_ATTRIBUTE).and_then(AttributeValue::as_text).unwrap_or(&message.id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use hostler_queue::Receipt;

    const BEGAN: SystemTime = SystemTime::UNIX_EPOCH;

    /// Returns a message with this text as its id and body, for example `g1`. The first letter is the group.
    fn message(body: &str) -> Message {
        Message { enqueued_at: BEGAN, group: Some(body[..1].into()), ..Message::new(body, body.to_owned()) }
    }

    fn waves(ordered: bool, bodies: &[&str]) -> Vec<Vec<String>> {
        let batch = bodies.iter().map(|body| {
            let message = Arc::new(message(body));
            Delivery {
                message,
                receipt: Receipt::new(*body),
                attempt: 1,
                leased_at: Instant::now(),
                not_before: None,
                job: None,
            }
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
    /// Because clocks differ, a message that fails immediately may have a timestamp before the start of the run.
    #[test]
    fn what_the_run_has_moved_and_finds_again_is_late() {
        let stamp = BEGAN - Duration::from_millis(100);
        let original = Message { enqueued_at: BEGAN - Duration::from_secs(60), ..message("a1") };
        let first = AttributeValue::Text(original.id.clone());
        let named = [(ORIGINAL_ID_ATTRIBUTE.to_owned(), first)].into();
        let back = Message { id: "a9".into(), enqueued_at: stamp, attributes: named, ..message("a1") };
        let nameless = Message { attributes: Default::default(), ..back.clone() };
        let mut sorter = Sorter::new(Vec::new(), BEGAN, false);
        for one in [&original, &back, &nameless] {
            assert_eq!(sorter.judge(one), Verdict::Move, "nothing has moved yet");
        }
        sorter.moved(&original, &nameless.id);
        for one in [&back, &nameless] {
            assert_eq!(sorter.judge(one), Verdict::Late, "{one:?}");
        }
        let mut repeating = Sorter::new(Vec::new(), BEGAN, false).with_ids(true);
        repeating.moved(&Message { enqueued_at: stamp, ..original.clone() }, "a9");
        assert_eq!(
            repeating.judge(&Message { enqueued_at: stamp, ..original.clone() }),
            Verdict::Move,
            "another message"
        );
        assert_eq!(repeating.judge(&back), Verdict::Late, "the copy has an id of its own");
        // Another queue's copy of the same message, which was dead-lettered before the run.
        let sibling = Message { enqueued_at: original.enqueued_at, ..back };
        assert_eq!(sorter.judge(&sibling), Verdict::Move);
        assert_eq!(sorter.judge(&Message { enqueued_at: stamp, ..message("b1") }), Verdict::Move, "never moved");
    }
}
