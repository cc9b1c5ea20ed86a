//! Rate limits on messages, by a token bucket. The capacity of the bucket is the number of tokens that are added in one
//! second.

use std::fmt;
use std::time::{Duration, Instant};

/// Maximum number of messages per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Number of messages per period: 1 to 1,000,000.
    pub permits: u32,
    /// Length of the period: one second, one minute or one hour.
    pub per: Duration,
}

impl Rate {
    /// Returns the number of messages in `time`, rounded up.
    pub fn in_time(&self, time: Duration) -> usize {
        let nanos = u128::from(self.permits) * time.as_nanos();
        usize::try_from(nanos.div_ceil(self.per.as_nanos().max(1))).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per.as_secs() {
            1 => "s",
            60 => "m",
            _ => "h",
        };
        write!(f, "{}/{unit}", self.permits)
    }
}

/// A token bucket for receiving or sending messages.
#[derive(Debug)]
pub struct Bucket {
    capacity: f64,
    per_second: f64,
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    /// Creates a bucket that is full at `now`. The capacity of the bucket is the number of tokens that are added in one
    /// second, but at least one token.
    pub fn new(rate: Rate, now: impl Into<Instant>) -> Self {
        let per_second = f64::from(rate.permits) / rate.per.as_secs_f64();
        let capacity = per_second.max(1.0);
        Self { capacity, per_second, tokens: capacity, filled_at: now.into() }
    }

    /// Creates a bucket that is empty at `now`. If a process starts with an empty bucket, frequent restarts do not
    /// exceed the rate.
    pub fn empty(rate: Rate, now: impl Into<Instant>) -> Self {
        Self { tokens: 0.0, ..Self::new(rate, now) }
    }

    /// Creates a bucket that has one token at `now`. With a full bucket, the messages of the first second would exceed
    /// the rate.
    pub fn with_one_token(rate: Rate, now: impl Into<Instant>) -> Self {
        Self { tokens: 1.0, ..Self::new(rate, now) }
    }

    /// Adds the tokens that are due at `now` and returns the number of whole tokens.
    pub fn available(&mut self, now: impl Into<Instant>) -> usize {
        let now = now.into();
        let since = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + since * self.per_second).min(self.capacity);
        self.filled_at = now;
        self.tokens as usize
    }

    /// Removes tokens. If more tokens are removed than the bucket has, the bucket has a debt, and the tokens that are
    /// added next reduce the debt.
    pub fn take(&mut self, count: usize) {
        self.tokens -= count as f64;
    }

    /// Returns unused tokens to the bucket.
    pub fn give_back(&mut self, count: usize) {
        self.tokens = (self.tokens + count as f64).min(self.capacity);
    }

    /// Returns the time of the next token. `None`: a token was available at the last call of [`Self::available`].
    pub fn next_at(&self) -> Option<Instant> {
        let missing = Some(1.0 - self.tokens).filter(|missing| *missing > 0.0)?;
        Some(self.filled_at + Duration::from_secs_f64(missing / self.per_second) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[test]
    fn messages_in_a_time_are_rounded_up() {
        let in_five_seconds = |permits, per| {
            let rate = Rate { permits, per: Duration::from_secs(per) };
            rate.in_time(Duration::from_secs(5))
        };
        assert_eq!([in_five_seconds(100, 1), in_five_seconds(13, 60), in_five_seconds(1, 3600)], [500, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn holds_the_rate_over_time() {
        let mut bucket = Bucket::new(Rate { permits: 10, per: Duration::from_secs(1) }, Instant::now());
        let until = Instant::now() + Duration::from_secs(10);
        let mut taken = 0;
        while Instant::now() < until {
            let available = bucket.available(Instant::now());
            bucket.take(available);
            taken += available;
            tokio::time::sleep_until(bucket.next_at().unwrap().into()).await;
        }
        assert!((105..=110).contains(&taken), "{taken}: the first second's worth, and 10 a second after");
    }

    #[tokio::test(start_paused = true)]
    async fn with_one_token_the_first_second_has_its_share_and_no_more() {
        let start = Instant::now();
        let mut bucket = Bucket::with_one_token(Rate { permits: 10, per: Duration::from_secs(1) }, start);
        assert_eq!(bucket.available(start), 1);
        assert_eq!(bucket.available(start + Duration::from_millis(899)), 9);
        assert_eq!(bucket.available(start + Duration::from_secs(9)), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_starts_empty_keeps_the_rate_however_often_it_starts() {
        let start = Instant::now();
        let rate = Rate { permits: 10, per: Duration::from_secs(3600) };
        let mut bucket = Bucket::empty(rate, start);
        let taken = |bucket: &mut Bucket, second| bucket.available(start + Duration::from_secs(second));
        assert_eq!((taken(&mut bucket, 359), taken(&mut bucket, 361)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_debt_is_paid_before_there_is_a_token() {
        let start = Instant::now();
        let mut bucket = Bucket::empty(Rate { permits: 1, per: Duration::from_secs(1) }, start);
        bucket.take(3);
        let seconds = |seconds| start + Duration::from_secs(seconds);
        assert_eq!([0, 3, 4].map(|at| bucket.available(seconds(at))), [0, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_rate_still_lets_one_through_at_once() {
        let mut bucket = Bucket::new(Rate { permits: 1, per: Duration::from_secs(60) }, Instant::now());
        assert_eq!((bucket.available(Instant::now()), bucket.next_at()), (1, None), "there is nothing to wait for");
        bucket.take(1);
        assert_eq!(bucket.available(Instant::now()), 0);
        tokio::time::sleep_until(bucket.next_at().unwrap().into()).await;
        assert_eq!(bucket.available(Instant::now()), 1);
    }
}
