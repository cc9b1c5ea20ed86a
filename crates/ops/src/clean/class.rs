//! Classifies a queue by its use. No I/O.

use std::time::Duration;

use serde::Serialize;

use hostler_queue::QueueUse;

/// Class of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Unused, empty and not subscribed to a topic: may be deleted.
    Deletable,
    /// Unused and empty, but a topic delivers to the queue.
    Subscribed,
    /// Unused, but contains messages.
    InactiveWithMessages,
    /// A consumer receives, but nothing is sent.
    NoProducers,
    /// Messages are sent, but no consumer receives.
    NoConsumers,
    /// Younger than the period for which use is measured, or of unknown age.
    Young,
    /// Messages are sent and received, or the queue is the dead-letter queue of another queue that is not deleted.
    InUse,
}

impl Class {
    /// Returns the human-readable name of the class.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deletable => "deletable",
            Self::Subscribed => "idle, but subscribed",
            Self::InactiveWithMessages => "inactive, with messages",
            Self::NoProducers => "no producers",
            Self::NoConsumers => "no consumers",
            Self::Young => "too young to judge",
            Self::InUse => "in use",
        }
    }
}

/// Observed properties of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Current number of messages.
    pub messages: u64,
    /// Age of the queue, if known.
    pub age: Option<Duration>,
    /// Use during the period for which it is measured. `None`: the service has no record. In that case, the queue
    /// counts as unused, because a service may record nothing for an unused queue.
    pub used: Option<QueueUse>,
    /// Set if the queue is the dead-letter queue of another queue that is not deleted.
    pub dead_letters: bool,
    /// Set if a topic delivers to the queue.
    pub subscribed: bool,
}

/// Classifies a queue. `over`: length of the period for which its use was measured.
pub fn classify(observed: &Observed, over: Duration) -> Class {
    let Observed { messages, age, used, dead_letters, subscribed } = *observed;
    let QueueUse { sent, received, empty_receives } = used.unwrap_or_default();
    let (sends, listens) = (sent > 0, received > 0 || empty_receives > 0);
    match (sends, listens, messages > 0) {
        // A dead-letter queue may be unused for years, and its messages wait for a person.
        _ if dead_letters => match (sends || listens, messages > 0) {
            (false, true) if age >= Some(over) => Class::InactiveWithMessages,
            _ => Class::InUse,
        },
        (true, true, _) => Class::InUse,
        _ if age.is_none_or(|age| age < over) => Class::Young,
        (false, false, false) if subscribed => Class::Subscribed,
        (false, false, false) => Class::Deletable,
        (false, false, true) => Class::InactiveWithMessages,
        (false, true, _) => Class::NoProducers,
        (true, false, _) => Class::NoConsumers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVER: Duration = Duration::from_secs(35 * 86_400);

    fn observed(sent: u64, received: u64, empty_receives: u64, messages: u64) -> Observed {
        let used = Some(QueueUse { sent, received, empty_receives });
        Observed { messages, age: Some(OVER), used, dead_letters: false, subscribed: false }
    }

    fn class(sent: u64, received: u64, empty_receives: u64, messages: u64) -> Class {
        classify(&observed(sent, received, empty_receives, messages), OVER)
    }

    #[test]
    fn a_queue_is_what_its_use_says() {
        assert_eq!(class(0, 0, 0, 0), Class::Deletable);
        assert_eq!(class(0, 0, 0, 1), Class::InactiveWithMessages);
        assert_eq!(class(0, 3, 0, 0), Class::NoProducers);
        assert_eq!(class(0, 3, 0, 9), Class::NoProducers);
        assert_eq!(class(0, 0, 1, 0), Class::NoProducers, "a consumer that polls in vain is a consumer");
        assert_eq!(class(3, 0, 0, 3), Class::NoConsumers);
        assert_eq!(class(3, 0, 0, 0), Class::NoConsumers, "they were lost at the end of their retention");
        assert_eq!(class(3, 3, 0, 0), Class::InUse);
        assert_eq!(class(3, 0, 7, 3), Class::InUse, "somebody listens, and what was sent may be delayed");
    }

    #[test]
    fn a_queue_that_a_topic_delivers_to_is_not_deletable() {
        let subscribed = |observed| classify(&Observed { subscribed: true, ..observed }, OVER);
        assert_eq!(subscribed(observed(0, 0, 0, 0)), Class::Subscribed);
        assert_eq!(subscribed(observed(0, 0, 0, 2)), Class::InactiveWithMessages);
        assert_eq!(subscribed(observed(0, 0, 4, 0)), Class::NoProducers);
        assert_eq!(subscribed(Observed { age: None, ..observed(0, 0, 0, 0) }), Class::Young);
    }

    #[test]
    fn no_record_is_no_use() {
        assert_eq!(classify(&Observed { used: None, ..observed(0, 0, 0, 0) }, OVER), Class::Deletable);
        assert_eq!(classify(&Observed { used: None, ..observed(0, 0, 0, 4) }, OVER), Class::InactiveWithMessages);
    }

    #[test]
    fn what_is_young_or_of_unknown_age_is_not_judged_unless_it_is_in_use() {
        for age in [None, Some(Duration::ZERO), Some(OVER - Duration::from_secs(1))] {
            for (sent, received, messages) in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1)] {
                let young = Observed { age, ..observed(sent, received, 0, messages) };
                assert_eq!(classify(&young, OVER), Class::Young, "{young:?}");
            }
            assert_eq!(classify(&Observed { age, ..observed(1, 1, 0, 0) }, OVER), Class::InUse);
        }
    }

    #[test]
    fn the_dead_letter_queue_of_one_that_stays_is_in_use_and_forgotten_dead_letters_are_told() {
        let dead = |observed| classify(&Observed { dead_letters: true, ..observed }, OVER);
        assert_eq!(dead(observed(0, 0, 0, 0)), Class::InUse);
        assert_eq!(dead(observed(2, 0, 0, 2)), Class::InUse, "that nobody receives them is as it should be");
        assert_eq!(dead(observed(0, 2, 0, 0)), Class::InUse);
        assert_eq!(dead(observed(0, 0, 0, 2)), Class::InactiveWithMessages);
        assert_eq!(dead(Observed { age: None, ..observed(0, 0, 0, 2) }), Class::InUse);
    }
}
