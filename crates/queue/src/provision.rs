//! The operations on a queue service for `provision` and `check`: planning and making changes, and finding problems.

use std::fmt;

use async_trait::async_trait;

use crate::admin::Admin;
use crate::broker::ChannelSpec;
use crate::change::Change;
use crate::error::QueueError;
use hostler_types::channel::Channel;

/// A problem with a channel, for a report to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The fault and its location.
    pub fault: String,
    /// The fix.
    pub cure: String,
    /// Set if the consumer cannot work. Otherwise, the consumer works with a limitation.
    pub fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault, self.cure)
    }
}

/// A queue service that can be set up according to the config. Extends [`Admin`], so the trait includes all operations
/// of a service.
#[async_trait]
pub trait Provisioner: Admin {
    /// Creates the missing resources of a channel. Leaves existing resources unchanged. Used by callers other than the
    /// channel's consumer.
    ///
    /// # Errors
    /// The errors of [`Broker::open`](crate::Broker::open).
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.open(spec).await.map(drop)
    }

    /// Lists the changes that would bring the service to the desired state. Changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let existing = self.channels().await?;
        let missing = wanted.iter().filter(|spec| !existing.iter().any(|one| one.queue() == spec.channel.queue()));
        Ok(missing.map(|spec| Change::create(format!("queue {}", spec.channel))).collect())
    }

    /// Brings the service to the desired state. Calls `done` for each change that was made. A second call changes nothing.
    ///
    /// # Errors
    /// [`QueueError`] at the first change that fails. Another call continues with the remaining changes.
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

    /// Lists the problems that a consumer with this spec would have. Each finding contains the fix for its problem.
    /// Changes nothing. If the list is empty, the consumer can run.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Returns the channels whose queue or exchange does not exist. Each channel comes with the change that would
    /// create the missing resource. Returns an empty list if the service creates missing resources when a message is
    /// sent.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached or refuses the request.
    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let _ = channels;
        Ok(Vec::new())
    }

    /// Creates the missing resource of a channel that [`Self::missing_destinations`] returned: a plain queue or an
    /// exchange with default settings.
    ///
    /// # Errors
    /// [`QueueError`] if the resource cannot be created.
    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let _ = channel;
        Ok(())
    }
}
