//! The store of idempotency records: which keys are being processed, and which were processed.
//!
//! ```text
//! (no record) ─begin→ running ─finish→ done ─ttl→ (no record)
//!                        │ end(Forget): the handler reported a failure      → (no record)
//!                        │ end(Lapse), or the lease ended: nobody knows     → lapsed
//!                     lapsed ─begin that takes over→ running, with another token
//! ```

use std::time::Duration;

use async_trait::async_trait;

use crate::change::Change;
use crate::commit::{Finish, Hold};
use crate::error::QueueError;
use crate::settlement::LeaseError;

/// Maximum length in bytes of [`Begin::label`].
pub const MAX_LABEL: usize = 256;

/// The start of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The record and the token of the run.
    pub hold: Hold,
    /// The scope and the key, for people who read the store: at most [`MAX_LABEL`] bytes.
    pub label: String,
    /// Digest of the message's body. The record of another body is not changed.
    pub body: [u8; 32],
    /// Time after which the run counts as lapsed unless it is extended, from when the store begins it.
    pub lease: Duration,
    /// Time for which the record is kept, at least as long as `lease`.
    pub ttl: Duration,
    /// Set if the run may take over a lapsed record.
    pub takes_over: bool,
}

/// The answer to the start of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The run holds the record: its handler may run.
    Started,
    /// Like [`Self::Started`]. An earlier run has ended without a result.
    TakenOver,
    /// An earlier run has ended without a result, and may not be taken over. Nothing was changed.
    Unknown,
    /// Another run holds the record. Contains the time until its lease ends.
    Busy(Duration),
    /// The key was processed.
    Done(Done),
    /// The key was used for a message with another body, which is being processed or was processed.
    OtherBody,
}

/// The result of a key that was processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The record, and the token of the run that has finished.
    pub hold: Hold,
    /// Reply of the handler.
    pub reply: Option<Vec<u8>>,
    /// The messages that the handler has sent, as [`Finish::unsent`] has them. `None`: there are none, or all were sent.
    pub unsent: Option<Vec<u8>>,
}

/// The end of a run without a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The handler said how it has ended. The record is removed, and the next run starts anew.
    Forget,
    /// The handler was stopped, and may have done its work. The record lapses at once.
    Lapse,
}

/// A store of idempotency records. A call changes a record completely or not at all, and its changes survive a crash once it has
/// returned `Ok`. All times are by the store's clock, or by clocks that agree with it.
///
/// A record whose `ttl` has passed does not exist for any call. The store removes such records by itself, as new ones come.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Returns the maximum size in bytes of the reply and the unsent messages of one record together.
    fn max_size(&self) -> usize;

    /// Creates what the store needs, if it is missing.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names the missing resource or permission, and the fix.
    async fn prepare(&self) -> Result<(), QueueError>;

    /// Checks that the store can be used, and changes nothing. By default, the store needs nothing.
    ///
    /// # Errors
    /// [`QueueError::Refused`] names the missing resource or permission, and the fix.
    async fn inspect(&self) -> Result<(), QueueError> {
        Ok(())
    }

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

    /// Starts a run, unless another one holds the record or the key was processed. A repeated call of the run that holds the record
    /// starts it again.
    ///
    /// # Errors
    /// It is unknown whether the run holds the record. The caller may repeat the call.
    async fn begin(&self, begin: Begin) -> Result<Begun, QueueError>;

    /// Extends the leases of runs, to end `by` from now. [`LeaseError::Lost`]: the run does not hold its record any more, or has
    /// finished. A lease that has ended is extended as long as no other run has taken over.
    async fn extend(&self, holds: &[Hold], by: Duration) -> Vec<Result<(), LeaseError>>;

    /// Records successes. A repeated call succeeds. [`LeaseError::Lost`]: another run has taken over, or the record is gone.
    async fn finish(&self, batch: Vec<Finish>) -> Vec<Result<(), LeaseError>>;

    /// Records that the messages of finished runs were sent.
    ///
    /// # Errors
    /// The messages may be sent again.
    async fn sent(&self, holds: &[Hold]) -> Result<(), QueueError>;

    /// Ends runs that have no success. Does nothing for runs that do not hold their record any more, or have finished.
    ///
    /// # Errors
    /// The records lapse when their leases end.
    async fn end(&self, ends: &[(Hold, RunEnd)]) -> Result<(), QueueError>;
}
