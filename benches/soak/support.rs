//! Code shared with the tests: guests as components, and a proxy that can cut connections.

#[path = "../../tests/support/guests.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
pub mod guests;
#[path = "../../tests/support/proxy.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
pub mod proxy;
