//! From the config to what upkeep looks at and removes.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::{channel_spec, connect_to_look};
use hostler_config::{Config, Driver};
use hostler_queue::{ChannelSpec, Disposal, HeldQueue, Inventory, Listing, QueueError, tag};
use hostler_types::channel::Channel;

/// What there is on the service that the config names.
///
/// # Errors
/// [`QueueError`] when it cannot be reached, or when this build has no driver for it.
pub async fn inventory(config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
    #[cfg(feature = "sqs")]
    if config.queue.driver == Driver::Sqs {
        return Ok(Arc::new(hostler_queue_sqs::SqsBroker::connect(super::sqs_options(config)).await?));
    }
    // That it cannot be reached is known at once.
    connect_to_look(config).await?;
    let specs = config.consumers.iter().map(channel_spec).collect();
    Ok(Arc::new(Untagged { config: config.clone(), specs }))
}

/// What there is, with its use and its removal.
///
/// # Errors
/// [`QueueError::Refused`] when the service keeps no record of use, or when this build has no driver for it.
pub async fn disposal(config: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
    match config.queue.driver {
        #[cfg(feature = "sqs")]
        Driver::Sqs => Ok(Arc::new(hostler_queue_sqs::SqsBroker::connect(super::sqs_options(config)).await?)),
        #[cfg(not(feature = "sqs"))]
        Driver::Sqs => connect_to_look(config).await.and_then(|_| Err(no_record())),
        Driver::Embedded => Err(no_record()),
    }
}

fn no_record() -> QueueError {
    QueueError::Refused(
        "queue.driver: only SQS has a record of use to clean by; the embedded queue is one file, of one deployment"
            .into(),
    )
}

/// Queues of a service without tags: all of them are ours, and their consumers' tags stand in the config.
struct Untagged {
    config: Config,
    specs: Vec<ChannelSpec>,
}

#[async_trait]
impl Inventory for Untagged {
    async fn queues(&self) -> Result<Listing<HeldQueue>, QueueError> {
        // Anew for each look: a queue that was not there yet may be by now.
        let broker = connect_to_look(&self.config).await?;
        let existing = broker.channels().await?;
        let named = existing.iter().chain(self.specs.iter().map(|spec| &spec.channel));
        // Each queue once, whether or not it is named with its exchange.
        let channels: Vec<_> = named.map(Channel::alone).collect::<BTreeSet<_>>().into_iter().collect();
        let depths = broker.depths(&channels).await?;
        let held = channels.iter().zip(depths).map(|(channel, depth)| {
            let queue = channel.queue();
            let ours = |spec: &&ChannelSpec| spec.channel.queue() == queue || spec.channel.dead_letter_queue() == queue;
            let mut tags = self.specs.iter().find(ours).map(|spec| spec.tags.clone()).unwrap_or_default();
            tags.insert(tag::MANAGED.to_owned(), "true".to_owned());
            HeldQueue {
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
