//! The delay ladder: exchanges and queues that hold messages back for any number of seconds. No I/O.
//!
//! Each level holds a message for a power of two seconds, by a queue whose messages expire. The routing key of a delayed
//! message starts with the binary digits of its delay, one word per level from the top. A level with the digit 1 holds the
//! message; a level with the digit 0 passes it on. At the foot, the rest of the routing key names the queue. All messages of
//! a level have the same delay, so none waits behind another. (The design is that of NServiceBus.)

use std::time::Duration;

use super::names::Names;

/// Number of levels. The longest delay is 24 days, which exceeds the longest delay of a message
/// ([`MAX_DELAY`](hostler_types::message::MAX_DELAY)).
pub(super) const LEVELS: u32 = 21;

/// Longest delay.
pub(super) const MAX_DELAY: Duration = Duration::from_secs((1 << LEVELS) - 1);

/// Place at which a message enters the ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rung {
    /// Exchange to publish the message to.
    pub(super) exchange: String,
    /// Routing key of the message.
    pub(super) key: String,
}

/// Returns the place at which a message for this queue enters the ladder. Rounds the delay up to whole seconds. `None`: there
/// is no delay.
pub(super) fn rung(names: &Names, delay: Duration, queue: &str) -> Option<Rung> {
    let seconds = seconds(delay);
    let top = seconds.checked_ilog2()?;
    let digits = (0..LEVELS).rev().map(|level| if seconds >> level & 1 == 1 { "1." } else { "0." });
    Some(Rung { exchange: names.level(top), key: digits.chain([queue]).collect() })
}

/// Returns the delay in whole seconds, rounded up, at most [`MAX_DELAY`].
fn seconds(delay: Duration) -> u64 {
    delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0)).min(MAX_DELAY.as_secs())
}

/// One level of the ladder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// Name of the level's exchange and queue.
    pub(super) name: String,
    /// Exchange to which the level passes messages on.
    pub(super) next: String,
    /// Time for which the level holds a message, in milliseconds.
    pub(super) holds: i64,
    /// Pattern of the routing keys that the level holds.
    pub(super) held: String,
    /// Pattern of the routing keys that the level passes on.
    pub(super) passed: String,
}

/// Returns the levels, from the foot to the top. Each level passes messages on to the one before.
pub(super) fn levels(names: &Names) -> impl Iterator<Item = Level> {
    (0..LEVELS).map(|level| {
        let above = "*.".repeat((LEVELS - 1 - level) as usize);
        Level {
            name: names.level(level),
            next: level.checked_sub(1).map_or_else(|| names.landing(), |below| names.level(below)),
            holds: 1000 << level,
            held: format!("{above}1.#"),
            passed: format!("{above}0.#"),
        }
    })
}

/// Returns the pattern by which the foot of the ladder delivers to a queue.
pub(super) fn landing_pattern(queue: &str) -> String {
    format!("#.{queue}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matches a routing key as a topic exchange does.
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            ([], []) => true,
            (["#", rest @ ..], _) => (0..=key.len()).any(|skipped| matches(rest, &key[skipped..])),
            (["*", pattern @ ..], [_, key @ ..]) => matches(pattern, key),
            ([word, pattern @ ..], [first, key @ ..]) => word == first && matches(pattern, key),
            _ => false,
        }
    }

    fn passes(pattern: &str, key: &str) -> bool {
        matches(&pattern.split('.').collect::<Vec<_>>(), &key.split('.').collect::<Vec<_>>())
    }

    /// Follows a message down the ladder, and returns how long it was held.
    fn held_for(names: &Names, rung: &Rung) -> Duration {
        let levels: Vec<_> = levels(names).collect();
        let (mut exchange, mut held) = (rung.exchange.clone(), 0);
        while let Some(level) = levels.iter().find(|level| level.name == exchange) {
            let (stays, goes) = (passes(&level.held, &rung.key), passes(&level.passed, &rung.key));
            assert!(stays != goes, "{level:?} {rung:?}");
            held += if stays { level.holds } else { 0 };
            exchange = level.next.clone();
        }
        assert_eq!(exchange, names.landing());
        assert!(passes(&landing_pattern("orders"), &rung.key) && !passes(&landing_pattern("other"), &rung.key));
        Duration::from_millis(held as u64)
    }

    #[test]
    fn a_message_is_held_for_its_delay_in_whole_seconds() {
        let names = Names::new("p-", "p-");
        let longest = hostler_types::message::MAX_DELAY;
        for seconds in [1, 2, 3, 7, 8, 60, 3600, 65_536, longest.as_secs(), MAX_DELAY.as_secs()] {
            let delay = Duration::from_secs(seconds);
            assert_eq!(held_for(&names, &rung(&names, delay, "orders").unwrap()), delay);
        }
        let round_up = |millis| held_for(&names, &rung(&names, Duration::from_millis(millis), "orders").unwrap());
        assert_eq!([round_up(1), round_up(1001)], [Duration::from_secs(1), Duration::from_secs(2)]);
        assert_eq!(rung(&names, Duration::ZERO, "orders"), None);
        assert_eq!(held_for(&names, &rung(&names, Duration::MAX, "orders").unwrap()), MAX_DELAY);
    }

    #[test]
    fn the_longest_key_fits_into_a_short_string() {
        let queue = "x".repeat(150);
        let rung = rung(&Names::new("", ""), MAX_DELAY, &queue).unwrap();
        assert!(rung.key.len() <= 255, "{}", rung.key.len());
    }
}
