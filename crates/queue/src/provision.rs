//! What a service should hold against what it holds: changes to make, and findings to tell a person.

use std::fmt;

/// Something that differs between what is wanted and what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What is to be done.
    pub action: Action,
    /// The resource, such as `queue orders`.
    pub resource: String,
    /// What of it changes, such as `visibility timeout: 30 s → 60 s`; may be empty.
    pub detail: String,
}

/// What is done to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is not there yet.
    Create,
    /// It is there, and not as wanted.
    Update,
    /// Nothing: it is there, not as wanted, and not ours to change. The detail says why.
    Leave,
}

impl Change {
    /// A resource that is to be created.
    pub fn create(resource: String) -> Self {
        Self { action: Action::Create, resource, detail: String::new() }
    }

    /// A resource that is to be changed in this.
    pub fn update(resource: String, detail: String) -> Self {
        Self { action: Action::Update, resource, detail }
    }

    /// A resource that is not as wanted, and stays so for this reason.
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

/// Something about a channel that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, and where.
    pub fault: String,
    /// What to do about it.
    pub cure: String,
    /// Whether the consumer cannot work so; otherwise it can, worse.
    pub fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault, self.cure)
    }
}
