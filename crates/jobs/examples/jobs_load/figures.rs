//! Figures and bars.

use std::time::Duration;

/// The outcome of a scenario: a line of figures, and the bars that it misses.
pub struct Outcome {
    pub line: String,
    pub misses: Vec<String>,
}

impl Outcome {
    /// An outcome that misses nothing yet.
    pub fn new(line: String) -> Self {
        Self { line, misses: Vec::new() }
    }

    /// Sets a bar: `value` must be `bar` or more.
    pub fn at_least(mut self, name: &str, value: f64, bar: f64) -> Self {
        // A value that is not a number misses.
        if value.is_nan() || value < bar {
            self.misses.push(format!("{name}: {value:.2}, and the bar is {bar} or more"));
        }
        self
    }

    /// Sets a bar: `value` must be `bar` or less.
    pub fn at_most(mut self, name: &str, value: f64, bar: f64) -> Self {
        if value.is_nan() || value > bar {
            self.misses.push(format!("{name}: {value:.2}, and the bar is {bar} or less"));
        }
        self
    }
}

/// Returns the number of items in a second.
pub fn rate(items: u64, time: Duration) -> f64 {
    ratio(items, 1) / time.as_secs_f64()
}

/// Returns the ratio of two numbers.
#[expect(clippy::cast_precision_loss, reason = "figures have three digits")]
pub fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to as f64
}

/// Returns a percentile of sorted values: the least that `percent` of them do not exceed. 0 without any.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&sorted, 99), 198);
        assert_eq!(percentile(&sorted, 50), 100);
        assert_eq!(percentile(&sorted, 100), 200);
        assert_eq!(percentile(&[7], 99), 7);
        assert_eq!(percentile(&[], 99), 0);
    }

    #[test]
    fn a_bar_is_missed_below_it_and_by_no_number() {
        let misses = |value| Outcome::new(String::new()).at_least("rate", value, 2.0).misses.len();
        assert_eq!((misses(2.0), misses(1.9), misses(f64::NAN)), (0, 1, 1));
        let misses = |value| Outcome::new(String::new()).at_most("time", value, 2.0).misses.len();
        assert_eq!((misses(2.0), misses(2.1), misses(f64::NAN)), (0, 1, 1));
    }
}
