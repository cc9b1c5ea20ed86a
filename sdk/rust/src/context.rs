//! Information about the current call of a handler.
//!
//! In tests on a developer's machine, [`testing`](crate::testing) sets the values that these functions return.

use std::time::Duration;

/// Returns the time until the processing timeout stops this call.
#[must_use]
pub fn remaining() -> Duration {
    #[cfg(target_family = "wasm")]
    return Duration::from_millis(crate::contract::context::remaining_ms());
    #[cfg(not(target_family = "wasm"))]
    crate::testing::remaining()
}

/// Returns true if the host is draining or the lease is lost. The handler should then finish early, or return
/// [`Failure::retry`](crate::Failure::retry).
#[must_use]
pub fn should_stop() -> bool {
    #[cfg(target_family = "wasm")]
    return crate::contract::context::should_stop();
    #[cfg(not(target_family = "wasm"))]
    crate::testing::should_stop()
}

/// Returns the message's trace context (W3C `traceparent`), if the message has one. hostler adds the trace context to messages
/// and HTTP requests that the handler sends, unless the handler adds another.
#[must_use]
pub fn traceparent() -> Option<String> {
    #[cfg(target_family = "wasm")]
    return crate::contract::context::traceparent();
    #[cfg(not(target_family = "wasm"))]
    crate::testing::traceparent()
}
