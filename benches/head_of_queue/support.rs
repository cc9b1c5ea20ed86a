//! Code shared with the tests: RabbitMQ, and the real hostler with its log.

#[path = "../../tests/support/hostler.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
pub mod hostler;
#[path = "../../tests/support/rabbitmq.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
pub mod rabbitmq;
#[path = "../../tests/support/servers.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
pub mod servers;
