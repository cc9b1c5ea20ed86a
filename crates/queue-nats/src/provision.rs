//! Sets up a server according to the config, and finds what differs.

use async_trait::async_trait;
use hostler_queue::{Change, ChannelSpec, Finding, Provisioner, QueueError};
use hostler_types::channel::Channel;
use serde_json::Value;

use super::api;
use super::declare::{Resource, Timers};
use super::names::CONSUMER;
use super::rights;
use super::topology::{self, Drift};
use super::{NatsBroker, Service};

/// Way out if something is missing.
const PROVISION: &str = "run `hostler provision`, or set queue.nats.provision = \"auto\"";

/// Limits by which a stream with the policy `old` drops messages.
const LIMITS: [&str; 2] = ["max_msgs", "max_bytes"];

impl NatsBroker {
    /// Returns what is wrong with a resource.
    async fn inspect_resource(&self, resource: &Resource) -> Result<Vec<Finding>, QueueError> {
        let service = &self.0;
        let Some(found) = service.declarer.found(resource).await? else {
            let fault = format!("there is no {} on NATS", resource.title);
            return Ok(vec![Finding { fault, cure: PROVISION.to_owned(), fatal: !service.options.create_missing }]);
        };
        let mut findings = topology::findings(&resource.title, &resource.drift(&found));
        if resource.consumer.is_none() && resource.stream != service.names.notes() {
            findings.extend(losses(&resource.title, &found));
        }
        Ok(findings)
    }

    /// Returns the permissions that the user lacks to receive from a channel.
    async fn inspect_rights(&self, channel: &Channel) -> Result<Vec<Finding>, QueueError> {
        let Service { line, names, .. } = &*self.0;
        let queue = channel.queue();
        let mut findings = rights::of_consumer(line, &names.queue(queue), CONSUMER).await?;
        if let Some(exchange) = channel.exchange() {
            findings.extend(rights::of_consumer(line, &names.exchange(exchange), queue).await?);
        }
        Ok(findings)
    }

    /// Returns what an operator should know of the server.
    async fn inspect_server(&self) -> Result<Vec<Finding>, QueueError> {
        let service = &self.0;
        let mut findings = Vec::new();
        let info = service.line.client.server_info();
        let account = api::existing(api::call(&service.line, "INFO", &Value::Null).await)?.unwrap_or_default();
        if info.cluster.is_some() && service.options.replicas < 3 {
            findings.push(Finding {
                fault: format!(
                    "the server is one of a cluster, and new streams have {} copies",
                    service.options.replicas
                ),
                cure: "set queue.nats.replicas = 3, so that messages survive the loss of a server".to_owned(),
                fatal: false,
            });
        }
        let limit = |name: &str| account["limits"][name].as_i64().filter(|limit| *limit > 0);
        if let (Some(limit), Some(used)) = (limit("max_storage"), account["storage"].as_i64())
            && used.saturating_mul(10) > limit.saturating_mul(9)
        {
            findings.push(Finding {
                fault: format!("the account uses {used} of {limit} bytes of JetStream's storage"),
                cure: "raise the limit, or remove messages: NATS refuses further ones when it is full".to_owned(),
                fatal: false,
            });
        }
        Ok(findings)
    }
}

/// Returns a planned change as it was made. `left`: what still differs.
pub(crate) fn made(planned: Change, left: &[(Resource, Drift)]) -> Change {
    let differs =
        left.iter().any(|(resource, drift)| resource.title == planned.resource && drift.text == planned.detail);
    if !differs {
        return planned;
    }
    let reason = format!("{}: the server does not change this", planned.detail);
    Change::leave(planned.resource, reason)
}

