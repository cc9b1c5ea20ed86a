//! Driver of PostgreSQL.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::QueueDriver;
use hostler_config::{Config, Provision, postgres_fault};
use hostler_queue::{Disposal, Inventory, Provisioner, QueueError};
use hostler_queue_postgres::{Options, PostgresBroker, SYSTEM};

pub(super) struct Postgres;

/// Rights of users, as SQL. They are the same for every config, as queues are rows.
const RIGHTS: &str = "\
hostler run, and commands other than provision, with provision = \"check\", once `hostler provision` has run:
  GRANT USAGE ON SCHEMA hostler_queue TO worker;
  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hostler_queue TO worker;
  GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA hostler_queue TO worker;
hostler provision, and hostler run with provision = \"auto\", on the database of the address:
  GRANT CREATE ON DATABASE name TO owner;";

#[async_trait]
impl QueueDriver for Postgres {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(connect(config, options(config)?).await?))
    }

    async fn connect_to_look(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(connect_to_look(config).await?))
    }

    async fn inventory(&self, config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
        Ok(Arc::new(connect_to_look(config).await?))
    }

    async fn disposal(&self, _: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Err(QueueError::Refused(
            "`hostler clean` needs queue.driver = \"sqs\": the tables do not record when a queue was last used".into(),
        ))
    }

    fn system(&self) -> &'static str {
        SYSTEM
    }

    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn trusted_files<'a>(&self, config: &'a Config) -> Vec<(&'static str, &'a Path)> {
        let postgres = &config.queue.postgres;
        // With `url`, the file of the address is not read.
        let url_file = postgres.url_file.as_deref().filter(|_| postgres.url.is_none());
        let files =
            [("queue.postgres.url_file", url_file), ("queue.postgres.url", postgres.root_certificate.as_deref())];
        files.into_iter().filter_map(|(key, file)| Some((key, file?))).collect()
    }

    fn makes_what_is_missing(&self, config: &Config) -> bool {
        config.queue.postgres.provision == Provision::Auto
    }

    fn permissions(&self, _: &Config) -> Option<String> {
        Some(RIGHTS.to_owned())
    }

    fn cure_of_a_denial(&self) -> &'static str {
        "`hostler provision --permissions` prints the rights that hostler's user needs"
    }

    fn cure_of_a_refusal(&self) -> &'static str {
        "; `hostler check` says what is missing"
    }
}

/// Connects, and creates nothing.
async fn connect_to_look(config: &Config) -> Result<PostgresBroker, QueueError> {
    connect(config, Options { create_missing: false, ..options(config)? }).await
}

/// Connects. An error names the key of the address, the database, and the cure.
async fn connect(config: &Config, options: Options) -> Result<PostgresBroker, QueueError> {
    let key = if config.queue.postgres.url.is_some() { "queue.postgres.url" } else { "queue.postgres.url_file" };
    let place = place_of(&options.url).to_owned();
    let told = |text: String| {
        let cure = cure_of(&text).map(|cure| format!("\n  cure: {cure}")).unwrap_or_default();
        format!("{key}: cannot use the database at {place}: {text}{cure}")
    };
    PostgresBroker::connect(options).await.map_err(|error| match error {
        QueueError::Unavailable(text) => QueueError::Unavailable(told(text)),
        QueueError::Refused(text) => QueueError::Refused(told(text)),
    })
}

/// Returns the hosts and the database of a URL, without user, password and parameters.
fn place_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    rest.rsplit_once('@').map_or(rest, |(_, place)| place)
}

/// Returns the cure for an error of a connection, by the words of the server and of the client library. `None`: the error names
/// its cure.
fn cure_of(error: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if has(&["password", "pg_hba.conf"]) {
        Some("check the user and the password of the address, and that pg_hba.conf of the server lets this user in")
    } else if has(&["`hostler provision", "the newer hostler"]) {
        None
    } else if has(&["does not exist"]) {
        Some("check the names in the address, or create what is missing as the server's administrator")
    } else if has(&["TLS", "SSL", "certificate", "sslrootcert"]) {
        Some("check sslmode and sslrootcert in the address, and that the server has TLS")
    } else {
        Some("check that the server runs, and that the host and the port of the address are its own")
    }
}

/// Returns the options for PostgreSQL from the config. Reads the file that the config names.
fn options(config: &Config) -> Result<Options, QueueError> {
    let postgres = &config.queue.postgres;
    let url = match (&postgres.url, &postgres.url_file) {
        (Some(url), _) => url.expose().to_owned(),
        (None, Some(file)) => url_in(file)?,
        (None, None) => return Err(QueueError::Refused("queue.postgres.url is not set".into())),
    };
    Ok(Options {
        url,
        prefix: postgres.prefix.clone(),
        create_missing: postgres.provision == Provision::Auto,
        connections: postgres.connections,
        ..Options::default()
    })
}

/// Reads the URL from a file. The error does not contain it.
fn url_in(file: &Path) -> Result<String, QueueError> {
    let refused =
        |error| QueueError::Refused(format!("queue.postgres.url_file: cannot read {}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(refused)?;
    let url = text.trim();
    let Some(fault) = postgres_fault(url) else { return Ok(url.to_owned()) };
    let file = file.display();
    Err(QueueError::Refused(format!(
        "queue.postgres.url_file: {file} does not contain a URL such as postgres://user:password@host:5432/database: its text \
         {fault}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_shows_no_user_no_password_and_no_parameter() {
        for (url, place) in [
            ("postgres://me:s3cret@db:5432/work?sslmode=require", "db:5432/work"),
            ("postgres://me:a@b@one,two:2/work", "one,two:2/work"),
            ("postgresql://db/work?password=s3cret@x", "db/work"),
            ("postgres:///work?host=/run/postgresql", "/work"),
        ] {
            assert_eq!(place_of(url), place, "{url}");
        }
    }

    #[test]
    fn each_error_has_a_cure() {
        for (error, part) in [
            ("password authentication failed for user \"me\"", Some("the password")),
            ("database \"work\" does not exist", Some("create what is missing")),
            ("error performing TLS handshake: server does not support TLS", Some("sslmode")),
            ("permission denied; grant the rights that `hostler provision --permissions` prints", None),
            ("error connecting to server: Connection refused (os error 111)", Some("the server runs")),
            ("grant CREATE, or let its owner run `hostler provision`", None),
            ("the schema has version 9: run the newer hostler that migrated it", None),
        ] {
            let cure = cure_of(error);
            assert_eq!(cure.is_some(), part.is_some(), "{error}");
            assert!(cure.is_none_or(|cure| part.is_some_and(|part| cure.contains(part))), "{error}: {cure:?}");
        }
    }
}
