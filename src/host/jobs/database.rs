//! The database of the job service: opens it out of the config, and migrates its schema.

use std::path::Path;
use std::time::Duration;

use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, JobService, postgres_fault};
use hostler_jobs::store::{Store, StoreError, StoreSettings};
use hostler_postgres::{Database, DatabaseError, MigrateError, Options};

/// Most connections of one process. A transaction takes a millisecond or two, so few connections serve many workers.
const CONNECTIONS: usize = 16;

/// Longest wait for an answer of the database.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the store of the config. Connects to nothing yet. Reads the file of the address, if the config names one.
///
/// # Errors
/// Exit code 64: there is no address, its file cannot be read, or it is faulty.
pub fn open(config: &Config) -> Result<Store> {
    let jobs = &config.jobs;
    let (key, url) = address(jobs)?;
    let options = Options { application: "hostler-jobs", connections: CONNECTIONS, deadline: DEADLINE };
    let database =
        Database::new(&url, options).map_err(|error| Failure::new(Exit::BadConfig, format!("{key}: {error}")))?;
    let settings = StoreSettings { heartbeat: jobs.heartbeat, retention: jobs.retention, ..StoreSettings::default() };
    Ok(Store::new(database, settings))
}

/// Returns the key that has the address of the database, and the address.
fn address(jobs: &JobService) -> Result<(&'static str, String)> {
    match (&jobs.database, &jobs.database_file) {
        (Some(url), _) => Ok(("jobs.database", url.expose().to_owned())),
        (None, Some(file)) => Ok(("jobs.database_file", url_in(file)?)),
        (None, None) => {
            let text = "the config has no database for jobs: set `jobs.database` to the address of a PostgreSQL database, for \
                        example by HOSTLER_JOBS__DATABASE, or `jobs.database_file` to a file with it";
            Err(Failure::new(Exit::BadConfig, text))
        }
    }
}

/// Reads the address from a file. The error does not contain it.
fn url_in(file: &Path) -> Result<String> {
    let failure = |text: String| Failure::new(Exit::BadConfig, format!("jobs.database_file: {text}"));
    let text =
        std::fs::read_to_string(file).map_err(|error| failure(format!("cannot read {}: {error}", file.display())))?;
    let url = text.trim();
    match postgres_fault(url) {
        None => Ok(url.to_owned()),
        Some(fault) => Err(failure(format!(
            "{} does not contain a URL such as postgres://user:password@host:5432/database: its text {fault}",
            file.display()
        ))),
    }
}

/// Brings the schema up to date. Several processes may do so at the same time.
///
/// # Errors
/// Exit code 64: a newer hostler has migrated the schema. Exit code 69: the database cannot be reached, or denies access.
pub async fn migrate(store: &Store) -> Result<()> {
    store.migrate().await.map_err(unmigrated)
}

/// Checks that the database answers.
///
/// # Errors
/// Exit code 69: the database cannot be reached, or denies access.
pub(super) async fn ping(store: &Store) -> Result<()> {
    store.ping().await.map_err(unmigrated)
}

fn unmigrated(error: StoreError) -> Failure {
    match error {
        StoreError::Migrate(MigrateError::Newer { .. }) => {
            Failure::new(Exit::BadConfig, format!("jobs.database: {error}"))
        }
        StoreError::Migrate(MigrateError::Failed { error: ref cause, .. } | MigrateError::Database(ref cause))
        | StoreError::Database(ref cause) => {
            let cure = cure(cause);
            Failure::new(Exit::QueueUnreachable, format!("jobs.database: {error}\n  cure: {cure}"))
        }
        error => Failure::new(Exit::Internal, format!("jobs.database: {error}")),
    }
}

/// Returns advice for a user whose database cannot be used.
fn cure(error: &DatabaseError) -> &'static str {
    match error {
        DatabaseError::Unreachable { .. } | DatabaseError::Deadline => {
            "start PostgreSQL, or correct the host and the port in HOSTLER_JOBS__DATABASE"
        }
        DatabaseError::Denied { code, .. } if code == "42501" => {
            "let the user create a schema: GRANT CREATE ON DATABASE … TO …, or run `hostler jobs migrate` once as a user who may"
        }
        DatabaseError::Denied { .. } => "correct the user and the password in HOSTLER_JOBS__DATABASE",
        // invalid_catalog_name
        DatabaseError::Refused { code, .. } if code == "3D000" => {
            "create the database with `createdb`, or correct its name in HOSTLER_JOBS__DATABASE"
        }
        DatabaseError::Busy { .. } | DatabaseError::Refused { .. } | DatabaseError::UnknownFate => {
            "try again; if it fails again, the log of PostgreSQL says more"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (file, config) = (folder.path().join("url"), folder.path().join("hostler.toml"));
        let read = |keys: &str| {
            std::fs::write(&config, format!("[jobs]\ndatabase_file = '{}'\n{keys}", file.display())).unwrap();
            let loaded = hostler_config::load(Some(&config), std::iter::empty::<(String, String)>()).unwrap();
            address(&loaded.config.jobs)
        };
        assert!(read("").unwrap_err().message.contains("jobs.database_file: cannot read"));
        let url = "postgres://me:hunter2@db/jobs";
        std::fs::write(&file, format!("{url}\n")).unwrap();
        assert_eq!(read("").unwrap(), ("jobs.database_file", url.to_owned()));
        let other = "postgres://other/jobs";
        assert_eq!(read(&format!("database = '{other}'")).unwrap(), ("jobs.database", other.to_owned()));
        std::fs::write(&file, "mysql://me:hunter2@db/jobs").unwrap();
        let refused = read("").unwrap_err();
        assert_eq!(refused.exit, Exit::BadConfig);
        assert!(refused.message.contains("does not contain a URL") && !refused.message.contains("hunter2"));
    }

    fn of(error: DatabaseError) -> Failure {
        unmigrated(StoreError::Migrate(MigrateError::Database(error)))
    }

    #[test]
    fn each_fault_of_the_database_has_its_exit_code_and_cure() {
        let schema = "hostler_jobs".to_owned();
        let newer = unmigrated(StoreError::Migrate(MigrateError::Newer { schema, found: 9, known: 1 }));
        assert_eq!(newer.exit, Exit::BadConfig);
        let sqlstate = |code: &str| (code.to_owned(), "no".to_owned());
        let denied = |code| {
            let (code, message) = sqlstate(code);
            of(DatabaseError::Denied { code, message }).message
        };
        assert!(denied("28P01").contains("the password") && denied("42501").contains("GRANT CREATE"));
        let (code, message) = sqlstate("3D000");
        let missing = of(DatabaseError::Refused { code, message });
        assert!(missing.exit == Exit::QueueUnreachable && missing.message.contains("createdb"), "{}", missing.message);
    }
}
