//! The identity of a queue or an exchange in spans.

use std::sync::Arc;

/// The system and the address of a queue or an exchange, for spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Value of `messaging.system` (OpenTelemetry semantic conventions).
    pub system: &'static str,
    /// URL of the queue or ARN of the topic. `None`: the service has no addresses, or the address is not known.
    pub address: Option<Arc<str>>,
}

impl Default for Origin {
    /// Returns the origin of a queue that hostler itself provides. The origin has no address.
    fn default() -> Self {
        Self { system: "hostler", address: None }
    }
}
