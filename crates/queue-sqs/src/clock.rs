//! Estimates the SQS clock from the `Date` headers of answers.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use tokio::time::Instant;

/// Maximum error of a `Date` header in milliseconds. The header states whole seconds.
const UNTOLD: i64 = 999;

/// Estimated difference between the SQS clock and ours. Clones share the estimate.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceClock {
    /// Estimated lead of the SQS clock over ours in milliseconds, accurate to one second. Negative if the SQS clock is
    /// behind ours.
    ahead: Arc<AtomicI64>,
    /// Time that AWS stated in its last answer, and the moment at which that answer arrived. `None`: no answer has
    /// arrived yet.
    told: Arc<Mutex<Option<(SystemTime, Instant)>>>,
}

impl ServiceClock {
    /// Converts a time by our clock to the same time by the SQS clock. Before the first answer, returns the time
    /// unchanged.
    pub(super) fn show(&self, time: SystemTime) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        let shown = if ahead < 0 { time.checked_sub(by) } else { time.checked_add(by) };
        shown.unwrap_or(time)
    }

    /// Returns the current time by the SQS clock, calculated from the last answer. The result is never ahead of the SQS
    /// clock. It lags behind that clock by up to a second, plus the time that the answer took to arrive. Before the
    /// first answer, returns the time by our own clock.
    pub(super) fn now(&self) -> SystemTime {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.map_or_else(SystemTime::now, |(time, at)| time + at.elapsed())
    }

    /// Updates the estimate from the `Date` header of an answer. Ignores an invalid date. `now`: time by our clock at
    /// which the answer arrived.
    pub(super) fn learn(&self, date: &str, now: SystemTime) {
        if let Ok(told) = DateTime::from_str(date, DateTimeFormat::HttpDate)
            && let Ok(time) = SystemTime::try_from(told)
            && let Ok(told) = told.to_millis()
            && let Ok(ours) = DateTime::from(now).to_millis()
        {
            self.ahead.store(ahead(told, ours), Ordering::Relaxed);
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, Instant::now()));
        }
    }
}

/// Returns the estimated lead of the SQS clock over ours in milliseconds. `told`: time in an answer. `ours`: time by
/// our clock at which the answer arrived.
///
/// Because `told` has whole seconds, a range of leads is possible. Of these, the one closest to 0 is returned, because
/// an overestimate does harm. If a message fails again after a requeue has moved it, the requeue must recognize that it
/// was sent after the start of the run. With an overestimate, the start would seem to be later, and the message would
/// be moved again and again.
fn ahead(told: i64, ours: i64) -> i64 {
    0.clamp(told - ours, told + UNTOLD - ours)
}

/// Updates the estimate from every answer that a generated client receives. The generated clients correct the time in
/// their signatures by themselves, but direct calls and comparisons of times need this estimate.
impl Intercept for ServiceClock {
    fn name(&self) -> &'static str {
        "ServiceClock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.learn(date, SystemTime::now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_goes_on_from_what_the_last_answer_told() {
        let clock = ServiceClock::default();
        clock.learn("Sun, 06 Nov 1994 08:49:37 GMT", SystemTime::now());
        tokio::time::advance(Duration::from_millis(1_500)).await;
        let since = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(clock.clone().now(), since(784_111_777) + Duration::from_millis(1_500));
        clock.learn("no date", SystemTime::now());
        clock.learn("Sun, 06 Nov 1994 08:49:36 GMT", SystemTime::now());
        assert_eq!(clock.now(), since(784_111_776));
    }

    #[test]
    fn clocks_that_may_agree_do() {
        assert_eq!([ahead(5_000, 5_000), ahead(5_000, 5_999)], [0, 0]);
        assert_eq!([ahead(5_000, 4_999), ahead(5_000, 6_000)], [1, -1]);
        assert_eq!(ahead(3_605_000, 5_500), 3_599_500);
    }
}
