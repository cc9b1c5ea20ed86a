//! Assignments that no worker knows, because their transaction had an unknown end. They are given back.

use std::time::Duration;

use hostler_postgres::{DatabaseError, Param, Type};
use tokio::runtime::Handle;

use crate::ids::AssignmentRef;
use crate::store::{Store, StoreError};
use crate::types::Assigned;

/// Pauses before the attempts to give assignments back. A statement whose connection was lost may go on for a moment.
const PAUSES: [Duration; 4] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// Gives back the assignments of one claim, except those that are known. Tokens are made from the items and the salt.
const GIVE_BACK: &str = "SELECT r.seq FROM (SELECT array_agg(a.seq ORDER BY a.seq), array_agg(a.token ORDER BY a.seq) \
    FROM hostler_jobs.assignment a WHERE a.worker = $1 AND a.token = hashint8extended(a.seq, $2) AND NOT a.seq = ANY ($3)) \
    g (seqs, tokens) CROSS JOIN LATERAL hostler_jobs.release(g.seqs, g.tokens, 0) r WHERE g.seqs IS NOT NULL";

/// A claim under way. Dropping this value before [`Self::delivered`] gives its assignments back in a task of its own.
pub(super) struct Undelivered {
    store: Store,
    worker: String,
    /// The random part of the tokens of this claim.
    pub(super) salt: i64,
    known: Vec<i64>,
    is_open: bool,
}

impl Undelivered {
    /// Begins a claim for a worker.
    pub(super) fn new(store: &Store, worker: &str) -> Self {
        let salt = fastrand::i64(..);
        Self { store: store.clone(), worker: worker.to_owned(), salt, known: Vec::new(), is_open: true }
    }

    /// Ends the claim: all its assignments are known, or there are none.
    pub(super) fn delivered(mut self) {
        self.is_open = false;
    }

    /// Ends the claim after an error. These assignments are known.
    pub(super) fn failed(mut self, error: &StoreError, known: &[Assigned]) {
        self.is_open = may_have_committed(error);
        let ids = known.iter().filter_map(|one| AssignmentRef::parse(&one.assignment_id));
        self.known = ids.map(|place| place.item.seq).collect();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        // Beyond the bound, or without a runtime, the items come back after three missed heartbeats.
        let permit = std::sync::Arc::clone(&self.store.undelivered).try_acquire_owned();
        let (true, Ok(permit), Ok(runtime)) = (self.is_open, permit, Handle::try_current()) else { return };
        let (store, worker, salt) = (self.store.clone(), std::mem::take(&mut self.worker), self.salt);
        let known = std::mem::take(&mut self.known);
        runtime.spawn(async move {
            give_back(&store, &worker, salt, &known).await;
            drop(permit);
        });
    }
}

/// Gives the assignments of a claim back, as soon as they are seen.
async fn give_back(store: &Store, worker: &str, salt: i64, known: &[i64]) {
    let params: [Param<'_>; 3] = [(&worker, Type::TEXT), (&salt, Type::INT8), (&known, Type::INT8_ARRAY)];
    for pause in PAUSES {
        tokio::time::sleep(pause).await;
        match store.call(GIVE_BACK, &params).await {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                tracing::info!(count = rows.len(), "items of a claim with an unknown end are given back");
                return;
            }
            Err(error) => tracing::debug!(%error, "cannot give back the items of a claim with an unknown end"),
        }
    }
}

/// Tells whether a call that ended in this error may have made assignments.
fn may_have_committed(error: &StoreError) -> bool {
    match error {
        StoreError::Database(error) => {
            matches!(error, DatabaseError::Unreachable { .. } | DatabaseError::Deadline | DatabaseError::UnknownFate)
        }
        StoreError::Unexpected(_) => true,
        StoreError::NotFound { .. }
        | StoreError::Conflict { .. }
        | StoreError::Invalid { .. }
        | StoreError::Gone
        | StoreError::Migrate(_)
        | StoreError::Schema { .. }
        | StoreError::Applet { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_unknown_outcome_may_have_committed() {
        let text = String::new;
        let unreachable = DatabaseError::Unreachable { reason: text() };
        for error in [unreachable, DatabaseError::Deadline, DatabaseError::UnknownFate] {
            assert!(may_have_committed(&error.into()));
        }
        let busy = DatabaseError::Busy { code: text(), message: text() };
        assert!(!may_have_committed(&busy.into()) && !may_have_committed(&StoreError::Gone));
    }
}
