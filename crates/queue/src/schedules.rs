//! The store of schedules: how several hosts agree on which of them sends a message that is due.

use async_trait::async_trait;

use crate::change::Change;
use crate::error::{QueueError, SendError};
use crate::sent::Sent;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use hostler_types::{ScheduleState, Timestamp};

/// Scope in which the hosts that share a queue service agree on who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// The state and the messages change in one transaction: each due time is sent once.
    Transaction,
    /// The messages carry an id by which the service drops duplicates for a limited period, and the state follows. A host that
    /// stands still for longer than the period between the two may cause a duplicate.
    DuplicateWindow,
    /// Nothing is stored. Each host sends, and the service drops all messages but the first for a limited period. A host that
    /// starts does not know what was missed.
    Stateless,
}

/// A step of a schedule: its new state, and the messages that become due by it.
#[derive(Debug, Clone)]
pub struct Advance {
    /// Name of the schedule.
    pub name: String,
    /// The state that the caller has read. `None`: the schedule had none.
    pub from: Option<ScheduleState>,
    /// The new state.
    pub to: ScheduleState,
    /// Channel that the messages are sent to.
    pub channel: Channel,
    /// Messages with their due times, oldest first. May be empty.
    pub messages: Vec<(Timestamp, Outgoing)>,
}

impl Advance {
    /// Returns the text that identifies the message of a due time among all messages of all schedules.
    pub fn message_key(&self, due: Timestamp) -> String {
        format!("hostler-schedule/{}/{due}", self.name)
    }

    /// Returns `true` if `found` is the state that the step starts from.
    pub fn starts_from(&self, found: Option<&ScheduleState>) -> bool {
        match (&self.from, found) {
            (None, None) => true,
            (Some(from), Some(found)) => from.is_same_turn(found),
            _ => false,
        }
    }
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advanced {
    /// The state is stored, and the messages are sent.
    Done(Vec<Sent>),
    /// The schedule has another state than the step starts from. Nothing was changed.
    Changed,
}

/// A store of the states of schedules, beside the queues that their messages are sent to.
#[async_trait]
pub trait Schedules: Send + Sync {
    /// Returns how hosts agree.
    fn agreement(&self) -> Agreement;

    /// Creates what the store needs, if it is missing.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names the missing resource or permission, and the fix.
    async fn prepare(&self) -> Result<(), QueueError>;

    /// Returns the changes that [`Self::make_changes`] would make. By default, the store has no resource that `hostler provision`
    /// plans separately.
    ///
    /// # Errors
    /// The present resources are unknown.
    async fn planned_changes(&self) -> Result<Vec<Change>, QueueError> {
        Ok(Vec::new())
    }

    /// Creates or updates what the store needs, for `hostler provision`, even if the config lets hosts create nothing. Returns the
    /// changes. By default, does what [`Self::prepare`] does.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    async fn make_changes(&self) -> Result<Vec<Change>, QueueError> {
        self.prepare().await.map(|()| Vec::new())
    }

    /// Returns the states of the named schedules, in the order of the names. `None`: the schedule has no state yet. Creates nothing:
    /// without a store, no schedule has a state.
    ///
    /// # Errors
    /// The state is unknown.
    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError>;

    /// Stores the new state and sends the messages, if the schedule still has the state that the step starts from
    /// ([`ScheduleState::is_same_turn`]).
    ///
    /// # Errors
    /// It is unknown whether the step was taken. The caller reads the state again. [`SendError::Invalid`]: a message cannot be sent,
    /// and the step was not taken.
    async fn advance(&self, step: Advance) -> Result<Advanced, SendError>;
}
