//! Driver of NATS.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::QueueDriver;
use hostler_config::{Config, NatsUrl, Provision};
use hostler_queue::{Disposal, Provisioner, QueueError};
use hostler_queue_nats::{Known, NatsBroker, Options, SYSTEM};

pub(super) struct Nats;

#[async_trait]
impl QueueDriver for Nats {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(NatsBroker::connect(options(config)?).await?))
    }

    async fn disposal(&self, _: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Err(QueueError::Refused(
            "`hostler clean` needs queue.driver = \"sqs\": NATS keeps no record of when a queue was last used".into(),
        ))
    }

    fn system(&self) -> &'static str {
        SYSTEM
    }

    fn title(&self) -> &'static str {
        "NATS"
    }

    fn trusted_files<'a>(&self, config: &'a Config) -> Vec<(&'static str, &'a Path)> {
        let nats = &config.queue.nats;
        // With `url`, the file of the address is not read.
        let url_file = nats.url_file.as_deref().filter(|_| nats.url.is_none());
        let files = [
            ("queue.nats.url_file", url_file),
            ("queue.nats.credentials", nats.credentials.as_deref()),
            ("queue.nats.nkey", nats.nkey.as_deref()),
            ("queue.nats.ca", nats.ca.as_deref()),
            ("queue.nats.client_cert", nats.client_cert.as_deref()),
        ];
        files.into_iter().filter_map(|(key, file)| Some((key, file?))).collect()
    }

    fn makes_what_is_missing(&self, config: &Config) -> bool {
        config.queue.nats.provision == Provision::Auto
    }

    fn cure_of_a_refusal(&self) -> &'static str {
        "; `hostler check` says what is missing"
    }
}

/// Returns the options for NATS from the config. Reads the files that the config names.
fn options(config: &Config) -> Result<Options, QueueError> {
    let nats = &config.queue.nats;
    let url = match (&nats.url, &nats.url_file) {
        (Some(url), _) => url.expose().to_owned(),
        (None, Some(file)) => url_in(file)?,
        (None, None) => return Err(QueueError::Refused("queue.nats.url is not set".into())),
    };
    let text = |key: &str, file: Option<&Path>| file.map(|file| read(key, file)).transpose();
    // The client library reads these files itself. Its error would not name the key.
    text("ca", nats.ca.as_deref())?;
    text("client_cert", nats.client_cert.as_deref())?;
    let known = config.with_channels().map(|consumer| Known {
        channel: consumer.channel.clone(),
        ordered: consumer.ordered,
        filter: consumer.filter.clone(),
        dead_letters: consumer.dead_letter,
        lease: consumer.lease,
    });
    Ok(Options {
        url,
        credentials: text("credentials", nats.credentials.as_deref())?,
        nkey: text("nkey", nats.nkey.as_deref())?.map(|seed| seed.trim().to_owned()),
        ca: nats.ca.clone(),
        client_cert: nats.client_cert.clone(),
        prefix: nats.prefix.clone(),
        create_missing: nats.provision == Provision::Auto,
        replicas: nats.replicas,
        consumers: known.collect(),
        ..Options::default()
    })
}

/// Reads the address from a file. The error does not contain it.
fn url_in(file: &Path) -> Result<String, QueueError> {
    let text = read("url_file", file)?;
    let url = text.trim();
    if NatsUrl::is_one(url) {
        return Ok(url.to_owned());
    }
    let file = file.display();
    Err(QueueError::Refused(format!(
        "queue.nats.url_file: {file} does not contain an address such as nats://user:password@host:4222"
    )))
}

fn read(key: &str, file: &Path) -> Result<String, QueueError> {
    let refused = |error| QueueError::Refused(format!("queue.nats.{key}: cannot read {}: {error}", file.display()));
    std::fs::read_to_string(file).map_err(refused)
}
