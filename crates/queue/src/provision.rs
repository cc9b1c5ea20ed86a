//! A queue service as `provision` and `check` use it: changes to make, and findings to report.

use std::fmt;

use async_trait::async_trait;

use crate::admin::Admin;
use crate::broker::ChannelSpec;
use crate::error::QueueError;
use hostler_types::channel::Channel;

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

/// A queue service that can be made as a config wants it. A driver implements it, so this is all that a service can do.
#[async_trait]
pub trait Provisioner: Admin {
    /// Makes what a channel lacks, and changes nothing that is there: for who is not its consumer.
    ///
    /// # Errors
    /// As [`Broker::open`](crate::Broker::open).
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.open(spec).await.map(drop)
    }

    /// What would have to change for the service to be as `wanted` says; changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let existing = self.channels().await?;
        let missing = wanted.iter().filter(|spec| !existing.iter().any(|one| one.queue() == spec.channel.queue()));
        Ok(missing.map(|spec| Change::create(format!("queue {}", spec.channel))).collect())
    }

    /// Makes the service as `wanted` says, and calls `done` for each change as it is made. Asked twice, it changes nothing
    /// the second time.
    ///
    /// # Errors
    /// [`QueueError`] at the first change that fails; asked again, it goes on from there.
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

    /// What is wrong with a channel for a consumer such as `spec`, with a cure each; empty: it can run. Changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Those of these channels that lead nowhere, as their queue or exchange is not there, each with the change that would make it.
    /// Empty on a service where a send makes what is missing.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked.
    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let _ = channels;
        Ok(Vec::new())
    }

    /// Makes one of [`Self::missing_destinations`]: a plain queue, or an exchange, with nothing but its name.
    ///
    /// # Errors
    /// [`QueueError`] when it cannot be made.
    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let _ = channel;
        Ok(())
    }
}
