//! Creates streams and consumers, and compares those that exist.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use hostler_queue::{Change, ChannelSpec, QueueError};
use serde_json::{Value, json};

use super::api::{self, ApiError};
use super::line::Line;
use super::names::{CONSUMER, Names};
use super::topology::{self, Common, Drift};

/// A stream, or a consumer of a stream, as hostler configures it.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    /// Stream.
    pub(crate) stream: String,
    /// Name of the consumer. `None`: the stream itself.
    pub(crate) consumer: Option<String>,
    pub(crate) wanted: Value,
    /// Name in texts for people.
    pub(crate) title: String,
    /// Settings with which this one cannot work, if they differ, though others can.
    pub(crate) strict: &'static [&'static str],
}

impl Resource {
    /// Returns the differences. `found`: the configuration as the server tells it.
    pub(crate) fn drift(&self, found: &Value) -> Vec<Drift> {
        topology::drift(&self.wanted, found, self.strict)
    }
}

/// Treatment of the server's timers that are longer than hostler configures them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timers {
    /// They stay: another host may depend on them.
    Raise,
    /// They are set, as an operator wants it.
    Set,
}

/// Creates and compares.
pub(crate) struct Declarer {
    line: Arc<Line>,
    names: Names,
    common: Common,
    /// Streams that exist.
    known: Mutex<HashSet<String>>,
}

impl Declarer {
    pub(crate) fn new(line: Arc<Line>, names: Names, common: Common) -> Self {
        Self { line, names, common, known: Mutex::default() }
    }

    /// Returns what a channel consists of, in the order of creation: the dead-letter queue first, so that no message can be
    /// dead-lettered to nowhere. Nothing for a subject: the server keeps nothing of it.
    pub(crate) fn resources(&self, spec: &ChannelSpec) -> Vec<Resource> {
        if spec.subject.is_some() {
            return Vec::new();
        }
        let mut resources = vec![self.notes()];
        if spec.max_receives.is_some() {
            resources.extend(self.queue(&spec.channel.dead_letter_queue(), spec));
        }
        resources.extend(self.queue(spec.channel.queue(), spec));
        if let Some(exchange) = spec.channel.exchange() {
            let stream = self.exchange(exchange);
            let queue = spec.channel.queue();
            resources.push(Resource {
                stream: stream.stream.clone(),
                consumer: Some(queue.to_owned()),
                wanted: topology::feeder(&self.names, spec, exchange, self.line.has_filters()),
                title: format!("subscription of {} to {exchange}", self.names.queue(queue)),
                strict: if spec.ordered { &["max_ack_pending"] } else { &[] },
            });
            resources.insert(resources.len() - 1, stream);
        }
        resources
    }

    /// Returns the stream of a queue, and the consumer of its receivers.
    pub(crate) fn queue(&self, queue: &str, spec: &ChannelSpec) -> [Resource; 2] {
        let stream = self.names.queue(queue);
        let title = format!("queue {stream}");
        let consumer = Resource {
            stream: stream.clone(),
            consumer: Some(CONSUMER.to_owned()),
            wanted: topology::receiver(spec.lease),
            title: format!("consumer of the {title}"),
            strict: &[],
        };
        // The order of groups is looked up by direct reads.
        let strict: &[_] = if spec.ordered { &["allow_direct"] } else { &[] };
        [Resource { wanted: self.common.queue(&self.names, queue), stream, consumer: None, title, strict }, consumer]
    }

    /// Returns the stream of an exchange.
    pub(crate) fn exchange(&self, exchange: &str) -> Resource {
        let stream = self.names.exchange(exchange);
        let title = format!("exchange {}", stream.strip_suffix("~exchange").unwrap_or(&stream));
        Resource { wanted: self.common.exchange(&self.names, exchange), stream, consumer: None, title, strict: &[] }
    }

    fn notes(&self) -> Resource {
        let stream = self.names.notes();
        let title = format!("stream {stream}");
        Resource { wanted: self.common.notes(&self.names), stream, consumer: None, title, strict: &[] }
    }

