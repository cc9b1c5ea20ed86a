//! Token buckets: requests per second of a caller and of the whole instance.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A permitted rate of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second in the long run.
    pub per_second: f64,
    /// Maximum number of requests at once after a pause.
    pub burst: f64,
}

impl Rate {
    /// Creates a rate whose burst is one second's worth, and at least one request.
    pub fn per_second(requests: u32) -> Self {
        let per_second = f64::from(requests.max(1));
        Self { per_second, burst: per_second }
    }
}

/// A bucket that fills at a rate and gives one unit to each request.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    /// Takes one unit, or returns the time until there is one.
    fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = passed.mul_add(rate.per_second, self.level).min(rate.burst.max(1.0));
        self.at = now;
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.level) / rate.per_second.max(f64::MIN_POSITIVE)))
    }
}

/// The buckets of one server. A server has few callers, so they share a lock.
#[derive(Debug)]
pub struct Buckets {
    rate: Option<Rate>,
    buckets: Mutex<Vec<Bucket>>,
}

impl Buckets {
    /// Creates `count` full buckets; without a rate, every request passes.
    pub fn new(rate: Option<Rate>, count: usize, now: Instant) -> Self {
        let level = rate.map_or(0.0, |rate| rate.burst.max(1.0));
        Self { rate, buckets: Mutex::new(vec![Bucket { level, at: now }; count.max(1)]) }
    }

    /// Lets a request of the numbered caller pass, or returns the whole seconds that it must wait (at least one).
    pub fn pass(&self, caller: usize, now: Instant) -> Result<(), u64> {
        let Some(rate) = self.rate else { return Ok(()) };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bucket) = buckets.get_mut(caller) else { return Ok(()) };
        bucket.take(rate, now).map_err(|wait| wait.as_secs() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let buckets = Buckets::new(Some(Rate { per_second: 2.0, burst: 3.0 }), 2, start);
        let pass = |caller, millis| buckets.pass(caller, start + Duration::from_millis(millis));
        assert!((0..3).all(|_| pass(0, 0).is_ok()));
        assert_eq!(pass(0, 0), Err(1));
        assert_eq!(pass(1, 0), Ok(()), "another caller has its own bucket");
        assert_eq!(pass(0, 500), Ok(()));
        assert_eq!(pass(0, 500), Err(1));
        assert!((0..3).all(|_| pass(0, 60_000).is_ok()), "a pause fills the bucket, no further than the burst");
        assert_eq!(pass(0, 60_000), Err(1));
    }

    #[test]
    fn without_a_rate_everything_passes() {
        let now = Instant::now();
        let buckets = Buckets::new(None, 1, now);
        assert!((0..10_000).all(|_| buckets.pass(0, now).is_ok()));
    }

    #[test]
    fn a_slow_rate_says_how_long_to_wait() {
        let now = Instant::now();
        let buckets = Buckets::new(Some(Rate { per_second: 0.1, burst: 1.0 }), 1, now);
        assert_eq!(buckets.pass(0, now), Ok(()));
        assert_eq!(buckets.pass(0, now), Err(11));
    }
}
