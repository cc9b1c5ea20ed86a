//! Tables that only some installations need: for schedules, and for idempotency records. Queues work without them.

use hostler_postgres::{Client, DatabaseError, Type};
use hostler_queue::{Change, QueueError};

use super::faults::{RECORDS, SCHEDULES, no_schema, no_table};
use super::service::Service;
use super::{rights, schema};

/// A table that a version of the schema has added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addition {
    /// Name of the table, with the schema.
    table: &'static str,
    /// Purpose of the table, for people.
    purpose: &'static str,
    /// Statements that create the table.
    sql: &'static str,
}

/// The table of schedules.
pub(super) const OF_SCHEDULES: Addition =
    Addition { table: SCHEDULES, purpose: "schedules", sql: schema::SCHEDULES_TABLE };

/// The table of idempotency records.
pub(super) const OF_RECORDS: Addition =
    Addition { table: RECORDS, purpose: "idempotency records", sql: schema::RECORDS_TABLE };

/// Creates the table if the options say so and it is missing. Checks that it can be used.
///
/// # Errors
/// [`QueueError::Refused`] if the schema, the table or a right is missing.
pub(super) async fn prepare(service: &Service, addition: Addition) -> Result<(), QueueError> {
    let client = service.run(service.database.client()).await?;
    if service.options.create_missing && !service.run(has_table(&client, addition.table)).await? {
        restore(service, addition).await?;
    }
    drop(client);
    inspect(service, addition).await
}

/// Checks that the table can be used, and changes nothing.
///
/// # Errors
/// [`QueueError::Refused`] if the schema, the table or a right is missing.
pub(super) async fn inspect(service: &Service, addition: Addition) -> Result<(), QueueError> {
    if schema::state(&service.database).await? == schema::State::Missing {
        return Err(QueueError::Refused(no_schema().to_owned()));
    }
    let client = service.run(service.database.client()).await?;
    // An older schema may have this table, and lack another.
    if !service.run(has_table(&client, addition.table)).await? {
        return Err(QueueError::Refused(no_table(addition.table)));
    }
    match service.run(rights::missing_on(&client, addition.table)).await? {
        Some(grant) => Err(QueueError::Refused(format!(
            "the user of the database lacks rights for {}: let the owner of the schema run: {grant}",
            addition.purpose
        ))),
        None => Ok(()),
    }
}

/// Brings the schema to the latest version. Creates the table again if somebody has removed it. Returns the changes to the table.
///
/// # Errors
/// [`QueueError::Refused`] if the user may not do so.
pub(super) async fn restore(service: &Service, addition: Addition) -> Result<Vec<Change>, QueueError> {
    schema::create(&service.database).await?;
    let changes = missing(service, addition).await?;
    if !changes.is_empty() {
        let client = service.run(service.database.client()).await?;
        service.run(client.batch(addition.sql)).await?;
    }
    Ok(changes)
}

/// Returns the change that creates a table that somebody has removed from a current schema.
///
/// # Errors
/// The database cannot be read.
pub(super) async fn missing(service: &Service, addition: Addition) -> Result<Vec<Change>, QueueError> {
    if schema::state(&service.database).await? != schema::State::Current {
        return Ok(Vec::new());
    }
    let client = service.run(service.database.client()).await?;
    let is_there = service.run(has_table(&client, addition.table)).await?;
    Ok(if is_there { Vec::new() } else { vec![Change::create(format!("table {}", addition.table))] })
}

/// Returns `true` if the database has the table.
async fn has_table(client: &Client, table: &str) -> Result<bool, DatabaseError> {
    let rows = client.query("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
