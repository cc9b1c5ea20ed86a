//! The databases of the job service: opens them out of the config, and migrates their schemas.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, JobService, postgres_fault};
use hostler_jobs::shards::{PlacedError, Shards};
use hostler_jobs::store::{Store, StoreError, StoreSettings};
use hostler_postgres::{Database, DatabaseError, MigrateError, Options};

/// Most connections of one process to a database. A transaction takes a millisecond or two, so few connections serve many workers.
const CONNECTIONS: usize = 16;

/// Longest wait for an answer of the database.
const DEADLINE: Duration = Duration::from_secs(10);

/// The databases of the service, and the keys and lines of the config that have their addresses.
#[derive(Debug)]
pub struct Databases {
    pub(super) shards: Shards,
    /// Place of each address, in the order of the databases.
    sources: Vec<Source>,
}

/// Place of an address in the config.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// `jobs.database`.
    Key,
    /// A line, counted from 1, of the file that `jobs.database_file` names.
    Line(usize, PathBuf),
}

impl Source {
    /// Returns the key, with the line if there is one.
    fn text(&self) -> String {
        match self {
            Self::Key => "jobs.database".to_owned(),
            Self::Line(..) => format!("jobs.database_file: {}", self.cure()),
        }
    }

    /// Returns the place that the user is to correct.
    fn cure(&self) -> String {
        match self {
            Self::Key => "HOSTLER_JOBS__DATABASE".to_owned(),
            Self::Line(line, file) => format!("line {line} of {}", file.display()),
        }
    }
}

/// Returns the databases of the config. Connects to nothing yet. Reads the file of the addresses, if the config names one.
///
/// # Errors
/// Exit code 64: there is no address, its file cannot be read, or an address is faulty or there twice.
pub fn open(config: &Config) -> Result<Databases> {
    let jobs = &config.jobs;
    let settings = StoreSettings { heartbeat: jobs.heartbeat, retention: jobs.retention, ..StoreSettings::default() };
    let (mut stores, mut sources): (Vec<Store>, Vec<Source>) = (Vec::new(), Vec::new());
    for (source, url) in addresses(jobs)? {
        let refused = |error: &dyn Display| Failure::new(Exit::BadConfig, format!("{}: {error}", source.text()));
        let options = Options { application: "hostler-jobs", connections: CONNECTIONS, deadline: DEADLINE };
        let database = Database::new(&url, options).map_err(|error| refused(&error))?;
        let twin = stores.iter().zip(&sources).find(|(store, _)| store.place() == database.place());
        if let Some((_, twin)) = twin {
            return Err(refused(&format!("has {} twice: see also {}", database.place(), twin.cure())));
        }
        stores.push(Store::new(database, settings.clone()));
        sources.push(source);
    }
    let refused = |error: StoreError| Failure::new(Exit::BadConfig, format!("jobs.database_file: {error}"));
    Ok(Databases { shards: Shards::new(stores).map_err(refused)?, sources })
}

/// Returns the addresses of the databases, one at least, and where each is.
fn addresses(jobs: &JobService) -> Result<Vec<(Source, String)>> {
    match (&jobs.database, &jobs.database_file) {
        (Some(url), _) => Ok(vec![(Source::Key, url.expose().to_owned())]),
        (None, Some(file)) => urls_in(file),
        (None, None) => {
            let text = "the config has no database for jobs: set `jobs.database` to the address of a PostgreSQL database, for \
                        example by HOSTLER_JOBS__DATABASE, or `jobs.database_file` to a file with it";
            Err(Failure::new(Exit::BadConfig, text))
        }
    }
}

