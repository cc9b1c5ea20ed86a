//! The delay after a failure: of an item's attempt, and of a callback. No clock, no dice.

use std::time::Duration;

/// The time for which a callback is tried again, from the tree's completion.
pub const CALLBACK_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The delay after a callback's first failure, at most.
const CALLBACK_FIRST: Duration = Duration::from_secs(2);

/// The longest delay after a callback's failure.
const CALLBACK_LONGEST: Duration = Duration::from_secs(3600);

/// Returns the longest delays, in seconds, after the first, second… failure: twice the one before, up to `longest`. The last one
/// holds for all further failures. A delay is a random part of it.
pub fn ceilings(first: Duration, longest: Duration) -> Vec<f64> {
    let mut all = vec![first.min(longest).as_secs_f64()];
    let mut next = first.saturating_mul(2);
    while next < longest && all.len() < 40 && !first.is_zero() {
        all.push(next.as_secs_f64());
        next = next.saturating_mul(2);
    }
    all.push(longest.as_secs_f64().max(all.first().copied().unwrap_or_default()));
    all
}

/// Returns the delay before the next attempt of a callback after `attempts` failures, at least half a second; `None` if it is given
/// up. `age`: the time since the tree's completion. `part`: a random number from 0 to 1.
pub fn callback_delay(attempts: u32, age: Duration, part: f64) -> Option<Duration> {
    let longest = CALLBACK_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(CALLBACK_LONGEST);
    let delay = longest.mul_f64(part.clamp(0.0, 1.0)).max(Duration::from_millis(500));
    (age < CALLBACK_PATIENCE).then_some(delay.min(CALLBACK_PATIENCE.saturating_sub(age)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let all = ceilings(Duration::from_secs(1), Duration::from_secs(15 * 60));
        assert_eq!(all, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 900.0]);
        assert_eq!(ceilings(Duration::ZERO, Duration::ZERO), [0.0, 0.0]);
        assert_eq!(ceilings(Duration::from_secs(5), Duration::from_secs(2)), [2.0, 2.0]);
        assert_eq!(ceilings(Duration::from_secs(2), Duration::from_secs(2)), [2.0, 2.0]);
    }

    #[test]
    fn callbacks_are_given_up_after_a_day() {
        assert_eq!(callback_delay(1, Duration::ZERO, 1.0), Some(Duration::from_secs(2)));
        assert_eq!(callback_delay(1, Duration::ZERO, 0.0), Some(Duration::from_millis(500)));
        assert_eq!(callback_delay(3, Duration::ZERO, 1.0), Some(Duration::from_secs(8)));
        assert_eq!(callback_delay(u32::MAX, Duration::from_secs(3600), 1.0), Some(Duration::from_secs(3600)));
        let nearly = CALLBACK_PATIENCE - Duration::from_secs(10);
        assert_eq!(callback_delay(30, nearly, 1.0), Some(Duration::from_secs(10)));
        assert_eq!(callback_delay(30, CALLBACK_PATIENCE, 1.0), None);
    }
}
