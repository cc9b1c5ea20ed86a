//! Driver of PostgreSQL.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::QueueDriver;
use hostler_config::{Config, Provision, postgres_fault};
use hostler_queue::{Disposal, Provisioner, QueueError};
use hostler_queue_postgres::{Options, PostgresBroker, SYSTEM};

pub(super) struct Postgres;

#[async_trait]
impl QueueDriver for Postgres {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(PostgresBroker::connect(options(config)?).await?))
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

    fn cure_of_a_denial(&self) -> &'static str {
        "grant hostler's user the rights that the page about PostgreSQL of hostler's book lists"
    }

    fn cure_of_a_refusal(&self) -> &'static str {
        "; `hostler check` says what is missing"
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
