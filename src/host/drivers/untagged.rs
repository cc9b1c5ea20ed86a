//! Inventory of a service without tags.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::driver;
use crate::host::channel_spec;
use hostler_config::Config;
use hostler_queue::{ChannelSpec, Inventory, Listing, ManagedQueue, QueueError, tag};
use hostler_types::channel::Channel;

/// Inventory of a service without tags. Every queue counts as managed by hostler. The tags of a queue are computed from its
/// consumer in the config.
pub(super) struct Untagged {
    config: Config,
    specs: Vec<ChannelSpec>,
}

impl Untagged {
    pub(super) fn new(config: &Config) -> Self {
        Self { config: config.clone(), specs: config.with_channels().map(channel_spec).collect() }
    }
}

#[async_trait]
impl Inventory for Untagged {
    async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError> {
        // Connects for each listing. The file of the queue may have been created since the last listing.
        let broker = driver(&self.config).connect_to_look(&self.config).await?;
        let existing = broker.channels().await?;
        let named = existing.iter().chain(self.specs.iter().map(|spec| &spec.channel));
        // Lists each queue once, even if its name occurs both with and without an exchange.
        let channels: Vec<_> = named.map(Channel::alone).collect::<BTreeSet<_>>().into_iter().collect();
        let depths = broker.depths(&channels).await?;
        let held = channels.iter().zip(depths).map(|(channel, depth)| {
            let queue = channel.queue();
            let ours = |spec: &&ChannelSpec| spec.channel.queue() == queue || spec.channel.dead_letter_queue() == queue;
            let mut tags = self.specs.iter().find(ours).map(|spec| spec.tags.clone()).unwrap_or_default();
            tags.insert(tag::MANAGED.to_owned(), "true".to_owned());
            ManagedQueue {
                name: queue.to_owned(),
                queue: queue.to_owned(),
                tags,
                visible: depth.visible,
                delayed: depth.delayed,
                in_flight: depth.in_flight,
                created: None,
            }
        });
        Ok(Listing { found: held.collect(), unread: Vec::new() })
    }
}
