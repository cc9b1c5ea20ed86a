//! Errors of the store, split by the answer to the caller.

use hostler_postgres::{DatabaseError, MigrateError};

use crate::limits::Fault;

/// The reason that the store did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing: 404.
    #[error("no {what} has the id {id:?}")]
    NotFound {
        /// "job", "item" or "assignment".
        what: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// The state of things forbids it: 409.
    #[error("{reason}")]
    Conflict {
        /// A word for programs: `dedupe_key`, `id`, `sealed`, `feed`, `deleted`, `assigned`, `done`, `retry_at`, `serialize_key`.
        reason: &'static str,
        /// The job that has the dedupe key or the id.
        job_id: Option<String>,
    },
    /// The request is at fault: 422.
    #[error("{field}: {detail}")]
    Invalid {
        /// The field, as a path such as `children[0].items[3].payload`.
        field: String,
        /// The fault.
        detail: String,
    },
    /// The assignment has ended in another way: 410.
    #[error("the assignment has ended")]
    Gone,
    /// An applet cannot run in this process: 503. Another one may know it, or this one may have room later.
    #[error("the applet {name:?} cannot run here: {reason}")]
    Applet {
        /// The name of the applet.
        name: String,
        /// The reason, without secrets.
        reason: String,
    },
    /// The database did not answer, or refused: 503.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The schema could not be brought up to date: the service cannot start.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The schema is of a version that this program cannot work with: 503.
    #[error("the schema hostler_jobs has version {found}, and this hostler needs version {wanted}{}", cure(*found, *wanted))]
    Schema {
        /// The version of the database; 0: there is no schema.
        found: i32,
        /// The version that this program needs.
        wanted: i32,
    },
    /// The database holds what this version does not understand: 500.
    #[error("the database holds an unexpected value: {0}")]
    Unexpected(String),
}

/// The cure for a schema of another version.
fn cure(found: i32, wanted: i32) -> &'static str {
    if found < wanted {
        ": run `hostler jobs migrate`, or start a service of this version"
    } else {
        ", as the newer version is not compatible: run the newer hostler that migrated it"
    }
}

impl StoreError {
    /// Makes the error of a faulty field.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> StoreError {
        StoreError::Invalid { field: field.into(), detail: detail.into() }
    }

    /// Set if the database does not answer in time, cannot be reached, or lets this process not in.
    pub(crate) fn is_outage(&self) -> bool {
        let StoreError::Database(error) = self else { return false };
        // Class 28: the user or the password.
        matches!(error, DatabaseError::Unreachable { .. } | DatabaseError::Deadline)
            || error.code().is_some_and(|code| code.starts_with("28"))
    }

    /// Set if the same call may succeed a moment later.
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Applet { .. } => true,
            StoreError::Database(error) => error.is_retryable(),
            _ => false,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        StoreError::Invalid { field: fault.field, detail: fault.detail }
    }
}
