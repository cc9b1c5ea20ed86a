//! Exponential backoff: the delays between retries. Performs no I/O; the caller supplies random numbers.

use std::time::Duration;

/// Delays that double with each consecutive failure, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Maximum delay.
    pub longest: Duration,
}

impl Backoff {
    /// Creates a backoff with delays from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the delay after a failure, without jitter. `preceding` is the number of consecutive failures before this
    /// failure.
    pub fn ceiling(&self, preceding: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(preceding)).min(self.longest)
    }

    /// Returns the delay with jitter: between half of [`Self::ceiling`] and the ceiling. The jitter prevents many
    /// clients from retrying at the same moment. `random` is a number from 0 to 1.
    pub fn rest(&self, preceding: u32, random: f64) -> Duration {
        self.ceiling(preceding).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Returns the delay with full jitter: between zero and [`Self::ceiling`]. `random` is a number from 0 to 1.
    pub fn spread(&self, preceding: u32, random: f64) -> Duration {
        self.ceiling(preceding).mul_f64(random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BACKOFF: Backoff = Backoff::new(SECOND, SECOND.saturating_mul(20));

    #[test]
    fn rests_double_up_to_the_longest_however_many_failures_there_were() {
        let seconds = [0, 1, 2, 3, 4, 5, 31, 32, u32::MAX].map(|preceding| BACKOFF.ceiling(preceding).as_secs());
        assert_eq!(seconds, [1, 2, 4, 8, 16, 20, 20, 20, 20]);
        assert_eq!(Backoff::new(Duration::MAX, SECOND).ceiling(u32::MAX), SECOND);
        assert_eq!(Backoff::new(Duration::ZERO, SECOND).ceiling(9), Duration::ZERO);
    }

    #[test]
    fn jitter_takes_up_to_half_of_a_rest_and_all_of_one_that_is_spread() {
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(|random| BACKOFF.rest(2, random).as_secs()), [2, 2, 3, 4, 4]);
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(|random| BACKOFF.spread(2, random).as_secs()), [0, 0, 2, 4, 4]);
    }
}
