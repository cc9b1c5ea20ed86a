//! Reasons why a secret has no value, by what the caller does next.

use std::fmt::Display;
use std::time::Duration;

/// Reason why a secret has no value. Contains nothing of the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The same look-up fails again until somebody changes something: the reference, the secret, or a permission.
    #[error("{fault}")]
    Lasting {
        /// Description of the fault.
        fault: String,
        /// The fix.
        cure: &'static str,
    },
    /// The same look-up may succeed later: a service or a network does not answer.
    #[error("{fault}")]
    Passing {
        /// Description of the fault.
        fault: String,
        /// The fix, should it last.
        cure: &'static str,
    },
}

impl LookupError {
    /// Returns the fix.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::Lasting { cure, .. } | Self::Passing { cure, .. } => cure,
        }
    }

    /// Returns `true` if the same look-up may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Passing { .. })
    }

    pub(super) fn lasting(fault: impl Display, cure: &'static str) -> Self {
        Self::Lasting { fault: fault.to_string(), cure }
    }

    pub(super) fn passing(fault: impl Display, cure: &'static str) -> Self {
        Self::Passing { fault: fault.to_string(), cure }
    }

    /// Returns the error of files that were not read in this time.
    pub(super) fn hung(limit: Duration) -> Self {
        let fault = format!("reading it took longer than {} s", limit.as_secs());
        Self::passing(fault, "check the file system that it is on")
    }

    /// Returns the error of a secret that an answer lacks.
    pub(super) fn unanswered() -> Self {
        Self::passing("the answer does not contain it", "name a secret that exists, by its whole ARN")
    }
}
