//! Resolves names to queue URLs and topic ARNs, and caches them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use tokio::time::Instant;

use super::fault::Fault;
use super::names::Names;
use super::place::{Place, Target};
use super::provision::SeenRedrive;
use super::sharing::Sharing;
use super::{MAX_MESSAGE, Service};
use hostler_queue::QueueError;
use hostler_types::channel::Channel;

/// Maximum size in bytes of a message to SNS (AWS limit: 256 KiB).
const MAX_PUBLISH: usize = 256 * 1024;

/// Queue attributes to request.
const ASKED: [QueueAttributeName; 3] = [
    QueueAttributeName::MaximumMessageSize,
    QueueAttributeName::RedrivePolicy,
    QueueAttributeName::MessageRetentionPeriod,
];

/// Cache of resolved names. Contains only queues and topics that were found.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    queues: Mutex<HashMap<String, Place>>,
    topics: Mutex<HashMap<String, Place>>,
    targets: Mutex<HashMap<Channel, Target>>,
    /// Dead-letter queues that are missing, or to which access is denied, by name. The value is the earliest time of
    /// the next query.
    passed_over: Mutex<HashMap<String, Instant>>,
    pub(super) sharing: Sharing,
}

/// Minimum interval between queries of a dead-letter queue that is missing or to which access is denied.
const PASSED_OVER: Duration = Duration::from_secs(30 * 60);

fn known(places: &Mutex<HashMap<String, Place>>, name: &str) -> Option<Place> {
    places.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}

fn remember(places: &Mutex<HashMap<String, Place>>, place: &Place) {
    places.lock().unwrap_or_else(PoisonError::into_inner).insert(place.name.to_string(), place.clone());
}

impl Resolver {
    /// Returns the cached target of a channel's messages. `None`: the target is not cached.
    pub(super) fn target(&self, channel: &Channel) -> Option<Target> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned()
    }

    /// Caches the target of a channel's messages.
    pub(super) fn remember_target(&self, channel: &Channel, target: &Target) {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.clone(), target.clone());
    }

    /// Returns the kinds of queue that are cached under this name. `true`: FIFO. `false`: standard.
    pub(super) fn known_kinds(&self, names: &Names, name: &str) -> Vec<bool> {
        let is_known = |ordered: &bool| known(&self.queues, &names.on_aws(name, *ordered)).is_some();
        [false, true].into_iter().filter(is_known).collect()
    }

    /// Removes a queue that no longer exists from the cache.
    pub(super) fn forget_queue(&self, place: &Place) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).remove(&*place.name);
    }

    /// Returns `true` if the dead-letter queue with this name was found to be missing, or access to it was denied, in
    /// the last 30 minutes.
    pub(super) fn is_passed_over(&self, name: &str) -> bool {
        let passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        passed_over.get(name).is_some_and(|until| Instant::now() < *until)
    }

    /// Records that the dead-letter queue with this name is missing, or that access to it is denied.
    pub(super) fn pass_over(&self, name: &str) {
        let until = Instant::now() + PASSED_OVER;
        self.passed_over.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), until);
    }

    /// Removes the target of a channel from the cache, because it no longer exists. `name`: AWS name of the target's
    /// queue or topic, which is removed from the cache too.
    pub(super) fn forget(&self, channel: &Channel, name: &str) {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
        for places in [&self.queues, &self.topics] {
            places.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
    }
}

