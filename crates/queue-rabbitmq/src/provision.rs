//! Sets up a server according to the config, and finds what differs.

use async_trait::async_trait;
use hostler_queue::{Change, ChannelSpec, Finding, Provisioner, QueueError};
use hostler_types::channel::Channel;

use super::bindings;
use super::management::Bound;
use super::send::cure_of_missing;
use super::topology::{self, Binding, QueueSpec};
use super::{RabbitBroker, Service};

impl Service {
    /// Returns the way out if something is missing.
    fn cure(&self) -> String {
        cure_of_missing(self.options.create_missing).to_owned()
    }

    async fn is_there(&self, queue: &QueueSpec) -> Result<bool, QueueError> {
        Ok(self.declarer.ready(&queue.name).await?.is_some())
    }

    /// Returns the bindings of a channel's queue as far as the management API tells. `wanted`: those of the channel.
    async fn listed(&self, spec: &ChannelSpec, wanted: &[Binding]) -> Listed {
        let Some(management) = &self.management else { return Listed::default() };
        let bound = match management.bindings_of(&self.names.full(spec.channel.queue())).await {
            Ok(bound) => bound,
            Err(fault) => return Listed { fault: Some(fault), ..Listed::default() },
        };
        let (left, mut fault) = (bindings::left_over(wanted, &spec.filter, &bound), None);
        // On another exchange, a pattern may mean something else.
        let is_topic = match left.first() {
            Some(first) => management.is_topic(&first.exchange).await.unwrap_or_else(|error| {
                fault = Some(error);
                false
            }),
            None => false,
        };
        Listed { bound: Some(bound), left: if is_topic { left } else { Vec::new() }, fault }
    }

    /// Returns what is wrong with the exchange of a channel, and with the bindings of its queue, which exists. Also returns the
    /// bindings.
    pub(super) async fn inspect_bindings(&self, spec: &ChannelSpec) -> Result<(Vec<Finding>, Listed), QueueError> {
        let fatal = !self.options.create_missing;
        if let Some(exchange) = spec.channel.exchange().map(|exchange| self.names.full(exchange))
            && !self.declarer.has_exchange(&exchange).await?
        {
            let fault = format!("there is no exchange `{exchange}` on RabbitMQ");
            return Ok((vec![Finding { fault, cure: self.cure(), fatal }], Listed::default()));
        }
        let wanted = topology::bindings(&self.names, spec)?;
        let listed = self.listed(spec, &wanted).await;
        let queue = self.names.full(spec.channel.queue());
        let mut findings: Vec<_> = listed.unknown(&queue, &wanted).into_iter().collect();
        let bound = listed.bound.as_deref().unwrap_or_default();
        let missing = listed.bound.as_ref().map(|bound| bindings::uncovered(wanted, bound, &listed.left));
        for Binding { exchange, queue, pattern } in missing.into_iter().flatten() {
            let is_deaf = !bound.iter().any(|bound| bound.exchange == exchange);
            let fault =
                format!("the queue `{queue}` is not bound to the exchange `{exchange}` by the pattern `{pattern}`");
            findings.push(Finding { fault, cure: self.cure(), fatal: fatal && is_deaf });
        }
        findings.extend(listed.left.iter().map(superfluous));
        Ok((findings, listed))
    }

    /// Returns the finding if the delay ladder does not deliver to a channel's queue.
    fn inspect_landing(&self, spec: &ChannelSpec, listed: &Listed) -> Option<Finding> {
        let bound = listed.bound.as_ref().filter(|_| needs_ladder(spec))?;
        let landing = topology::landing(&self.names, &self.names.full(spec.channel.queue()));
        bindings::uncovered(vec![landing], bound, &[]).pop()?;
        let (queue, lost) = (spec.channel.queue(), self.names.lost());
        let fault =
            format!("the queue `{queue}` is not bound to the {DELAYS}, so delayed messages for it go to `{lost}`");
        Some(Finding { fault, cure: self.cure(), fatal: false })
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
                cure: self.cure(),
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

/// Returns `true` if the channel's consumer sends messages down the delay ladder. An ordered queue keeps its messages at their
/// places.
pub(super) fn needs_ladder(spec: &ChannelSpec) -> bool {
    !spec.ordered
}

/// The bindings of a channel's queue, as the management API lists them.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// All bindings. `None`: they are not known.
    bound: Option<Vec<Bound>>,
    /// Those that bring messages that the filter refuses.
    left: Vec<Binding>,
    /// Reason why something is not known, although there is a `management_url`.
    fault: Option<QueueError>,
}

impl Listed {
    /// Returns the finding if nobody can tell which messages the bindings bring. `wanted`: those of the channel. If they let
    /// everything pass, no other binding brings more, and only a refusal is one: it lasts.
    fn unknown(&self, queue: &str, wanted: &[Binding]) -> Option<Finding> {
        let fault = self.fault.as_ref()?;
        if !bindings::are_selective(wanted) {
            tracing::debug!(queue, error = %fault, "bindings are not compared");
            let is_refused = matches!(fault, QueueError::Refused(_));
            return is_refused.then(|| Finding {
                fault: format!("it is not known whether the bindings of the queue `{queue}` exist: {fault}"),
                cure: "until it is, `rabbitmqctl list_bindings` lists them".to_owned(),
                fatal: false,
            });
        }
        Some(Finding {
            fault: format!("the bindings of the queue `{queue}` cannot be compared with the filter: {fault}"),
            cure: "until they can, `rabbitmqctl list_bindings` lists them".to_owned(),
            fatal: false,
        })
    }
}

/// Returns the finding on a binding that brings messages that the filter refuses. hostler does not remove it: it may be someone
/// else's, or that of hosts with a wider filter that still run.
fn superfluous(Binding { exchange, queue, pattern }: &Binding) -> Finding {
    Finding {
        fault: format!(
            "the queue `{queue}` is bound to the exchange `{exchange}` by the pattern `{pattern}`, which brings messages that the \
             filter refuses; hostler removes these from the queue"
        ),
        cure: "first bind the filter's own keys (`hostler provision`); after the last host of the wider filter has stopped, \
               remove the binding by hand, on the queue's page of the management interface or by `queue.unbind` of an AMQP client"
            .to_owned(),
        fatal: false,
    }
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
            let wanted = topology::bindings(&service.names, spec)?;
            let listed = service.listed(spec, &wanted).await;
            let queue = service.names.full(spec.channel.queue());
            if let Some(error) = &listed.fault {
                tracing::warn!(queue, %error, "the plan leaves out bindings, as they cannot be compared");
            }
            let Some(bound) = &listed.bound else { continue };
            let wanted = wanted.into_iter().chain([topology::landing(&service.names, &queue)]).collect();
            let name = |Binding { exchange, queue, pattern }: &Binding| {
                format!("binding of {queue} to {exchange} by {pattern}")
            };
            changes.extend(bindings::missing(wanted, bound).iter().map(name).map(Change::create));
            let leave = |left: &Binding| Change::leave(name(left), superfluous(left).to_string());
            changes.extend(listed.left.iter().map(leave));
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
        let mut is_complete = true;
        for queue in topology::queues(&service.names, spec) {
            if service.is_there(&queue).await? {
                findings.extend(service.inspect_queue(&queue).await?);
            } else {
                let fault = format!("there is no queue `{}` on RabbitMQ", queue.name);
                findings.push(Finding { fault, cure: service.cure(), fatal: !service.options.create_missing });
                is_complete = false;
            }
        }
        if is_complete {
            let (found, listed) = service.inspect_bindings(spec).await?;
            findings.extend(found.into_iter().chain(service.inspect_landing(spec, &listed)));
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