    /// Returns the stream with the states of schedules. A state that expired would make its schedule begin anew.
    pub(crate) fn schedules(&self) -> Resource {
        let stream = self.names.schedules();
        let (wanted, title) = (self.common.schedules(&self.names), format!("stream {stream}"));
        Resource { wanted, stream, consumer: None, title, strict: &["max_age"] }
    }

    /// Returns the configuration as the server tells it. `None`: there is none.
    pub(crate) async fn found(&self, resource: &Resource) -> Result<Option<Value>, QueueError> {
        let found = match &resource.consumer {
            None => api::stream(&self.line, &resource.stream).await?,
            Some(consumer) => api::consumer(&self.line, &resource.stream, consumer).await?,
        };
        Ok(found.map(|mut found| found["config"].take()))
    }

    /// Returns `true` if the stream exists.
    pub(crate) async fn has_stream(&self, stream: &str) -> Result<bool, QueueError> {
        if self.known().contains(stream) {
            return Ok(true);
        }
        let exists = api::stream(&self.line, stream).await?.is_some();
        if exists {
            self.known().insert(stream.to_owned());
        }
        Ok(exists)
    }

    /// Forgets that a stream exists.
    pub(crate) fn forget(&self, stream: &str) {
        self.known().remove(stream);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates what is missing of a channel, and changes what differs, as far as the server lets hostler change it. Returns what
    /// still differs.
    ///
    /// # Errors
    /// Something cannot be created, or differs so that hostler cannot work with it.
    pub(crate) async fn establish(
        &self,
        spec: &ChannelSpec,
        timers: Timers,
    ) -> Result<Vec<(Resource, Drift)>, QueueError> {
        let mut left = Vec::new();
        for resource in self.resources(spec) {
            left.extend(self.establish_one(resource, timers).await?);
        }
        Ok(left)
    }

    /// Creates a stream or consumer, or changes it, as [`Self::establish`] does.
    pub(crate) async fn establish_one(
        &self,
        mut resource: Resource,
        timers: Timers,
    ) -> Result<Vec<(Resource, Drift)>, QueueError> {
        let drift = match self.found(&resource).await? {
            None => self.create(&resource).await?,
            Some(found) => {
                if timers == Timers::Raise {
                    topology::keep_longer_timer(&mut resource.wanted, &found);
                }
                if resource.drift(&found).is_empty() { Vec::new() } else { self.update(&resource, found).await? }
            }
        };
        refuse_fatal(&resource, &drift)?;
        Ok(drift.into_iter().map(|drift| (resource.clone(), drift)).collect())
    }

    /// Returns the changes by which the server would have a stream or consumer as hostler configures it.
    pub(crate) async fn changes(&self, resource: &Resource) -> Result<Vec<Change>, QueueError> {
        let change = |Drift { text, .. }| Change::update(resource.title.clone(), text);
        Ok(match self.found(resource).await? {
            None => vec![Change::create(resource.title.clone())],
            Some(found) => resource.drift(&found).into_iter().map(change).collect(),
        })
    }

    /// Creates the streams of a queue or exchange, and the consumers of a queue, where they are missing. Changes nothing else.
    pub(crate) async fn create_missing(&self, resources: impl IntoIterator<Item = Resource>) -> Result<(), QueueError> {
        for resource in resources {
            if self.found(&resource).await?.is_none() {
                refuse_fatal(&resource, &self.create(&resource).await?)?;
            }
        }
        Ok(())
    }

    /// Creates a queue for messages that come before their consumer does.
    pub(crate) async fn create_queue(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        self.create_missing([self.notes()].into_iter().chain(self.queue(spec.channel.queue(), spec))).await
    }

    /// Creates a stream or consumer. Returns what the server did not take over.
    async fn create(&self, resource: &Resource) -> Result<Vec<Drift>, QueueError> {
        let made = match &resource.consumer {
            None => api::call(&self.line, &format!("STREAM.CREATE.{}", resource.stream), &resource.wanted).await,
            Some(consumer) => self.put_consumer(resource, consumer, &resource.wanted).await,
        };
        let made = made.map_err(|error| match error {
            ApiError::Overlap(text) => QueueError::Refused(format!(
                "cannot create the {}: {text}: another stream has the subject; set queue.nats.prefix, or rename the channel",
                resource.title
            )),
            error => prefixed(&format!("cannot create the {}", resource.title), error.or(|| gone(resource))),
        })?;
        if resource.consumer.is_none() {
            self.known().insert(resource.stream.clone());
        }
        Ok(resource.drift(&made["config"]))
    }

    /// Changes a stream or consumer. Keeps the settings of which hostler has no opinion. Returns what still differs.
    async fn update(&self, resource: &Resource, found: Value) -> Result<Vec<Drift>, QueueError> {
        let mut config = found.clone();
        merge(&mut config, &resource.wanted);
        let made = match &resource.consumer {
            None => api::call(&self.line, &format!("STREAM.UPDATE.{}", resource.stream), &config).await,
            Some(consumer) => self.put_consumer(resource, consumer, &config).await,
        };
        match made {
            Ok(made) => Ok(resource.drift(&made["config"])),
            Err(ApiError::Other(QueueError::Refused(error))) => {
                tracing::debug!(error, resource.title, "the server does not let the difference be changed");
                Ok(resource.drift(&found))
            }
            Err(error) => Err(error.or(|| gone(resource))),
        }
    }

    async fn put_consumer(&self, resource: &Resource, consumer: &str, config: &Value) -> Result<Value, ApiError> {
        let operation = format!("CONSUMER.DURABLE.CREATE.{}.{consumer}", resource.stream);
        api::call(&self.line, &operation, &json!({ "stream_name": resource.stream, "config": config })).await
    }
}

/// Takes the wanted settings over. Those that an operator may choose stay.
fn merge(config: &mut Value, wanted: &Value) {
    for (name, value) in wanted.as_object().into_iter().flatten() {
        match (name.as_str(), &mut config[name]) {
            (name, _) if topology::FREE.contains(&name) => {}
            ("subjects", Value::Array(subjects)) => {
                let missing: Vec<_> =
                    value.as_array().into_iter().flatten().filter(|one| !subjects.contains(one)).cloned().collect();
                subjects.extend(missing);
            }
            (_, setting) => *setting = value.clone(),
        }
    }
    // The server writes these itself.
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !name.starts_with("_nats."));
    }
    if let (Some(config), true) = (config.as_object_mut(), wanted.get("filter_subjects").is_some()) {
        config.remove("filter_subject");
    }
}

