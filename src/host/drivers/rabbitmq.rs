//! Driver of RabbitMQ.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::QueueDriver;
use crate::host::{channel_spec, destinations};
use hostler_config::{Config, Consumer, Provision, Retry, amqp_fault};
use hostler_queue::{Disposal, Provisioner, QueueError};
use hostler_queue_rabbitmq::permissions::{Needs, Permissions};
use hostler_queue_rabbitmq::{Options, RabbitBroker, SYSTEM};

pub(super) struct RabbitMq;

/// Default of the server's `consumer_timeout`: the time after which it closes the channel of a consumer that has not settled a
/// message.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

#[async_trait]
impl QueueDriver for RabbitMq {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(RabbitBroker::connect(options(config)?).await?))
    }

    async fn disposal(&self, _: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Err(QueueError::Refused(
            "`hostler clean` needs queue.driver = \"sqs\": RabbitMQ keeps no record of when a queue was last used"
                .into(),
        ))
    }

    fn system(&self) -> &'static str {
        SYSTEM
    }

    fn title(&self) -> &'static str {
        "RabbitMQ"
    }

    fn trusted_files<'a>(&self, config: &'a Config) -> Vec<(&'static str, &'a Path)> {
        let rabbitmq = &config.queue.rabbitmq;
        // With `url`, the file of the address is not read.
        let url_file = rabbitmq.url_file.as_deref().filter(|_| rabbitmq.url.is_none());
        let files = [
            ("queue.rabbitmq.url_file", url_file),
            ("queue.rabbitmq.ca", rabbitmq.ca.as_deref()),
            ("queue.rabbitmq.client_cert", rabbitmq.client_cert.as_deref()),
        ];
        files.into_iter().filter_map(|(key, file)| Some((key, file?))).collect()
    }

    fn makes_what_is_missing(&self, config: &Config) -> bool {
        config.queue.rabbitmq.provision == Provision::Auto
    }

    fn takes_back_early(&self, consumer: &Consumer) -> Option<String> {
        // Only messages of an ordered channel wait in the host for their next attempt.
        let wait = if consumer.ordered { longest_wait(&consumer.retry) } else { Duration::ZERO };
        let held = consumer.processing_timeout.max(wait);
        (held >= CONSUMER_TIMEOUT).then(|| {
            format!(
                "a message may be held for {}, but RabbitMQ takes it back after 30m by default: raise `consumer_timeout` in \
                 rabbitmq.conf above that",
                humantime::format_duration(held)
            )
        })
    }

    fn threads(&self) -> usize {
        // The client library has a thread for each connection: one receives, and one publishes.
        2
    }

    fn cost_of_a_look(&self) -> Option<&'static str> {
        Some("RabbitMQ before 4.3 counts a delivery of each, and from the fourth on each delivery is an attempt")
    }

    fn permissions(&self, config: &Config) -> Option<String> {
        let consumed: Vec<_> = config.consumers.iter().map(channel_spec).collect();
        let sent_to = config.consumers.iter();
        let sent_to = sent_to.flat_map(|consumer| consumer.reply_channel.iter().chain(&consumer.allow.send)).cloned();
        let needs = Needs::new(&config.queue.rabbitmq.prefix, &consumed, &sent_to.collect::<Vec<_>>());
        let shown = |users: &str, permissions: Permissions| {
            let Permissions { configure, write, read } = permissions;
            format!("{users}:\n  configure  {configure}\n  write      {write}\n  read       {read}")
        };
        Some(format!(
            "{}\n{}",
            shown("hostler run, peek, receive, dlq and requeue, with provision = \"check\"", needs.to_run()),
            shown("hostler provision, and hostler run with provision = \"auto\"", needs.to_provision())
        ))
    }

    fn unlisted(&self, config: &Config) -> Option<&'static str> {
        let is_blind = config.queue.rabbitmq.management_url.is_none();
        is_blind
            .then_some("missing bindings are made, and not counted, as only a queue.rabbitmq.management_url lists them")
    }

    fn cure_of_a_denial(&self) -> &'static str {
        "`hostler provision --permissions` prints the permissions that this config needs"
    }

    fn cure_of_a_refusal(&self) -> &'static str {
        "; `hostler check` says what is missing"
    }
}

/// Returns the longest delay between two attempts of a message.
fn longest_wait(retry: &Retry) -> Duration {
    let last = 2_u32.saturating_pow(retry.delays.saturating_sub(1));
    let increasing =
        if retry.delays == 0 { Duration::ZERO } else { retry.delay.saturating_mul(last).min(retry.max_delay) };
    let fixed = if retry.requeues == 0 { Duration::ZERO } else { retry.requeue_delay };
    fixed.max(increasing)
}

/// Returns the options for RabbitMQ from the config. Reads the files that the config names.
fn options(config: &Config) -> Result<Options, QueueError> {
    let rabbitmq = &config.queue.rabbitmq;
    let url = match (&rabbitmq.url, &rabbitmq.url_file) {
        (Some(url), _) => url.expose().to_owned(),
        (None, Some(file)) => url_in(file)?,
        (None, None) => return Err(QueueError::Refused("queue.rabbitmq.url is not set".into())),
    };
    let ca = rabbitmq.ca.as_deref().map(|file| read("ca", file)).transpose()?;
    let pem = rabbitmq.client_cert.as_deref().map(|file| read("client_cert", file)).transpose()?;
    let consumed = config.consumers.iter().map(|consumer| consumer.channel.clone());
    let ordered = config.consumers.iter().filter(|consumer| consumer.ordered);
    let ordered = ordered.map(|consumer| consumer.channel.clone()).collect();
    let sent_to = config.consumers.iter().flat_map(|consumer| destinations(config, consumer));
    Ok(Options {
        url,
        ca,
        client_identity: pem.map(|pem| (pem.clone().into_bytes(), pem.into_bytes())),
        prefix: rabbitmq.prefix.clone(),
        ladder_prefix: None,
        create_missing: rabbitmq.provision == Provision::Auto,
        heartbeat: rabbitmq.heartbeat,
        channels: consumed.chain(sent_to).collect(),
        ordered,
        management_url: rabbitmq.management_url.clone(),
    })
}

/// Reads the URL from a file. The error does not contain it.
fn url_in(file: &Path) -> Result<String, QueueError> {
    let text = read("url_file", file)?;
    let url = text.trim();
    let Some(fault) = amqp_fault(url) else { return Ok(url.to_owned()) };
    let file = file.display();
    Err(QueueError::Refused(format!(
        "queue.rabbitmq.url_file: {file} does not contain a URL such as amqp://user:password@host/vhost: its text {fault}"
    )))
}

fn read(key: &str, file: &Path) -> Result<String, QueueError> {
    let refused = |error| QueueError::Refused(format!("queue.rabbitmq.{key}: cannot read {}: {error}", file.display()));
    std::fs::read_to_string(file).map_err(refused)
}
