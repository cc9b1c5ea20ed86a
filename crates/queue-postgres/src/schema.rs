//! The schema `hostler_queue`: its versions, and the check of its version.

use hostler_postgres::{Database, DatabaseError, Fit, MigrateError, Migration, migrate, schema_version};
use hostler_queue::{Change, QueueError};

use super::faults::to_queue_error;

/// Name of the schema.
pub(super) const SCHEMA: &str = "hostler_queue";

/// Statements that let a user send and receive, and keep schedules and idempotency records, if the queues exist (`provision = "check"`), for `USER`. To
/// provision, a user needs the right to create in the database, or to own the schema.
pub const PERMISSIONS: &str = "\
GRANT USAGE ON SCHEMA hostler_queue TO USER;
GRANT SELECT ON hostler_queue.migration, hostler_queue.subscription, hostler_queue.exchange TO USER;
GRANT SELECT, UPDATE ON hostler_queue.queue TO USER;
GRANT SELECT, INSERT, UPDATE, DELETE ON hostler_queue.content, hostler_queue.entry, hostler_queue.dedupe TO USER;
GRANT USAGE ON SEQUENCE hostler_queue.seq TO USER;
GRANT SELECT, INSERT, UPDATE ON hostler_queue.schedule TO USER;
GRANT SELECT, INSERT, UPDATE, DELETE ON hostler_queue.record TO USER;
";

/// Statement that creates the table of schedules.
pub(super) const SCHEDULES_TABLE: &str = include_str!("schema/2.sql");

/// Statements that create the table of idempotency records.
pub(super) const RECORDS_TABLE: &str = include_str!("schema/3.sql");

/// All versions.
const MIGRATIONS: [Migration; 3] = [
    Migration { version: 1, name: "queues", compatible_from: 1, sql: include_str!("schema/1.sql") },
    Migration { version: 2, name: "schedules", compatible_from: 1, sql: SCHEDULES_TABLE },
    Migration { version: 3, name: "idempotency", compatible_from: 1, sql: RECORDS_TABLE },
];

/// Latest version that this hostler knows.
const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// State of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// There is no schema.
    Missing,
    /// It lacks tables that only some installations need: that of idempotency records, and perhaps that of schedules. Queues work.
    Older,
    /// It has what this hostler needs.
    Current,
}

/// Creates the schema, or brings it to the latest version.
pub(super) async fn create(database: &Database) -> Result<(), QueueError> {
    migrate(database, SCHEMA, &MIGRATIONS).await.map(drop).map_err(fault_of)
}

/// Creates the schema, or brings it to the latest version if the user may do so. Otherwise an older version is left as it is,
/// because queues work with it.
pub(super) async fn create_or_keep(database: &Database) -> Result<(), QueueError> {
    let Err(error) = migrate(database, SCHEMA, &MIGRATIONS).await else { return Ok(()) };
    if is_denied(&error) && state(database).await? == State::Older {
        tracing::info!(
            "the schema {SCHEMA} is not at the latest version, and this user may not update it: for schedules and idempotency, let its \
             owner run `hostler provision`"
        );
        return Ok(());
    }
    Err(fault_of(error))
}

/// Returns `true` if the user lacks a right.
fn is_denied(error: &MigrateError) -> bool {
    let (MigrateError::Failed { error, .. } | MigrateError::Database(error)) = error else { return false };
    matches!(error, DatabaseError::Denied { .. })
}

/// Returns the error of a migration.
fn fault_of(error: MigrateError) -> QueueError {
    match error {
        MigrateError::Newer { .. } => QueueError::Refused(error.to_string()),
        MigrateError::Failed { error: DatabaseError::Denied { ref message, .. }, .. } => QueueError::Refused(format!(
            "the schema {SCHEMA} cannot be brought up to date: {message}; grant CREATE on the schema, or let its owner run \
             `hostler provision`"
        )),
        MigrateError::Failed { error: ref cause, .. } if cause.is_retryable() => {
            QueueError::Unavailable(error.to_string())
        }
        MigrateError::Failed { .. } => QueueError::Refused(error.to_string()),
        MigrateError::Database(DatabaseError::Denied { message, .. }) => QueueError::Refused(format!(
            "the schema {SCHEMA} cannot be created: {message}; grant CREATE on the database, or let its owner run `hostler provision`"
        )),
        MigrateError::Database(error) => to_queue_error(&error),
    }
}

/// Returns the change that brings the schema to the latest version. `None`: it is there.
pub(super) fn planned(state: State) -> Option<Change> {
    let name = format!("schema {SCHEMA}");
    match state {
        State::Missing => Some(Change::create(name)),
        State::Older => Some(Change::update(name, "to the latest version".to_owned())),
        State::Current => None,
    }
}

/// Returns the state of the schema.
pub(super) async fn state(database: &Database) -> Result<State, QueueError> {
    let found = schema_version(database, SCHEMA).await.map_err(|error| to_queue_error(&error))?;
    match found.fit(LATEST) {
        Fit::Missing => Ok(State::Missing),
        Fit::Older => Ok(State::Older),
        Fit::Usable => Ok(State::Current),
        Fit::Newer => {
            let newer = MigrateError::Newer { schema: SCHEMA.to_owned(), found: found.version, known: LATEST };
            Err(QueueError::Refused(newer.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use hostler_types::Timestamp;

    use super::*;

    #[test]
    fn the_limits_of_times_are_those_of_a_timestamp() {
        let last = Timestamp::from_micros(u64::MAX).micros().to_string();
        assert_eq!(MIGRATIONS[1].sql.matches(&format!("BETWEEN 0 AND {last})")).count(), 3);
    }
}
