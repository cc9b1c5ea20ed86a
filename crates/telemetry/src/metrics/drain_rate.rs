//! Measures the drain rate of a queue: the number of messages that the consumer removes per second, averaged over the
//! last minute. No I/O.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

/// Period over which the rate is averaged.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of samples. If samples are more frequent, the rate is averaged over a shorter period.
const SAMPLES: usize = 64;

/// Samples of the last minute, and the last sample before that minute.
#[derive(Debug, Default)]
pub(super) struct DrainRate {
    samples: VecDeque<(Instant, u64)>,
}

impl DrainRate {
    /// Adds a sample. `removed`: total number of messages removed so far. Returns the number of messages removed per
    /// second in the last minute. If the first sample is less than a minute old, returns the rate since the first
    /// sample. `None`: no messages were removed in this time, or this is the first sample.
    pub(super) fn sample(&mut self, now: Instant, removed: u64) -> Option<f64> {
        while let Some((second, _)) = self.samples.get(1)
            && (now.saturating_duration_since(*second) >= WINDOW || self.samples.len() >= SAMPLES)
        {
            self.samples.pop_front();
        }
        self.samples.push_back((now, removed));
        let (since, before) = *self.samples.front()?;
        let (seconds, count) = ((now - since).as_secs_f64(), removed.saturating_sub(before));
        (count > 0 && seconds > 0.0).then(|| count as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn played(samples: &[(u32, u64)]) -> Vec<Option<f64>> {
        let (start, mut rate) = (Instant::now(), DrainRate::default());
        samples.iter().map(|(at, removed)| rate.sample(start + *at * SECOND, *removed)).collect()
    }

    #[test]
    fn it_is_over_the_last_minute() {
        let rates = played(&[(0, 0), (30, 30), (60, 90), (90, 210), (120, 210), (150, 210)]);
        assert_eq!(rates, [None, Some(1.0), Some(1.5), Some(3.0), Some(2.0), None]);
    }

    #[test]
    fn what_was_removed_before_the_first_look_does_not_count() {
        assert_eq!(played(&[(0, 500), (10, 510)]), [None, Some(1.0)]);
    }

    #[test]
    fn after_a_long_gap_it_is_over_all_of_it() {
        assert_eq!(played(&[(0, 0), (600, 600)]), [None, Some(1.0)]);
    }

    #[test]
    fn no_more_samples_are_kept_however_often_they_are_taken() {
        let (start, mut rate) = (Instant::now(), DrainRate::default());
        (0..10_000).for_each(|n: u32| _ = rate.sample(start + n * SECOND / 1_000, n.into()));
        assert_eq!(rate.samples.len(), SAMPLES);
    }
}
