//! The states of a consumer, as the health file, logs, metrics and hooks name them.

use serde::{Deserialize, Serialize};

/// A consumer's state; the health file has the names in capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Loading its handler, connecting to its queue.
    Initializing,
    /// Ready; not polling yet.
    Initialized,
    /// Polling.
    Listening,
    /// At least one message is with its handler.
    Processing,
    /// Polling; the last poll brought nothing.
    Idle,
    /// Draining.
    Exiting,
}

impl State {
    /// Returns its name in the health file.
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
