//! Sets up a server according to the config, and finds what differs.

use async_trait::async_trait;
use hostler_queue::{Change, ChannelSpec, Finding, Provisioner, QueueError};
use hostler_types::channel::Channel;

use super::topology::{self, QueueSpec};
use super::{RabbitBroker, Service};

impl Service {
    async fn is_there(&self, queue: &QueueSpec) -> Result<bool, QueueError> {
        Ok(self.declarer.ready(&queue.name).await?.is_some())
    }

    /// Returns what is wrong with the queues for delays.
    async fn inspect_ladder(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let mut findings = Vec::new();
        if !self.declarer.has_ladder().await? {
            findings.push(Finding {
                fault: format!("there are no {DELAYS} on RabbitMQ (`{}`…)", self.names.level(0)),
                cure: PROVISION.to_owned(),
                fatal: !self.options.create_missing && needs_ladder(spec),
            });
        }
        let lost = self.names.lost();
        if let Some(count) = self.declarer.ready(&lost).await?.filter(|count| *count > 0) {
            findings.push(Finding {
                fault: format!("{count} delayed messages found no queue, and are in the queue `{lost}`"),
                cure: "their routing keys end in the names of their queues; create the queues by `hostler provision`, and move \
                       the messages by a shovel"
                    .to_owned(),
                fatal: false,
            });
        }
        Ok(findings)
    }
}

/// The delay ladder in messages.
pub(super) const DELAYS: &str = "queues for delays";

/// Way out if something is missing.
const PROVISION: &str = "run `hostler provision`, or set queue.rabbitmq.provision = \"auto\"";

/// Returns `true` if the channel's consumer sends messages down the delay ladder. An ordered queue keeps its messages at their
/// places.
pub(super) fn needs_ladder(spec: &ChannelSpec) -> bool {
    !spec.ordered
}

#[async_trait]
impl Provisioner for RabbitBroker {
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let service = &self.0;
        let [.., queue] = &topology::queues(&service.names, spec)[..] else { return Ok(()) };
        if service.is_there(queue).await? {
            // Its bindings to exchanges stay as they are. A missing dead-letter queue is created.
            service.declarer.ladder().await?;
            service.declarer.land(&queue.name).await?;
            for queue in topology::queues(&service.names, spec) {
                if !service.is_there(&queue).await? {
                    service.declarer.queue(&queue).await?;
                }
            }
            return Ok(());
        }
        service.declarer.establish(spec).await.map(drop)
    }

    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let service = &self.0;
        let mut changes = Vec::new();
        if !wanted.is_empty() && !service.declarer.has_ladder().await? {
            changes.push(Change::create(format!("{DELAYS} {}…", service.names.level(0))));
        }
        for spec in wanted {
            for queue in topology::queues(&service.names, spec) {
                let resource = format!("queue {}", queue.name);
                if !service.is_there(&queue).await? {
                    changes.push(Change::create(resource));
                } else if let Some(drift) = service.declarer.compare(&queue).await? {
                    changes.push(Change::leave(resource, drift.finding().to_string()));
                }
            }
            if let Some(exchange) = spec.channel.exchange().map(|exchange| service.names.full(exchange))
                && !service.declarer.has_exchange(&exchange).await?
            {
                changes.push(Change::create(format!("exchange {exchange}")));
            }
        }
        changes.dedup();
        Ok(changes)
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let changes = self.plan(wanted).await?;
        for spec in wanted {
            self.0.declarer.establish(spec).await?;
        }
        changes.iter().for_each(done);
        Ok(())
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let service = &self.0;
        let mut findings = service.inspect_ladder(spec).await?;
        for queue in topology::queues(&service.names, spec) {
            if !service.is_there(&queue).await? {
                let fault = format!("there is no queue `{}` on RabbitMQ", queue.name);
                findings.push(Finding { fault, cure: PROVISION.to_owned(), fatal: !service.options.create_missing });
            } else {
                match service.declarer.compare(&queue).await {
                    Ok(drift) => findings.extend(drift.map(|drift| drift.finding())),
                    // A consumer's user need not have the right to declare.
                    Err(QueueError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(findings)
    }

    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let service = &self.0;
        let mut missing = Vec::new();
        for channel in channels {
            let name = service.names.full(channel.exchange().unwrap_or(channel.queue()));
            let is_queue = channel.exchange().is_none();
            let is_there = is_queue && service.declarer.ready(&name).await?.is_some()
                || service.declarer.has_exchange(&name).await?;
            if !is_there {
                let kind = if is_queue { "queue" } else { "exchange" };
                missing.push((channel.clone(), Change::create(format!("{kind} {name}"))));
            }
        }
        Ok(missing)
    }

    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let service = &self.0;
        match channel.exchange() {
            Some(exchange) => service.declarer.exchange(&service.names.full(exchange)).await,
            None => service
                .declarer
                .queue(&topology::queue(&service.names, channel, service.is_ordered(channel)))
                .await
                .map(drop),
        }
    }
}
