//! The states of a consumer, with their names in the health file, logs, metrics and hooks.

use serde::{Deserialize, Serialize};

/// The state of a consumer. The health file contains the names in capital letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Loading the handler and connecting to the queue.
    Initializing,
    /// Ready, but not yet polling.
    Initialized,
    /// Polling.
    Listening,
    /// Processing at least one message.
    Processing,
    /// Polling. The last poll returned no message.
    Idle,
    /// Draining.
    Exiting,
}

impl State {
    /// Returns the name in the health file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "INITIALIZING",
            Self::Initialized => "INITIALIZED",
            Self::Listening => "LISTENING",
            Self::Processing => "PROCESSING",
            Self::Idle => "IDLE",
            Self::Exiting => "EXITING",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_one_name() -> Result<(), serde_json::Error> {
        use State::*;
        for state in [Initializing, Initialized, Listening, Processing, Idle, Exiting] {
            assert_eq!(serde_json::to_string(&state)?, format!("{:?}", state.name()));
        }
        Ok(())
    }
}
