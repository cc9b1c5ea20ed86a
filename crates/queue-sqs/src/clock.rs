//! The service's clock, as its answers tell it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};

/// An answer tells whole seconds, so that the clock may show so many milliseconds more.
const UNTOLD: i64 = 999;

/// How far the service's clock is ahead of ours. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceClock {
    /// Milliseconds, to within the second that an answer does not tell.
    ahead: Arc<AtomicI64>,
}

impl ServiceClock {
    /// A time of ours by the service's clock; as it is before the first answer.
    pub(super) fn show(&self, time: SystemTime) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        let shown = if ahead < 0 { time.checked_sub(by) } else { time.checked_add(by) };
        shown.unwrap_or(time)
    }

    /// Takes in the `Date` header of an answer that came when our clock showed `now`.
    pub(super) fn learn(&self, date: &str, now: SystemTime) {
        if let Ok(told) = DateTime::from_str(date, DateTimeFormat::HttpDate)
            && let Ok(told) = told.to_millis()
            && let Ok(ours) = DateTime::from(now).to_millis()
        {
            self.ahead.store(ahead(told, ours), Ordering::Relaxed);
        }
    }
}

/// The least difference in milliseconds that explains what an answer told; none where the clocks may agree. A time that is too late
/// would have a requeue take its own messages again and again.
fn ahead(told: i64, ours: i64) -> i64 {
    0.clamp(told - ours, told + UNTOLD - ours)
}

/// The generated clients sign by what they learn for themselves; this one is for calls that go without them, and for comparisons.
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

    #[test]
    fn clocks_that_may_agree_do() {
        assert_eq!([ahead(5_000, 5_000), ahead(5_000, 5_999)], [0, 0]);
        assert_eq!([ahead(5_000, 4_999), ahead(5_000, 6_000)], [1, -1]);
        assert_eq!(ahead(3_605_000, 5_500), 3_599_500);
    }
}
