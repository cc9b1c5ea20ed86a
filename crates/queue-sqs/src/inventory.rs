//! Lists the queues and topics under our prefix that hostler owns, according to their tags.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName;

use super::Service;
use super::depth::{name_of, queue_urls};
use super::fault::{Fault, is_denial};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Listing, ManagedQueue, ManagedTopic, QueueError, Unread, tag};
use hostler_types::channel::Channel;

/// Lists every queue that hostler owns. Makes two calls for each queue that hostler owns, and one call for every other
/// queue under our prefix.
pub(super) async fn queues(service: &Arc<Service>) -> Result<Listing<ManagedQueue>, QueueError> {
    let urls = queue_urls(service).await?;
    let work = urls.into_iter().map(|url| {
        let service = Arc::clone(service);
        async move { queue(&service, &url).await }
    });
    let mut listing = Listing::default();
    for seen in side_by_side(work).await {
        match seen.ok_or_else(stopping)? {
            Ok(found) => listing.found.extend(found),
            Err(unread) => listing.unread.push(unread),
        }
    }
    listing.found.sort_by(|one, other| one.name.cmp(&other.name));
    listing.unread.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listing)
}

/// Reads the queue with this URL. `None`: hostler does not own the queue, or the queue no longer exists.
async fn queue(service: &Service, url: &str) -> Result<Option<ManagedQueue>, Unread> {
    let name = name_of(url);
    let Some((queue, _)) = service.names.here(name) else { return Ok(None) };
    let Some(tags) = tags(service, url).await? else { return Ok(None) };
    if !tag::is_owned(&tags) {
        return Ok(None);
    }
    let Some(held) = contents(service, url).await? else { return Ok(None) };
    Ok(Some(ManagedQueue { name: name.to_owned(), queue: queue.to_owned(), tags, ..held }))
}

/// Returns the tags of a queue. `None`: the queue does not exist.
pub(super) async fn tags(service: &Service, url: &str) -> Result<Option<BTreeMap<String, String>>, Unread> {
    let asked = service.clients.sqs.list_queue_tags().queue_url(url).send().await;
    let answer = there("ListQueueTags", name_of(url), asked)?;
    Ok(answer.map(|answer| answer.tags.unwrap_or_default().into_iter().collect()))
}

/// Returns the message counts and the creation time of a queue. The result has neither name nor tags. `None`: the queue
/// does not exist.
pub(super) async fn contents(service: &Service, url: &str) -> Result<Option<ManagedQueue>, Unread> {
    let asked = service.clients.sqs.get_queue_attributes().queue_url(url);
    let asked = asked
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessages)
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessagesDelayed)
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessagesNotVisible)
        .attribute_names(QueueAttributeName::CreatedTimestamp);
    let name = name_of(url);
    let Some(answer) = there("GetQueueAttributes", name, asked.send().await)? else { return Ok(None) };
    let attributes = answer.attributes.unwrap_or_default();
    let number = |name: QueueAttributeName| attributes.get(&name).and_then(|number| number.parse::<u64>().ok());
    // A missing count must not be read as zero, because an empty queue may be deleted.
    let count = |attribute: QueueAttributeName| {
        let untold = || Unread {
            name: name.to_owned(),
            reason: format!("GetQueueAttributes of {name}: no {} in the answer", attribute.as_str()),
            denied: false,
        };
        number(attribute.clone()).ok_or_else(untold)
    };
    Ok(Some(ManagedQueue {
        visible: count(QueueAttributeName::ApproximateNumberOfMessages)?,
        delayed: Some(count(QueueAttributeName::ApproximateNumberOfMessagesDelayed)?),
        in_flight: Some(count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible)?),
        created: number(QueueAttributeName::CreatedTimestamp)
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
        ..ManagedQueue::default()
    }))
}

