//! Migrations of a schema, under a lock of the server, so that several processes may start at once.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::database::Database;
use crate::error::DatabaseError;
use crate::transaction::Transaction;

/// Maximum duration of each call of a migration: others may hold the lock, and tables may be large.
const PATIENCE: Duration = Duration::from_secs(120);

/// A step from one version of a schema to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Version of the schema after this step. Versions increase.
    pub version: i32,
    /// Name of the step.
    pub name: &'static str,
    /// Oldest version that a process may have as its latest, and work with the schema after this step. The version itself, unless
    /// the step leaves all that older processes use as it was. A rolling deploy needs that: older instances serve on.
    pub compatible_from: i32,
    /// Statements, separated by semicolons. They run in a transaction, and name their schema.
    pub sql: &'static str,
}

/// The version of a schema in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersion {
    /// Version. 0: there is no schema.
    pub version: i32,
    /// Oldest version that a process may have as its latest, and work with the schema.
    pub compatible_from: i32,
}

/// The relation of a schema in the database to the version that a process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// There is no schema.
    Missing,
    /// The schema lacks steps that the process needs.
    Older,
    /// The process can work with the schema, which may be newer.
    Usable,
    /// A newer process has changed the schema so that this one cannot work with it.
    Newer,
}

impl SchemaVersion {
    /// Compares the schema with the latest version that a process knows.
    pub fn fit(self, known: i32) -> Fit {
        match self.version {
            0 => Fit::Missing,
            version if version < known => Fit::Older,
            version if version == known || self.compatible_from <= known => Fit::Usable,
            _ => Fit::Newer,
        }
    }
}

/// The result of [`migrate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Version before. 0: there was no schema.
    pub from: i32,
    /// Version after.
    pub to: i32,
}

/// The reason why a schema was not migrated. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// A newer hostler has migrated the schema to a version that this one cannot work with.
    #[error(
        "the schema {schema} has version {found}, and this hostler knows versions up to {known}: run the newer hostler that migrated it"
    )]
    Newer {
        /// Name of the schema.
        schema: String,
        /// Version of the schema.
        found: i32,
        /// Latest version that this process knows.
        known: i32,
    },
    /// A step failed.
    #[error("migration {version} ({name}) of the schema {schema} failed: {error}")]
    Failed {
        /// Name of the schema.
        schema: String,
        /// Version of the step.
        version: i32,
        /// Name of the step.
        name: &'static str,
        /// The error.
        error: DatabaseError,
    },
    /// The database failed outside of a step.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Brings a schema to the latest version, in one transaction. `<schema>.migration` has a row for each step. Changes nothing if the
/// schema is at the latest version, or at a newer one that is compatible; the user then needs no right to create.
///
/// # Errors
/// [`MigrateError`]. Nothing was changed.
pub async fn migrate(database: &Database, schema: &str, migrations: &[Migration]) -> Result<Applied, MigrateError> {
    let latest = migrations.iter().map(|step| step.version).max().unwrap_or(0);
    let found = schema_version(database, schema).await?;
    if found.version >= latest {
        return checked(schema, found, latest);
    }
    let mut client = database.client().await?.with_deadline(PATIENCE);
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[(&lock_of(schema), Type::INT8)]).await?;
    // Another process may have migrated meanwhile. This statement sees its commit.
    let found = version_in(&transaction, schema).await?;
    if found.version >= latest {
        return checked(schema, found, latest);
    }
    let found = found.version;
    if found == 0 {
        transaction.batch(&setup(schema)).await?;
    }
    for step in migrations.iter().filter(|step| step.version > found) {
        apply(&transaction, schema, step).await.map_err(|error| MigrateError::Failed {
            schema: schema.to_owned(),
            version: step.version,
            name: step.name,
            error,
        })?;
    }
    transaction.commit().await?;
    Ok(Applied { from: found, to: latest })
}

/// Returns the version of a schema. Changes nothing.
///
/// # Errors
/// [`DatabaseError`] if the schema cannot be read.
pub async fn schema_version(database: &Database, schema: &str) -> Result<SchemaVersion, DatabaseError> {
    let mut client = database.client().await?;
    let transaction = client.transaction().await?;
    version_in(&transaction, schema).await
}

fn checked(schema: &str, found: SchemaVersion, known: i32) -> Result<Applied, MigrateError> {
    if found.fit(known) == Fit::Newer {
        return Err(MigrateError::Newer { schema: schema.to_owned(), found: found.version, known });
    }
    Ok(Applied { from: found.version, to: found.version })
}

async fn version_in(transaction: &Transaction<'_>, schema: &str) -> Result<SchemaVersion, DatabaseError> {
    // Not `to_regclass`, whose cache may not know yet what others committed during this transaction.
    let sql = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'migration'";
    if transaction.query(sql, &[(&schema, Type::TEXT)]).await?.is_empty() {
        return Ok(SchemaVersion { version: 0, compatible_from: 0 });
    }
    let sql = format!("SELECT coalesce(max(version), 0), coalesce(max(compatible_from), 0) FROM {schema}.migration");
    let rows = transaction.query(&sql, &[]).await?;
    let (version, compatible_from) = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
    Ok(SchemaVersion { version, compatible_from })
}

async fn apply(transaction: &Transaction<'_>, schema: &str, step: &Migration) -> Result<(), DatabaseError> {
    transaction.batch(step.sql).await?;
    let sql = format!("INSERT INTO {schema}.migration (version, name, compatible_from) VALUES ($1, $2, $3)");
    let params =
        [(&step.version as _, Type::INT4), (&step.name as _, Type::TEXT), (&step.compatible_from as _, Type::INT4)];
    transaction.execute(&sql, &params).await.map(drop)
}

/// Returns the statements that make the schema, unless an operator has done so, and the table of versions.
fn setup(schema: &str) -> String {
    format!(
        "DO $$ BEGIN
             IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{schema}') THEN CREATE SCHEMA {schema}; END IF;
         END $$;
         CREATE TABLE IF NOT EXISTS {schema}.migration (
             version int PRIMARY KEY, name text NOT NULL, compatible_from int NOT NULL,
             at timestamptz NOT NULL DEFAULT now());"
    )
}

/// Returns the number of the lock for a schema (FNV-1a).
fn lock_of(schema: &str) -> i64 {
    let hash = schema
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_schema_is_usable_as_far_back_as_it_says() {
        let fit = |version, compatible_from| SchemaVersion { version, compatible_from }.fit(5);
        assert_eq!(fit(0, 0), Fit::Missing);
        assert_eq!(fit(4, 4), Fit::Older);
        assert_eq!([fit(5, 5), fit(6, 5), fit(9, 1)], [Fit::Usable; 3]);
        assert_eq!([fit(6, 6), fit(9, 6)], [Fit::Newer; 2]);
    }
}
