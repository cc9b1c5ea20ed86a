//! The databases of the job service: opens them out of the config, and migrates their schemas.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, JobService, postgres_fault};
use hostler_jobs::shards::Shards;
use hostler_jobs::store::{Store, StoreError, StoreSettings};
use hostler_postgres::{Database, DatabaseError, MigrateError, Options};

/// Most connections of one process to a database. A transaction takes a millisecond or two, so few connections serve many workers.
const CONNECTIONS: usize = 16;

/// Longest wait for an answer of the database.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the databases of the config. Connects to nothing yet. Reads the file of the addresses, if the config names one.
///
/// # Errors
/// Exit code 64: there is no address, its file cannot be read, or an address is faulty or there twice.
pub fn open(config: &Config) -> Result<Shards> {
    let jobs = &config.jobs;
    let (key, urls) = addresses(jobs)?;
    let refused = |error: &dyn Display| Failure::new(Exit::BadConfig, format!("{key}: {error}"));
    let settings = StoreSettings { heartbeat: jobs.heartbeat, retention: jobs.retention, ..StoreSettings::default() };
    let mut stores = Vec::with_capacity(urls.len());
    for url in urls {
        let options = Options { application: "hostler-jobs", connections: CONNECTIONS, deadline: DEADLINE };
        let database = Database::new(&url, options).map_err(|error| refused(&error))?;
        stores.push(Store::new(database, settings.clone()));
    }
    Shards::new(stores).map_err(|error| refused(&error))
}

/// Returns the key that has the addresses of the databases, and the addresses, one at least.
fn addresses(jobs: &JobService) -> Result<(&'static str, Vec<String>)> {
    match (&jobs.database, &jobs.database_file) {
        (Some(url), _) => Ok(("jobs.database", vec![url.expose().to_owned()])),
        (None, Some(file)) => Ok(("jobs.database_file", urls_in(file)?)),
        (None, None) => {
            let text = "the config has no database for jobs: set `jobs.database` to the address of a PostgreSQL database, for \
                        example by HOSTLER_JOBS__DATABASE, or `jobs.database_file` to a file with it";
            Err(Failure::new(Exit::BadConfig, text))
        }
    }
}

/// Reads the addresses from a file, one a line. The error does not contain them.
fn urls_in(file: &Path) -> Result<Vec<String>> {
    let failure = |text: String| Failure::new(Exit::BadConfig, format!("jobs.database_file: {text}"));
    let text =
        std::fs::read_to_string(file).map_err(|error| failure(format!("cannot read {}: {error}", file.display())))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let mut urls = Vec::new();
    for (number, url) in lines {
        if let Some(fault) = postgres_fault(url) {
            return Err(failure(format!(
                "line {} of {} is no URL such as postgres://user:password@host:5432/database: its text {fault}",
                number + 1,
                file.display()
            )));
        }
        urls.push(url.to_owned());
    }
    if urls.is_empty() {
        return Err(failure(format!("{} has no address of a database", file.display())));
    }
    Ok(urls)
}

/// Brings the schema up to date. Several processes may do so at the same time.
///
/// # Errors
/// Exit code 64: a newer hostler has migrated the schema, or the databases are not listed as they were before. Exit code 69: a
/// database cannot be reached, or denies access.
pub async fn migrate(databases: &Shards) -> Result<()> {
    databases.migrate().await.map_err(unmigrated)
}

/// Checks that all databases answer, and are listed as they were before.
///
/// # Errors
/// Exit code 64: they are not. Exit code 69: a database cannot be reached, or denies access.
pub(super) async fn ping(databases: &Shards) -> Result<()> {
    databases.ping().await.map_err(unmigrated)?;
    databases.check_list().await.map(drop).map_err(unmigrated)
}

fn unmigrated(error: StoreError) -> Failure {
    match error {
        StoreError::Migrate(MigrateError::Newer { .. }) => {
            Failure::new(Exit::BadConfig, format!("jobs.database: {error}"))
        }
        StoreError::Invalid { detail, .. } => {
            Failure::new(Exit::BadConfig, format!("jobs.database_file: the list of databases {detail}"))
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
            addresses(&loaded.config.jobs)
        };
        assert!(read("").unwrap_err().message.contains("jobs.database_file: cannot read"));
        let url = "postgres://me:hunter2@db/jobs";
        std::fs::write(&file, format!("{url}\n")).unwrap();
        assert_eq!(read("").unwrap(), ("jobs.database_file", vec![url.to_owned()]));
        let other = "postgres://other/jobs";
        assert_eq!(read(&format!("database = '{other}'")).unwrap(), ("jobs.database", vec![other.to_owned()]));
        std::fs::write(&file, "mysql://me:hunter2@db/jobs").unwrap();
        let refused = read("").unwrap_err();
        assert_eq!(refused.exit, Exit::BadConfig);
        assert!(refused.message.contains("line 1 of") && !refused.message.contains("hunter2"));
        std::fs::write(&file, "\n").unwrap();
        assert!(read("").unwrap_err().message.contains("has no address"));
    }

    #[test]
    fn a_file_may_have_the_addresses_of_several_databases() {
        let folder = tempfile::tempdir().unwrap();
        let (file, config) = (folder.path().join("urls"), folder.path().join("hostler.toml"));
        std::fs::write(&config, format!("[jobs]\ndatabase_file = '{}'", file.display())).unwrap();
        let opened = |lines: &str| {
            std::fs::write(&file, lines).unwrap();
            let loaded = hostler_config::load(Some(&config), std::iter::empty::<(String, String)>()).unwrap();
            open(&loaded.config)
        };
        let two = opened("postgres://me@one/jobs\n\npostgres://me@two/jobs\n").unwrap();
        let places: Vec<&str> = two.stores().iter().map(Store::place).collect();
        assert_eq!(places, ["one:5432/jobs", "two:5432/jobs"]);
        assert_eq!(opened("postgres://me@one/jobs").unwrap().stores().len(), 1);
        let twice = opened("postgres://me@one/jobs\npostgres://you@one/jobs").unwrap_err();
        assert!(
            twice.exit == Exit::BadConfig && twice.message.contains("has one:5432/jobs twice"),
            "{}",
            twice.message
        );
        let third = opened("postgres://me@one/jobs\npostgres://me@two/jobs\nlocalhost").unwrap_err();
        assert!(third.message.contains("line 3 of"), "{}", third.message);
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