/// Lists every topic that hostler owns. Reads the tags of one topic after another, because SNS accepts only ten of
/// these calls per second.
pub(super) async fn topics(service: &Service) -> Result<Listing<ManagedTopic>, QueueError> {
    let mut pages = service.clients.sns.list_topics().into_paginator().items().send();
    let mut listing = Listing::default();
    while let Some(topic) = pages.next().await {
        let arn = topic.map_err(|error| Fault::of("ListTopics", &error))?.topic_arn.unwrap_or_default();
        let name = arn.rsplit(':').next().unwrap_or_default();
        let Some((exchange, _)) = service.names.here(name) else { continue };
        let asked = service.clients.sns.list_tags_for_resource().resource_arn(&arn).send().await;
        match there("ListTagsForResource", name, asked) {
            Ok(Some(answer)) => {
                let tags = answer.tags.unwrap_or_default().into_iter().map(|tag| (tag.key, tag.value)).collect();
                let held = ManagedTopic { name: name.to_owned(), exchange: exchange.to_owned() };
                listing.found.extend(tag::is_owned(&tags).then_some(held));
            }
            Ok(None) => {}
            Err(unread) => listing.unread.push(unread),
        }
    }
    Ok(listing)
}

/// Returns the names of the queues that are subscribed to any topic. Subscriptions in another account or region are not
/// included.
pub(super) async fn subscribed(service: &Service) -> Result<BTreeSet<String>, QueueError> {
    let mut pages = service.clients.sns.list_subscriptions().into_paginator().items().send();
    let mut queues = BTreeSet::new();
    while let Some(subscription) = pages.next().await {
        let subscription = subscription.map_err(|error| Fault::of("ListSubscriptions", &error))?;
        let queue = subscription.endpoint.filter(|_| subscription.protocol.as_deref() == Some("sqs"));
        queues.extend(queue.as_deref().and_then(|arn| arn.rsplit(':').next()).map(str::to_owned));
    }
    Ok(queues)
}

/// Lists the exchanges whose topics are subscribed by the queue of any of these channels, standard or FIFO. `None`: hostler has
/// no permission to list subscriptions. Lists all subscriptions once, however many channels there are.
pub(super) async fn feeding(service: &Service, channels: &[Channel]) -> Result<Option<Vec<String>>, QueueError> {
    let on_aws = |channel: &Channel| [false, true].map(|ordered| service.names.on_aws(channel.queue(), ordered));
    let queues: Vec<_> = channels.iter().flat_map(on_aws).collect();
    let mut pages = service.clients.sns.list_subscriptions().into_paginator().items().send();
    let mut exchanges = Vec::new();
    while let Some(subscription) = pages.next().await {
        let subscription = match subscription {
            Ok(subscription) => subscription,
            Err(error) if is_denial(&error) => return Ok(None),
            Err(error) => return Err(Fault::of("ListSubscriptions", &error).into()),
        };
        let last = |arn: &Option<String>| arn.as_deref()?.rsplit(':').next().map(str::to_owned);
        let is_its = subscription.protocol.as_deref() == Some("sqs")
            && last(&subscription.endpoint).is_some_and(|name| queues.contains(&name));
        let topic = last(&subscription.topic_arn).filter(|_| is_its);
        exchanges.extend(topic.and_then(|topic| Some(service.names.here(&topic)?.0.to_owned())));
    }
    Ok(Some(exchanges))
}

/// Converts the answer to a call that reads a resource. `None`: the resource does not exist.
fn there<T, E>(action: &str, name: &str, answer: Result<T, SdkError<E>>) -> Result<Option<T>, Unread>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let error = match answer {
        Ok(answer) => return Ok(Some(answer)),
        Err(error) => error,
    };
    let unread = |reason: String, denied: bool| Unread { name: name.to_owned(), reason, denied };
    if is_denial(&error) {
        return Err(unread(format!("{action} is denied"), true));
    }
    match Fault::of(action, &error) {
        Fault::Missing(_) => Ok(None),
        fault => Err(unread(QueueError::from(fault).to_string(), false)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::Service as Scripted;
    use super::*;

    #[tokio::test]
    async fn subscriptions_are_listed_once_for_all_queues() {
        let scripted = Scripted::answering(400);
        let service = scripted.behind().await;
        let channels = ["jobs", "jobs-dlq"].map(|channel| channel.parse().unwrap());
        assert!(feeding(&service, &channels).await.is_err());
        assert_eq!(scripted.calls().len(), 1, "the list is long in an account with many topics");
    }
}