impl Service {
    /// Finds the queue with this name and kind, in the cache or on SQS. `None`: the queue does not exist.
    pub(super) async fn find_queue(&self, name: &str, ordered: bool) -> Result<Option<Place>, QueueError> {
        let name = self.names.on_aws(name, ordered);
        if let Some(place) = known(&self.resolver.queues, &name) {
            return Ok(Some(place));
        }
        let asked = self.clients.sqs.get_queue_url().queue_name(&name).send().await;
        let url = match asked.map_err(|error| Fault::of(&format!("GetQueueUrl of {name}"), &error)) {
            Ok(answer) => answer.queue_url.unwrap_or_default(),
            Err(fault) if fault.is_missing() => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        self.read_queue(&name, ordered, &url).await
    }

    /// Reads the settings of a cached queue again, because they may have changed. `None`: the queue no longer exists.
    pub(super) async fn reread_queue(&self, place: &Place) -> Result<Option<Place>, QueueError> {
        self.read_queue(&place.name, place.ordered, &place.address).await
    }

    /// Reads the settings of the queue with this AWS name and URL, and caches the queue. `None`: the queue does not
    /// exist.
    async fn read_queue(&self, name: &str, ordered: bool, url: &str) -> Result<Option<Place>, QueueError> {
        let asked = self.clients.sqs.get_queue_attributes().queue_url(url);
        let asked = asked.set_attribute_names(Some(ASKED.to_vec())).send().await;
        let attributes = match asked.map_err(|error| Fault::of(&format!("GetQueueAttributes of {name}"), &error)) {
            Ok(answer) => answer.attributes.unwrap_or_default(),
            Err(fault) if fault.is_missing() => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        let max_message = attributes.get(&QueueAttributeName::MaximumMessageSize).and_then(|bytes| bytes.parse().ok());
        let max_message = max_message.unwrap_or(MAX_MESSAGE).min(MAX_MESSAGE);
        let redrive = attributes.get(&QueueAttributeName::RedrivePolicy).and_then(|policy| SeenRedrive::read(policy));
        let keeps =
            attributes.get(&QueueAttributeName::MessageRetentionPeriod).and_then(|seconds| seconds.parse().ok());
        let place = Place {
            address: url.into(),
            name: name.into(),
            ordered,
            max_message,
            max_receives: redrive.and_then(|redrive| redrive.after),
            keeps: keeps.map(Duration::from_secs),
        };
        remember(&self.resolver.queues, &place);
        Ok(Some(place))
    }

    /// Finds the standard queue or, if there is none, the FIFO queue with this name. `None`: neither exists. If an IAM
    /// policy lists only existing queues, SQS refuses the query for the missing one. Therefore, a refusal is an error
    /// only if neither queue is found.
    pub(super) async fn find_queue_of_either_kind(&self, name: &str) -> Result<Option<Place>, QueueError> {
        if let &[ordered] = &self.resolver.known_kinds(&self.names, name)[..] {
            return self.find_queue(name, ordered).await;
        }
        let plain = self.find_queue(name, false).await;
        if !matches!(plain, Ok(None) | Err(QueueError::Refused(_))) {
            return plain;
        }
        match (plain, self.find_queue(name, true).await) {
            (plain, Ok(None)) | (plain @ Err(_), Err(QueueError::Refused(_))) => plain,
            (_, ordered) => ordered,
        }
    }

    /// Finds the topic of an exchange. `None`: the topic does not exist. SNS cannot find a topic by its name.
    /// Therefore, if the topic is not cached, all topics are listed, and those under the prefix are cached.
    pub(super) async fn find_topic(&self, exchange: &str, ordered: bool) -> Result<Option<Place>, QueueError> {
        let name = self.names.on_aws(exchange, ordered);
        if let Some(place) = known(&self.resolver.topics, &name) {
            return Ok(Some(place));
        }
        let mut pages = self.clients.sns.list_topics().into_paginator().items().send();
        while let Some(topic) = pages.next().await {
            let topic = topic.map_err(|error| Fault::of("ListTopics", &error))?;
            let Some(arn) = topic.topic_arn else { continue };
            let Some((_, found)) = arn.rsplit_once(':') else { continue };
            if found.starts_with(self.names.prefix()) {
                self.remember_topic(found, &arn);
            }
        }
        Ok(known(&self.resolver.topics, &name))
    }

    /// Finds the target of a channel's messages: the topic of its exchange, or its queue. If the channel has no
    /// exchange and there is no queue with its name, looks for the topic of an exchange with that name. `None`: the
    /// target does not exist.
    pub(super) async fn find_target(&self, channel: &Channel) -> Result<Option<Target>, QueueError> {
        if channel.exchange().is_none()
            && let Some(place) = self.find_queue_of_either_kind(channel.queue()).await?
        {
            return Ok(Some(Target::Queue(place)));
        }
        let exchange = channel.exchange().unwrap_or(channel.queue());
        for ordered in [false, true] {
            if let Some(place) = self.find_topic(exchange, ordered).await? {
                return Ok(Some(Target::Topic(place)));
            }
        }
        Ok(None)
    }

    /// Caches an existing topic with this AWS name and ARN, and returns it.
    pub(super) fn remember_topic(&self, name: &str, arn: &str) -> Place {
        let ordered = name.ends_with(".fifo");
        let place = Place {
            address: arn.into(),
            name: name.into(),
            ordered,
            max_message: MAX_PUBLISH,
            max_receives: None,
            keeps: None,
        };
        remember(&self.resolver.topics, &place);
        place
    }
}
