//! Compares the message count of each queue with its alarm threshold.

use serde::Serialize;

use hostler_queue::{ManagedQueue, tag};

/// Default threshold of a dead-letter queue in messages. It is 1, because every dead letter needs a person's attention.
const DEAD_LETTER_THRESHOLD: u64 = 1;

/// The message count of a queue, and the threshold of its alarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Name of the queue, as the service knows it.
    pub queue: String,
    /// Number of messages: visible, delayed and in flight. Does not include messages that the service does not count.
    pub messages: u64,
    /// Message count at which the alarm begins; at least 1.
    pub threshold: u64,
    /// Set for a dead-letter queue.
    pub dead_letter: bool,
    /// Set if the queue's tags mark its alarms as critical.
    pub critical: bool,
    /// Consumer of the queue, from the queue's tags.
    pub consumer: Option<String>,
    /// Owner of the queue, from the queue's tags.
    pub owner: Option<String>,
}

impl Level {
    /// Returns `true` if the message count has reached the threshold.
    pub fn alarms(&self) -> bool {
        self.messages >= self.threshold
    }
}

/// Returns the level of each queue, sorted by name, but with critical queues first. `threshold`: threshold of queues
/// that have none in their tags.
pub fn levels(queues: &[ManagedQueue], threshold: u64) -> Vec<Level> {
    let mut levels: Vec<_> = queues.iter().map(|queue| level(queue, threshold)).collect();
    levels.sort_by(|one, other| (!one.critical, &one.queue).cmp(&(!other.critical, &other.queue)));
    levels
}

/// Returns the kinds of messages that the service does not count in some queue. These messages raise no alarm.
pub(super) fn uncounted(queues: &[ManagedQueue]) -> Vec<&'static str> {
    let is_missing = |count: fn(&ManagedQueue) -> Option<u64>| queues.iter().any(|queue| count(queue).is_none());
    let kinds = [
        ("delayed messages", is_missing(|queue| queue.delayed)),
        ("messages in flight", is_missing(|queue| queue.in_flight)),
    ];
    kinds.into_iter().filter(|(_, is_missing)| *is_missing).map(|(kind, _)| kind).collect()
}

fn level(queue: &ManagedQueue, threshold: u64) -> Level {
    let tag = |name: &str| queue.tags.get(name).cloned();
    let dead_letter = queue.dead_letters_of().is_some();
    // A dead-letter queue also has the tags of its source queue, including the threshold of the source.
    let (name, otherwise) = if dead_letter {
        (tag::DEAD_LETTER_ALARM_THRESHOLD, DEAD_LETTER_THRESHOLD)
    } else {
        (tag::ALARM_THRESHOLD, threshold)
    };
    let own = tag(name).and_then(|threshold| threshold.parse::<u64>().ok());
    Level {
        queue: queue.name.clone(),
        messages: queue.messages(),
        threshold: own.unwrap_or(otherwise).max(1),
        dead_letter,
        critical: tag(tag::CRITICAL).is_some_and(|critical| critical == "true"),
        consumer: tag(tag::CONSUMER),
        owner: tag(tag::OWNER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, visible: u64, tags: &[(&str, &str)]) -> ManagedQueue {
        let tags = tags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        ManagedQueue { name: format!("prod-{name}"), queue: name.into(), tags, visible, ..ManagedQueue::default() }
    }

    fn one(queue: ManagedQueue) -> Level {
        levels(&[queue], 1000).remove(0)
    }

    #[test]
    fn a_queue_alarms_from_its_threshold_on() {
        let tags = [(tag::ALARM_THRESHOLD, "50"), (tag::OWNER, "shop"), (tag::CONSUMER, "orders")];
        assert!(!one(queue("orders", 49, &tags)).alarms());
        let level = one(ManagedQueue { delayed: Some(20), in_flight: Some(10), ..queue("orders", 20, &tags) });
        assert!(level.alarms() && !level.critical && !level.dead_letter);
        assert_eq!((level.messages, level.threshold, level.queue.as_str()), (50, 50, "prod-orders"));
        assert_eq!((level.owner.as_deref(), level.consumer.as_deref()), (Some("shop"), Some("orders")));
    }

    #[test]
    fn messages_that_the_service_does_not_count_are_named() {
        let [counted, some, none] = [(Some(0), Some(0)), (None, Some(1)), (None, None)]
            .map(|(delayed, in_flight)| ManagedQueue { delayed, in_flight, ..queue("orders", 5, &[]) });
        assert_eq!([one(some.clone()).messages, one(none.clone()).messages], [6, 5]);
        assert!(uncounted(&[counted.clone(), counted.clone()]).is_empty());
        assert_eq!(uncounted(&[counted.clone(), some]), ["delayed messages"]);
        assert_eq!(uncounted(&[none, counted]), ["delayed messages", "messages in flight"]);
    }

    #[test]
    fn without_a_threshold_of_its_own_the_common_one_holds() {
        assert!(!one(queue("orders", 999, &[])).alarms() && one(queue("orders", 1000, &[])).alarms());
        for odd in ["", "-1", "many"] {
            assert_eq!(one(queue("orders", 0, &[(tag::ALARM_THRESHOLD, odd)])).threshold, 1000, "{odd}");
        }
        assert!(!one(queue("orders", 0, &[(tag::ALARM_THRESHOLD, "0")])).alarms(), "an empty queue is no alarm");
    }

    #[test]
    fn a_dead_letter_queue_alarms_from_its_first_message_or_its_own_threshold_on() {
        let tags = [(tag::ALARM_THRESHOLD, "1000"), (tag::CRITICAL, "true")];
        assert!(!one(queue("orders-dlq", 0, &tags)).alarms());
        let level = one(queue("orders-dlq", 1, &tags));
        assert!(level.alarms() && level.critical && level.dead_letter);
        let own = [(tag::DEAD_LETTER_ALARM_THRESHOLD, "3")];
        assert!(!one(queue("orders-dlq", 2, &own)).alarms() && one(queue("orders-dlq", 3, &own)).alarms());
        assert_eq!(one(queue("orders", 3, &own)).threshold, 1000);
    }

    #[test]
    fn the_critical_ones_come_first() {
        let critical = [(tag::CRITICAL, "true")];
        let queues = [queue("b", 0, &[]), queue("z", 0, &critical), queue("a", 0, &[]), queue("y", 0, &critical)];
        let names: Vec<_> = levels(&queues, 1).into_iter().map(|level| level.queue).collect();
        assert_eq!(names, ["prod-y", "prod-z", "prod-a", "prod-b"]);
    }
}
