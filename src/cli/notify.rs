//! Notifications that `alarms` and `clean` send to a webhook or an SNS topic, or print to the terminal.

use async_trait::async_trait;

use super::print;
use crate::exit::{Exit, Failure};
use hostler_config::Config;
use hostler_ops::delivery::{Notifier, Undelivered};
use hostler_ops::notice::{Format, Notice};
use hostler_ops::webhook::Webhook;
use hostler_types::printable::in_json;

/// The options for notifications.
#[derive(Debug, clap::Args)]
pub(super) struct NotifyArgs {
    /// Also send to alarms.webhook (HOSTLER_ALARMS__WEBHOOK)
    #[arg(long, conflicts_with = "sns")]
    webhook: bool,
    /// Also publish to this SNS topic
    #[arg(long, value_name = "TOPIC-ARN")]
    sns: Option<String>,
    /// The format to send [default: slack; plain text for a topic]
    #[arg(long, value_name = "FORMAT", value_parser = ["slack", "json"])]
    format: Option<String>,
}

impl NotifyArgs {
    /// Returns true if the options name a recipient.
    pub(super) fn is_set(&self) -> bool {
        self.webhook || self.sns.is_some()
    }

    fn format(&self) -> Format {
        match self.format.as_deref() {
            Some("json") => Format::Json,
            _ => Format::Slack,
        }
    }

    /// Creates the notifier for the recipient that the options name. `None`: the options name no recipient.
    pub(super) async fn notifier(&self, config: &Config) -> std::result::Result<Option<Box<dyn Notifier>>, Failure> {
        if self.webhook {
            let text = "--webhook needs alarms.webhook, which is not set: set HOSTLER_ALARMS__WEBHOOK to the address";
            let url = config.alarms.webhook.clone().ok_or_else(|| Failure::new(Exit::BadConfig, text))?;
            let webhook = Webhook::new(url, self.format()).map_err(|error| Failure::new(Exit::Internal, error))?;
            return Ok(Some(Box::new(webhook)));
        }
        match &self.sns {
            Some(topic) => self.topic(config, topic).await.map(Some),
            None => Ok(None),
        }
    }

    /// Creates a notifier that prints notices instead of sending them.
    pub(super) fn dry_run(&self) -> DryRun {
        let plain = self.sns.is_some() && self.format.is_none();
        DryRun((!plain).then(|| self.format()))
    }

    #[cfg(feature = "sqs")]
    async fn topic(&self, config: &Config, topic: &str) -> std::result::Result<Box<dyn Notifier>, Failure> {
        let announcer = hostler_queue_sqs::Announcer::new(&crate::host::sqs_options(config), topic).await;
        let announcer = announcer.map_err(|error| Failure::new(Exit::Usage, format!("--sns: {error}")))?;
        Ok(Box::new(Topic { announcer, json: self.format.as_deref() == Some("json") }))
    }

    #[cfg(not(feature = "sqs"))]
    async fn topic(&self, _: &Config, _: &str) -> std::result::Result<Box<dyn Notifier>, Failure> {
        Err(Failure::new(Exit::Usage, "--sns: this build of hostler has no AWS support"))
    }
}

/// Notifier that publishes to an SNS topic.
#[cfg(feature = "sqs")]
struct Topic {
    announcer: hostler_queue_sqs::Announcer,
    /// Set if the recipient is a program. In that case, the notifier sends notices as JSON.
    json: bool,
}

#[cfg(feature = "sqs")]
#[async_trait]
impl Notifier for Topic {
    async fn carry(&self, notice: &Notice) -> std::result::Result<(), Undelivered> {
        let text = if self.json { notice.document.to_string() } else { notice.text() };
        self.announcer.publish(&notice.summary, &text).await.map_err(|error| match error {
            hostler_queue::QueueError::Unavailable(text) => Undelivered::Passing(text, None),
            hostler_queue::QueueError::Refused(text) => Undelivered::Lasting(text),
        })
    }
}

/// Notifier that prints each notice instead of sending it. If a format is set, prints the payload that would be sent in
/// this format. If the format is `None`, prints the notice as plain text.
pub(super) struct DryRun(Option<Format>);

#[async_trait]
impl Notifier for DryRun {
    async fn carry(&self, notice: &Notice) -> std::result::Result<(), Undelivered> {
        print(match self.0 {
            Some(format) => in_json(&notice.payload(format).to_string()).into_owned(),
            None => notice.text(),
        });
        Ok(())
    }
}
