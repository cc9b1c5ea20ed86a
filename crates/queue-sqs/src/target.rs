//! Determines the target of a channel's messages. Creates or refuses a missing target.

use super::place::Target;
use super::{Service, provision};
use hostler_queue::QueueError;
use hostler_types::channel::Channel;

impl Service {
    /// Returns the target of a channel's messages. If the target is missing, creates it or returns an error, depending
    /// on the options. `grouped`: set if the messages have groups. If so, a new target is FIFO.
    pub(super) async fn target(&self, channel: &Channel, grouped: bool) -> Result<Target, QueueError> {
        if let Some(target) = self.resolver.target(channel) {
            return Ok(target);
        }
        let target = match self.find_target(channel).await? {
            Some(target) => target,
            None if !self.options.create_missing => return Err(self.no_target(channel)),
            None => match channel.exchange() {
                Some(exchange) => Target::Topic(provision::create_topic(self, exchange, grouped).await?),
                None => Target::Queue(provision::create_queue(self, channel.queue(), grouped).await?),
            },
        };
        self.resolver.remember_target(channel, &target);
        Ok(target)
    }

    fn no_target(&self, channel: &Channel) -> QueueError {
        match channel.exchange() {
            None => self.no_queue(channel.queue(), false),
            Some(exchange) => {
                let (name, region) = (self.names.on_aws(exchange, false), &self.clients.region);
                QueueError::Refused(format!(
                    "there is no SNS topic `{name}` in {region}: run `hostler provision`, or set queue.sqs.provision = \"auto\""
                ))
            }
        }
    }
}
