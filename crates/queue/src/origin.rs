//! What a queue or an exchange is to others.

use std::sync::Arc;

/// What a service is to others, as spans name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `messaging.system` of OpenTelemetry's conventions.
    pub system: &'static str,
    /// The queue's URL or the topic's ARN, where there are such and it is known.
    pub address: Option<Arc<str>>,
}

impl Default for Origin {
    /// A queue of hostler's own.
    fn default() -> Self {
        Self { system: "hostler", address: None }
    }
}