/// Returns the ways in which a stream loses messages.
fn losses(title: &str, found: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut warn = |fault: String, cure: &str| findings.push(Finding { fault, cure: cure.to_owned(), fatal: false });
    if found["storage"] == "memory" {
        warn(
            format!("the {title} is in memory, so a restart of the server loses its messages"),
            "create it anew with file storage",
        );
    }
    for name in LIMITS {
        if found["discard"] == "old" && found[name].as_i64().is_some_and(|limit| limit > 0) {
            let fault = format!("the {title} drops its oldest messages when it reaches {name} = {}", found[name]);
            warn(fault, "set its discard policy to `new`, so that NATS refuses further messages instead");
        }
    }
    if found["no_ack"] == true {
        warn(
            format!("the {title} does not confirm messages (no_ack), so every send fails after a while"),
            "set no_ack = false",
        );
    }
    for (name, loss) in [
        ("allow_rollup_hdrs", "a sender may replace all messages before its own"),
        ("allow_msg_ttl", "a sender may set a time after which its message is dropped"),
    ] {
        if found[name] == true {
            warn(format!("{loss} in the {title} ({name})"), "set it to false, unless the senders are to do so");
        }
    }
    if found["max_age"].as_i64().is_some_and(|age| age > 0) {
        warn(format!("the {title} drops messages by their age (max_age)"), "set max_age = 0");
    }
    findings
}

#[async_trait]
impl Provisioner for NatsBroker {
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let declarer = &self.0.declarer;
        declarer.create_missing(declarer.resources(spec)).await
    }

    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let declarer = &self.0.declarer;
        let mut changes = Vec::<Change>::new();
        for spec in wanted {
            for resource in declarer.resources(spec) {
                changes.extend(declarer.changes(&resource).await?);
            }
        }
        let mut seen = Vec::new();
        changes.retain(|change| {
            let is_new = !seen.contains(change);
            seen.push(change.clone());
            is_new
        });
        Ok(changes)
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let changes = self.plan(wanted).await?;
        let mut left = Vec::new();
        for spec in wanted {
            left.extend(self.0.declarer.establish(spec, Timers::Set).await?);
        }
        for change in changes {
            done(&made(change, &left));
        }
        Ok(())
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        if let Some(subject) = &spec.subject {
            // The server keeps nothing of it, so it needs no JetStream.
            return Ok(rights::of_subject(&self.0.line, subject).await?.into_iter().collect());
        }
        let mut findings = self.inspect_server().await?;
        for resource in self.0.declarer.resources(spec) {
            findings.extend(self.inspect_resource(&resource).await?);
        }
        findings.extend(self.inspect_rights(&spec.channel).await?);
        Ok(findings)
    }

    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let (declarer, names) = (&self.0.declarer, &self.0.names);
        let mut missing = Vec::new();
        for channel in channels {
            let queue = names.queue(channel.queue());
            let (kind, name) = match channel.exchange() {
                Some(exchange) => ("exchange", names.queue(exchange)),
                None => ("queue", queue.clone()),
            };
            let exchange = names.exchange(channel.exchange().unwrap_or(channel.queue()));
            let is_there = channel.exchange().is_none() && declarer.has_stream(&queue).await?
                || declarer.has_stream(&exchange).await?;
            if !is_there {
                missing.push((channel.clone(), Change::create(format!("{kind} {name}"))));
            }
        }
        Ok(missing)
    }

    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let declarer = &self.0.declarer;
        match channel.exchange() {
            Some(exchange) => declarer.create_missing([declarer.exchange(exchange)]).await,
            None => declarer.create_queue(&self.0.spec_of(channel)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ways_to_lose_messages_are_told() {
        let faults =
            |found: Value| losses("queue jobs", &found).into_iter().map(|finding| finding.fault).collect::<Vec<_>>();
        assert!(faults(json!({ "storage": "file", "discard": "new", "max_msgs": 10, "max_age": 0 })).is_empty());
        let told =
            faults(json!({ "storage": "memory", "discard": "old", "max_msgs": 10, "max_bytes": -1, "max_age": 1 }))
                .join("\n");
        assert!(["in memory", "max_msgs = 10", "max_age"].iter().all(|word| told.contains(word)), "{told}");
        let told = faults(json!({ "no_ack": true, "allow_rollup_hdrs": true, "allow_msg_ttl": true })).join("\n");
        assert!(
            ["(no_ack)", "(allow_rollup_hdrs)", "(allow_msg_ttl)"].iter().all(|word| told.contains(word)),
            "{told}"
        );
    }
}
