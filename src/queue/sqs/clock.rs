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
    /// Milliseconds, and no fewer than it is.
    ahead: Arc<AtomicI64>,
}

impl ServiceClock {
    /// A time of ours by the service's clock, and no earlier; as it is before the first answer.
    pub(super) fn show(&self, time: SystemTime) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        let shown = if ahead < 0 { time.checked_sub(by) } else { time.checked_add(by) };
        shown.unwrap_or(time)
    }
}

impl Intercept for ServiceClock {
    fn name(&self) -> &'static str {
        "ServiceClock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(told) = context.response().headers().get("date")
            && let Ok(told) = DateTime::from_str(told, DateTimeFormat::HttpDate)
            && let Ok(told) = told.to_millis()
            && let Ok(ours) = DateTime::from(components.time_source().unwrap_or_default().now()).to_millis()
        {
            self.ahead.store(told + UNTOLD - ours, Ordering::Relaxed);
        }
        Ok(())
    }
}
