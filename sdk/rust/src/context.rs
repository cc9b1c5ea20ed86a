//! What a handler may ask about the time it has.
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
