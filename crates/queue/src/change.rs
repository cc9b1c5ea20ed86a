//! Changes that bring a service to the desired state.

use std::fmt;

/// A difference between the desired and the actual state of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The action that resolves the difference.
    pub action: Action,
    /// The resource, for example `queue orders`.
    pub resource: String,
    /// The detail that differs, for example `visibility timeout: 30 s → 60 s`. May be empty.
    pub detail: String,
}

/// The action on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create the resource. The resource does not exist yet.
    Create,
    /// Update the resource. The resource differs from the desired state.
    Update,
    /// Leave the resource unchanged. The resource differs from the desired state, but hostler must not change the
    /// resource. The detail gives the reason.
    Leave,
}

impl Change {
    /// Returns a change that creates a resource.
    pub fn create(resource: String) -> Self {
        Self { action: Action::Create, resource, detail: String::new() }
    }

    /// Returns a change that updates a resource. `detail` describes the difference.
    pub fn update(resource: String, detail: String) -> Self {
        Self { action: Action::Update, resource, detail }
    }

    /// Returns a change that leaves a resource unchanged although the resource differs from the desired state. `reason`
    /// gives the reason.
    pub fn leave(resource: String, reason: String) -> Self {
        Self { action: Action::Leave, resource, detail: reason }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.action {
            Action::Create => '+',
            Action::Update => '~',
            Action::Leave => '=',
        };
        write!(f, "{sign} {}", self.resource)?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}