/// # Errors
/// A difference with which hostler cannot work.
fn refuse_fatal(resource: &Resource, drift: &[Drift]) -> Result<(), QueueError> {
    let fatal = topology::findings(&resource.title, drift).into_iter().find(|finding| finding.fatal);
    fatal.map_or(Ok(()), |finding| Err(QueueError::Refused(finding.to_string())))
}

fn gone(resource: &Resource) -> QueueError {
    QueueError::Unavailable(format!("the {} has just been removed", resource.title))
}

fn prefixed(what: &str, error: QueueError) -> QueueError {
    match error {
        QueueError::Unavailable(text) => QueueError::Unavailable(format!("{what}: {text}")),
        QueueError::Refused(text) => QueueError::Refused(format!("{what}: {text}")),
    }
}

/// Returns the error for something that is missing.
pub(crate) fn missing(what: &str) -> QueueError {
    QueueError::Refused(format!(
        "there is no {what} on NATS: run `hostler provision`, or set queue.nats.provision = \"auto\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_what_an_operator_chose() {
        let mut config =
            json!({ "subjects": ["a", "b"], "storage": "memory", "filter_subject": "x", "max_bytes": 5, "other": 1 });
        merge(
            &mut config,
            &json!({ "subjects": ["b", "c"], "storage": "file", "max_bytes": -1, "filter_subjects": ["y"] }),
        );
        let expected = json!({ "subjects": ["a", "b", "c"], "storage": "memory", "max_bytes": 5, "other": 1, "filter_subjects": ["y"] });
        assert_eq!(config, expected);
    }
}
