//! Summarizes a histogram: mean, maximum and approximate quantiles.

/// Counts of a histogram. Counts with the same bounds can be added.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counted {
    /// Upper bounds of all buckets except the last, which is unbounded.
    pub(super) bounds: Vec<f64>,
    /// Number of values in each bucket. Has one more element than `bounds`.
    pub(super) buckets: Vec<u64>,
    pub(super) count: u64,
    pub(super) sum: f64,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Counted {
    /// Adds the counts of another histogram with the same bounds.
    pub(super) fn add(&mut self, other: Self) {
        if self.count == 0 {
            *self = other;
            return;
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, others)| *mine += others);
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.into_iter().chain(other.min).reduce(f64::min);
        self.max = self.max.into_iter().chain(other.max).reduce(f64::max);
    }

    /// Returns the mean. `None`: there are no values.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Returns an approximate quantile. `share` is a number from 0 to 1: this share of all values is below the result.
    /// Assumes that the values of a bucket are evenly distributed, within the recorded minimum and maximum. `None`:
    /// minimum and maximum are unknown.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let (min, max) = (self.min?, self.max?);
        let rank = share * self.count as f64;
        let mut below = 0.0;
        for (index, count) in self.buckets.iter().enumerate() {
            let within = *count as f64;
            if *count > 0 && below + within >= rank {
                let lower = index.checked_sub(1).and_then(|index| self.bounds.get(index)).copied();
                let lower = lower.unwrap_or(min).max(min);
                let upper = self.bounds.get(index).copied().unwrap_or(max).min(max);
                return Some(lower + (upper - lower).max(0.0) * ((rank - below) / within).clamp(0.0, 1.0));
            }
            below += within;
        }
        Some(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(values: &[f64]) -> Counted {
        let bounds = vec![1.0, 2.0, 5.0];
        let mut buckets = vec![0; 4];
        for value in values {
            buckets[bounds.iter().position(|bound| value <= bound).unwrap_or(3)] += 1;
        }
        Counted {
            bounds,
            buckets,
            count: values.len() as u64,
            sum: values.iter().sum(),
            min: values.iter().copied().reduce(f64::min),
            max: values.iter().copied().reduce(f64::max),
        }
    }

    #[test]
    fn quantiles_lie_between_the_least_and_the_largest() {
        let values = counted(&[0.5, 1.5, 1.75, 4.0, 9.0]);
        assert_eq!(values.mean(), Some(3.35));
        assert_eq!((values.quantile(0.0), values.quantile(1.0)), (Some(0.5), Some(9.0)));
        let median = values.quantile(0.5).unwrap();
        assert!((1.0..=2.0).contains(&median), "{median}");
        let high = values.quantile(0.99).unwrap();
        assert!((5.0..=9.0).contains(&high), "{high}");
    }

    #[test]
    fn a_single_value_is_all_quantiles() {
        for value in [0.2, 3.0, 70.0] {
            let one = counted(&[value]);
            for share in [0.0, 0.5, 0.99, 1.0] {
                let found = one.quantile(share).unwrap();
                assert!((found - value).abs() < 1e-9, "{share} of {value}: {found}");
            }
        }
    }

    #[test]
    fn nothing_has_neither() {
        assert_eq!((counted(&[]).mean(), counted(&[]).quantile(0.5)), (None, None));
    }

    #[test]
    fn sums_are_as_if_counted_together() {
        let mut sum = Counted::default();
        sum.add(counted(&[0.5, 3.0]));
        sum.add(counted(&[9.0]));
        sum.add(counted(&[]));
        assert_eq!(sum, counted(&[0.5, 3.0, 9.0]));
    }
}