/// Reads the addresses from a file, one a line. The error does not contain them.
fn urls_in(file: &Path) -> Result<Vec<(Source, String)>> {
    let failure = |text: String| Failure::new(Exit::BadConfig, format!("jobs.database_file: {text}"));
    let text =
        std::fs::read_to_string(file).map_err(|error| failure(format!("cannot read {}: {error}", file.display())))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let mut urls = Vec::new();
    for (number, url) in lines {
        let source = Source::Line(number + 1, file.to_owned());
        if let Some(fault) = postgres_fault(url) {
            return Err(failure(format!(
                "{} is no URL such as postgres://user:password@host:5432/database: its text {fault}",
                source.cure()
            )));
        }
        urls.push((source, url.to_owned()));
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
pub async fn migrate(databases: &Databases) -> Result<()> {
    databases.shards.migrate().await.map_err(|error| unmigrated(error, &databases.sources))
}

/// Brings the schema up to date, as [`migrate`]. Databases that do not answer are taken up as they come, if another one answers.
///
/// # Errors
/// As [`migrate`]. A database that cannot be reached is an error if none of them can.
pub(super) async fn start(databases: &Databases) -> Result<()> {
    databases.shards.start().await.map_err(|error| unmigrated(error, &databases.sources))
}

/// Checks that all databases answer, and are listed as they were before.
///
/// # Errors
/// Exit code 64: they are not. Exit code 69: a database cannot be reached, or denies access.
pub(super) async fn ping(databases: &Databases) -> Result<()> {
    databases.shards.check_list().await.map_err(|error| unmigrated(error, &databases.sources))
}

/// Words an error of a database with the place of its address. The address itself, with the password, is left out.
fn unmigrated(error: PlacedError, sources: &[Source]) -> Failure {
    let source = sources.get(error.number).unwrap_or(&Source::Key);
    let place = source.text();
    match &error.error {
        StoreError::Migrate(MigrateError::Newer { .. }) => Failure::new(Exit::BadConfig, format!("{place}: {error}")),
        StoreError::Invalid { detail, .. } => {
            let text = format!("{place}: {}: the list of databases {detail}", error.place);
            Failure::new(Exit::BadConfig, text)
        }
        StoreError::Migrate(MigrateError::Failed { error: cause, .. } | MigrateError::Database(cause))
        | StoreError::Database(cause) => {
            let cure = cure(cause, &source.cure());
            Failure::new(Exit::QueueUnreachable, format!("{place}: {error}\n  cure: {cure}"))
        }
        _ => Failure::new(Exit::Internal, format!("{place}: {error}")),
    }
}

/// Returns advice for a user whose database cannot be used. `source`: the place of its address.
fn cure(error: &DatabaseError, source: &str) -> String {
    match error {
        DatabaseError::Unreachable { .. } | DatabaseError::Deadline => {
            format!("start PostgreSQL, or correct the host and the port in {source}")
        }
        DatabaseError::Denied { code, .. } if code == "42501" => {
            "let the user create a schema: GRANT CREATE ON DATABASE … TO …, or run `hostler jobs migrate` once as a user who may"
                .to_owned()
        }
        DatabaseError::Denied { .. } => format!("correct the user and the password in {source}"),
        // invalid_catalog_name
        DatabaseError::Refused { code, .. } if code == "3D000" => {
            format!("create the database with `createdb`, or correct its name in {source}")
        }
        DatabaseError::Busy { .. } | DatabaseError::Refused { .. } | DatabaseError::UnknownFate => {
            "try again; if it fails again, the log of PostgreSQL says more".to_owned()
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
        assert_eq!(read("").unwrap(), [(Source::Line(1, file.clone()), url.to_owned())]);
        let other = "postgres://other/jobs";
        assert_eq!(read(&format!("database = '{other}'")).unwrap(), [(Source::Key, other.to_owned())]);
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
        let places: Vec<&str> = two.shards.stores().iter().map(Store::place).collect();
        assert_eq!(places, ["one:5432/jobs", "two:5432/jobs"]);
        assert_eq!(opened("postgres://me@one/jobs").unwrap().shards.stores().len(), 1);
        let twice = opened("postgres://me@one/jobs\npostgres://you@one/jobs").unwrap_err();
        assert!(
            twice.exit == Exit::BadConfig
                && twice.message.contains("line 2 of")
                && twice.message.contains("has one:5432/jobs twice: see also line 1 of"),
            "{}",
            twice.message
        );
        let third = opened("postgres://me@one/jobs\npostgres://me@two/jobs\nlocalhost").unwrap_err();
        assert!(third.message.contains("line 3 of"), "{}", third.message);
    }

    fn failure(error: StoreError, source: Source) -> Failure {
        unmigrated(PlacedError { number: 0, place: "db:5432/jobs".to_owned(), error }, &[source])
    }

    fn of(error: DatabaseError) -> Failure {
        failure(StoreError::Migrate(MigrateError::Database(error)), Source::Key)
    }

    #[test]
    fn a_fault_names_the_key_the_line_and_the_host() {
        let text = |source| failure(StoreError::Database(DatabaseError::Deadline), source).message;
        let key = text(Source::Key);
        assert!(key.starts_with("jobs.database: db:5432/jobs: ") && key.contains("HOSTLER_JOBS__DATABASE"), "{key}");
        let line = text(Source::Line(3, "/run/urls".into()));
        assert!(line.starts_with("jobs.database_file: line 3 of /run/urls: db:5432/jobs: "), "{line}");
        assert!(line.ends_with("correct the host and the port in line 3 of /run/urls"), "{line}");
    }

    #[test]
    fn each_fault_of_the_database_has_its_exit_code_and_cure() {
        let schema = "hostler_jobs".to_owned();
        let newer = failure(StoreError::Migrate(MigrateError::Newer { schema, found: 9, known: 1 }), Source::Key);
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
