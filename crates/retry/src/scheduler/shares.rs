//! The choice between priorities: each gets the share of its weight, and none starves.

/// The state of the choice. Between two turns of a priority with weight `w`, at most `sum / w` others (rounded up) are
/// chosen, where `sum` is the sum of all weights.
#[derive(Debug)]
pub(super) struct Shares {
    weights: Vec<i64>,
    /// Credit of each priority. A priority with nothing to deliver has none.
    credits: Vec<i64>,
}

impl Shares {
    pub(super) fn new(weights: Vec<u32>) -> Self {
        let weights: Vec<_> = weights.into_iter().map(|weight| i64::from(weight.max(1))).collect();
        Self { credits: vec![0; weights.len()], weights }
    }

    /// Chooses one of the priorities that are ready. `None`: none is.
    pub(super) fn choose(&mut self, is_ready: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut sum = 0;
        for priority in 0..self.weights.len() {
            if !is_ready(priority) {
                self.credits[priority] = 0;
                continue;
            }
            self.credits[priority] += self.weights[priority];
            sum += self.weights[priority];
            if best.is_none_or(|best| self.credits[priority] > self.credits[best]) {
                best = Some(priority);
            }
        }
        let best = best?;
        self.credits[best] -= sum;
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights_and_none_starves() {
        let mut shares = Shares::new(vec![4, 2, 1]);
        let chosen: Vec<_> = (0..14).filter_map(|_| shares.choose(|_| true)).collect();
        assert_eq!(chosen, [0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0]);
    }

    #[test]
    fn an_unused_share_goes_to_the_others_and_is_not_saved_up() {
        let mut shares = Shares::new(vec![1000, 1]);
        assert_eq!(shares.choose(|_| false), None);
        let alone: Vec<_> = (0..5000).filter_map(|_| shares.choose(|priority| priority == 1)).collect();
        assert_eq!(alone.iter().sum::<usize>(), 5000);
        let low = (0..1001).filter_map(|_| shares.choose(|_| true)).filter(|priority| *priority == 1).count();
        assert_eq!(low, 1);
    }
}
