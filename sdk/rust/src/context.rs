//! What a handler may ask about the call that it is in.
//!
//! In tests on a developer's machine, [`testing`](crate::testing) says what they answer.

use std::time::Duration;

/// How long it is until the processing timeout stops this call.
#[must_use]
pub fn remaining() -> Duration {
    #[cfg(target_family = "wasm")]
    return Duration::from_millis(crate::contract::context::remaining_ms());
    #[cfg(not(target_family = "wasm"))]
    crate::testing::remaining()
}

/// Whether the host is draining or the lease is lost: finish early, or return [`Failure::retry`](crate::Failure::retry).
#[must_use]
pub fn should_stop() -> bool {
    #[cfg(target_family = "wasm")]
    return crate::contract::context::should_stop();
    #[cfg(not(target_family = "wasm"))]
    crate::testing::should_stop()
}

/// The message's trace context (W3C `traceparent`), if it carries one. What is sent or requested carries it on by itself.
#[must_use]
pub fn traceparent() -> Option<String> {
    #[cfg(target_family = "wasm")]
    return crate::contract::context::traceparent();
    #[cfg(not(target_family = "wasm"))]
    crate::testing::traceparent()
}
