//! A queue service for `provision` and `check`: changes to make, and findings to report.

use std::fmt;

use async_trait::async_trait;

use crate::admin::Admin;
use crate::broker::ChannelSpec;
use crate::error::QueueError;
use hostler_types::channel::Channel;

/// A difference between the wanted and the actual state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The action.
    pub action: Action,
    /// The resource, such as `queue orders`.
    pub resource: String,
    /// The part that changes, such as `visibility timeout: 30 s → 60 s`; may be empty.
    pub detail: String,
}

/// The action on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create it: it does not exist yet.
    Create,
    /// Update it: it differs from the wanted state.
    Update,
    /// Leave it: it differs, and is not ours to change. The detail says why.
    Leave,
}

impl Change {
    /// Returns the creation of a resource.
    pub fn create(resource: String) -> Self {
        Self { action: Action::Create, resource, detail: String::new() }
    }

    /// Returns an update of a resource; `detail` says what changes.
    pub fn update(resource: String, detail: String) -> Self {
        Self { action: Action::Update, resource, detail }
    }

    /// Returns a resource that differs and stays unchanged for this reason.
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

/// A problem of a channel, to report to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The fault, and its place.
    pub fault: String,
    /// The cure.
    pub cure: String,
    /// Set if the consumer cannot work; otherwise it works with a limitation.
    pub fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault, self.cure)
    }
}

/// A queue service that can be set up as the config asks. Everything that a service can do is behind this trait.
#[async_trait]
pub trait Provisioner: Admin {
    /// Creates what a channel lacks and changes nothing that exists. For callers other than the channel's consumer.
    ///
    /// # Errors
    /// As [`Broker::open`](crate::Broker::open).
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.open(spec).await.map(drop)
    }

    /// Lists the changes that would bring the service to `wanted`; changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be asked.
    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let existing = self.channels().await?;
        let missing = wanted.iter().filter(|spec| !existing.iter().any(|one| one.queue() == spec.channel.queue()));
        Ok(missing.map(|spec| Change::create(format!("queue {}", spec.channel))).collect())
    }

    /// Brings the service to `wanted` and calls `done` for each change as it is made. A second call changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] at the first change that fails; another call continues from there.
    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let changes = self.plan(wanted).await?;
        for spec in wanted {
            self.open(spec).await?;
        }
        for change in &changes {
            done(change);
        }
        Ok(())
    }

    /// Lists the problems of a channel for a consumer with this spec, each with its cure. Empty: the consumer can run.
    /// Changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be asked.
    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Returns those of these channels whose queue or exchange does not exist, each with the change that would create
    /// it. Empty on a service where a send creates what is missing.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be asked.
    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let _ = channels;
        Ok(Vec::new())
    }

    /// Creates one of [`Self::missing_destinations`]: a plain queue or an exchange, with default settings.
    ///
    /// # Errors
    /// [`QueueError`] if it cannot be created.
    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let _ = channel;
        Ok(())
    }
}
