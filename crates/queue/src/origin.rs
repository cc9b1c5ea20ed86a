//! The identity of a queue or an exchange in spans.

use std::sync::Arc;

/// The system and address of a queue or an exchange, as spans name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `messaging.system` of OpenTelemetry's conventions.
    pub system: &'static str,
    /// The queue's URL or the topic's ARN, where the service has one and it is known.
    pub address: Option<Arc<str>>,
}

impl Default for Origin {
    /// A queue of hostler's own, without an address.
    fn default() -> Self {
        Self { system: "hostler", address: None }
    }
}
