//! Errors of the database as errors of the queue contract.

use hostler_postgres::DatabaseError;
use hostler_queue::{LeaseError, QueueError};

/// Table of schedules.
pub(super) const SCHEDULES: &str = "hostler_queue.schedule";

/// Table of idempotency records.
pub(super) const RECORDS: &str = "hostler_queue.record";

/// Tables that only some installations need.
pub(super) const ADDED: [&str; 2] = [SCHEDULES, RECORDS];

/// Returns the error of a call.
pub(super) fn to_queue_error(error: &DatabaseError) -> QueueError {
    match error {
        error if error.is_retryable() => QueueError::Unavailable(error.to_string()),
        // insufficient_privilege
        DatabaseError::Denied { code, .. } if code == "42501" => QueueError::Refused(format!(
            "{error}; grant the user the rights that `hostler provision --permissions` prints"
        )),
        // undefined_table, invalid_schema_name
        DatabaseError::Refused { code, message } if code == "42P01" || code == "3F000" => {
            let added = ADDED.into_iter().find(|table| message.contains(table));
            QueueError::Refused(added.map_or_else(|| no_schema().to_owned(), no_table))
        }
        error => QueueError::Refused(error.to_string()),
    }
}

/// Returns the error of a lease whose call failed with this error.
pub(super) fn to_lease_error(error: &QueueError) -> LeaseError {
    LeaseError::Retry(error.to_string())
}

/// Returns the fault and the cure if there are no tables.
pub(super) fn no_schema() -> &'static str {
    "the database has no schema hostler_queue: `hostler provision` creates it, and so does provision = \"auto\""
}

/// Returns the fault and the cure if a table is missing that only some installations need.
pub(super) fn no_table(table: &str) -> String {
    format!(
        "the database has no table {table}: `hostler provision` brings the schema up to date, and so does provision = \"auto\""
    )
}

/// Returns the error for a queue that does not exist.
pub(super) fn no_queue(name: &str) -> QueueError {
    QueueError::Refused(format!(
        "there is no queue `{name}` in the database: `hostler provision` creates it, and so does provision = \"auto\""
    ))
}
