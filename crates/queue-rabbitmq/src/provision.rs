//! Sets up a server according to the config, and finds what differs.

use async_trait::async_trait;
use hostler_queue::{Change, ChannelSpec, Finding, Provisioner, QueueError};
use hostler_types::channel::Channel;

use super::bindings::{self, Bound};
use super::topology::{self, Binding, QueueSpec};
use super::{RabbitBroker, Service};

impl Service {
    async fn is_there(&self, queue: &QueueSpec) -> Result<bool, QueueError> {
        Ok(self.declarer.ready(&queue.name).await?.is_some())
    }

    /// Returns the bindings of a channel's queue. `None`: the management API does not tell.
    async fn bound(&self, spec: &ChannelSpec) -> Result<Option<Vec<Bound>>, QueueError> {
        let Some(management) = &self.management else { return Ok(None) };
        match management.bindings_of(&self.names.full(spec.channel.queue())).await {
            Ok(bound) => Ok(Some(bound)),
            Err(QueueError::Refused(error)) => {
                tracing::debug!(error, "bindings are not compared");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the bindings of a channel's queue that an earlier filter has left. Empty if the management API does not tell. `bound`:
    /// the bindings of the queue.
    async fn left_over(&self, spec: &ChannelSpec, bound: &[Bound]) -> Result<Vec<Binding>, QueueError> {
        let left = bindings::left_over(&topology::bindings(&self.names, spec)?, &spec.filter, bound);
        let (Some(management), Some(first)) = (&self.management, left.first()) else { return Ok(Vec::new()) };
        // To another exchange, a pattern may mean something else. Such an exchange was made, and bound, by someone else.
        Ok(if management.is_topic(&first.exchange).await? { left } else { Vec::new() })
    }

    /// Removes the bindings that an earlier filter has left, as far as the management API tells.
    async fn unbind_left_over(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        if !bindings::are_selective(&topology::bindings(&self.names, spec)?) {
            return Ok(());
        }
        let Some(bound) = self.bound(spec).await? else { return Ok(()) };
        self.declarer.unbind_all(&self.left_over(spec, &bound).await?).await
    }

    /// Removes the bindings that an earlier filter has left, for a consumer that starts. It works with them, too, so a failure is logged.
    pub(super) async fn tidy_bindings(&self, spec: &ChannelSpec) {
        if let Err(error) = self.unbind_left_over(spec).await {
            let queue = self.names.full(spec.channel.queue());
            tracing::warn!(
                queue,
                %error,
                "cannot look for bindings of an earlier filter; hostler removes the messages that they bring"
            );
        }
    }

    /// Returns what is wrong with the exchange of a channel, and with the bindings of its queue, which exists.
    pub(super) async fn inspect_bindings(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let fatal = !self.options.create_missing;
        if let Some(exchange) = spec.channel.exchange().map(|exchange| self.names.full(exchange))
            && !self.declarer.has_exchange(&exchange).await?
        {
            let fault = format!("there is no exchange `{exchange}` on RabbitMQ");
            return Ok(vec![Finding { fault, cure: PROVISION.to_owned(), fatal }]);
        }
        let Some(bound) = self.bound(spec).await? else { return Ok(Vec::new()) };
        let (cure, mut findings) = (|| PROVISION.to_owned(), Vec::new());
        for Binding { exchange, queue, pattern } in bindings::uncovered(topology::bindings(&self.names, spec)?, &bound)
        {
            let is_deaf = !bound.iter().any(|bound| bound.exchange == exchange);
            let fault =
                format!("the queue `{queue}` is not bound to the exchange `{exchange}` by the pattern `{pattern}`");
            findings.push(Finding { fault, cure: cure(), fatal: fatal && is_deaf });
        }
        let landing = topology::landing(&self.names, &self.names.full(spec.channel.queue()));
        if needs_ladder(spec) && !bindings::uncovered(vec![landing], &bound).is_empty() {
            let (queue, lost) = (spec.channel.queue(), self.names.lost());
            let fault =
                format!("the queue `{queue}` is not bound to the {DELAYS}, so delayed messages for it go to `{lost}`");
            findings.push(Finding { fault, cure: cure(), fatal: false });
        }
        for Binding { exchange, queue, pattern } in self.left_over(spec, &bound).await? {
            let fault = format!(
                "the queue `{queue}` is bound to the exchange `{exchange}` by the pattern `{pattern}`, which the filter does not \
                 have; hostler removes the messages that it brings"
            );
            findings.push(Finding { fault, cure: "`hostler provision` unbinds it".to_owned(), fatal: false });
        }
        Ok(findings)
    }

    /// Returns the difference between a queue that exists and the queue as hostler declares it.
    async fn inspect_queue(&self, queue: &QueueSpec) -> Result<Option<Finding>, QueueError> {
        match self.declarer.compare(queue).await {
            Ok(drift) => Ok(drift.map(|drift| drift.finding())),
            // A consumer's user need not have the right to declare.
            Err(QueueError::Refused(_)) => Ok(Some(Finding {
                fault: format!("whether the queue `{}` is as hostler declares it is not known", queue.name),
                cure: "run `hostler check` as a user who may declare queues, such as the one of `hostler provision`"
                    .to_owned(),
                fatal: false,
            })),
            Err(error) => Err(error),
        }
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
            let Some(bound) = service.bound(spec).await? else { continue };
            let landing = topology::landing(&service.names, &service.names.full(spec.channel.queue()));
            let wanted = topology::bindings(&service.names, spec)?.into_iter().chain([landing]).collect();
            let name = |Binding { exchange, queue, pattern }| format!("binding of {queue} to {exchange} by {pattern}");
            changes.extend(bindings::missing(wanted, &bound).into_iter().map(name).map(Change::create));
            for left in service.left_over(spec, &bound).await? {
                changes.push(Change::update(name(left), "removed: the filter does not have it".to_owned()));
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
            self.0.unbind_left_over(spec).await?;
        }
        changes.iter().for_each(done);
        Ok(())
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let service = &self.0;
        let mut findings = service.inspect_ladder(spec).await?;
        let mut is_complete = true;
        for queue in topology::queues(&service.names, spec) {
            if service.is_there(&queue).await? {
                findings.extend(service.inspect_queue(&queue).await?);
            } else {
                let fault = format!("there is no queue `{}` on RabbitMQ", queue.name);
                findings.push(Finding { fault, cure: PROVISION.to_owned(), fatal: !service.options.create_missing });
                is_complete = false;
            }
        }
        if is_complete {
            findings.extend(service.inspect_bindings(spec).await?);
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
