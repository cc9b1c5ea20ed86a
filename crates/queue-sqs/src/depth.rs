//! Message counts of queues, and the list of queues.

use std::sync::Arc;

use aws_sdk_sqs::types::QueueAttributeName;

use super::Service;
use super::fault::Fault;
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Depth, QueueError};
use hostler_types::channel::Channel;

/// Approximate message counts of a queue, as SQS reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    visible: u64,
    delayed: u64,
    in_flight: u64,
}

/// Returns the depth of each channel. `oldest_age` is always `None`, because CloudWatch reports the age of messages and
/// SQS does not.
pub(super) async fn depths(service: &Arc<Service>, channels: &[Channel]) -> Vec<Result<Depth, QueueError>> {
    let work: Vec<_> = channels.iter().cloned().map(|channel| depth(Arc::clone(service), channel)).collect();
    side_by_side(work).await.into_iter().map(|depth| depth.unwrap_or_else(|| Err(stopping()))).collect()
}

async fn depth(service: Arc<Service>, channel: Channel) -> Result<Depth, QueueError> {
    let found = counts(&service, channel.queue()).await?;
    let Counts { visible, delayed, in_flight } = found.unwrap_or_default();
    let (delayed, in_flight) = (Some(delayed), Some(in_flight));
    let name = channel.dead_letter_queue();
    let dead = counts_of_dead_letters(&service, channel.queue(), &name).await;
    let dead = uncounted_if_refused(&service, &name, dead)?;
    let dead_lettered = dead.visible + dead.delayed + dead.in_flight;
    Ok(Depth { visible, delayed, in_flight, dead_lettered, missing: found.is_none(), oldest_age: None })
}

/// Counts the messages of `dead`, the dead-letter queue of `queue`. Returns zeros if `queue` is itself a dead-letter
/// queue. Also returns zeros if `dead` was found to be missing, or access to it was denied, in the last 30 minutes.
async fn counts_of_dead_letters(service: &Service, queue: &str, dead: &str) -> Result<Counts, QueueError> {
    let is_known = !service.resolver.known_kinds(&service.names, dead).is_empty();
    if queue.ends_with("-dlq") || !is_known && service.resolver.is_passed_over(dead) {
        return Ok(Counts::default());
    }
    let found = counts(service, dead).await?;
    if found.is_none() {
        service.resolver.pass_over(dead);
    }
    Ok(found.unwrap_or_default())
}

/// Returns the counts in `dead`, or zeros if SQS refused to count the messages of the dead-letter queue `name`. A
/// refusal is not an error, because the counts of the channel's own queue are known. It is expected if the queue does
/// not exist and the IAM policy lists only existing queues. After a refusal, the dead-letter queue is not queried again
/// for 30 minutes. Each broker logs only one warning about refusals.
fn uncounted_if_refused(service: &Service, name: &str, dead: Result<Counts, QueueError>) -> Result<Counts, QueueError> {
    let refusal = match dead {
        Err(QueueError::Refused(refusal)) => refusal,
        counted => return counted,
    };
    service.resolver.pass_over(name);
    service.uncounted.call_once(|| {
        tracing::warn!(refusal, "not allowed to count the dead letters of a queue; they are reported as zero");
    });
    Ok(Counts::default())
}

/// Counts the messages of the standard queue and the FIFO queue with this name. `None`: neither exists. If one kind is
/// known to exist, only that kind is queried.
async fn counts(service: &Service, name: &str) -> Result<Option<Counts>, QueueError> {
    match service.resolver.known_kinds(&service.names, name)[..] {
        [ordered] => both([counts_of(service, name, ordered).await, Ok(None)]),
        _ => both([counts_of(service, name, false).await, counts_of(service, name, true).await]),
    }
}

/// Adds up the counts of the standard queue and the FIFO queue with the same name. Usually only one of them exists. If
/// an IAM policy lists only existing queues, SQS refuses the query for the missing one. Therefore, a refusal is an
/// error only if neither queue is found.
fn both(kinds: [Result<Option<Counts>, QueueError>; 2]) -> Result<Option<Counts>, QueueError> {
    let (mut total, mut refusal) = (None, None);
    for kind in kinds {
        match kind {
            Ok(None) => {}
            Ok(Some(counts)) => total = Some(counts.plus(total.unwrap_or_default())),
            Err(error @ QueueError::Refused(_)) => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    match (total, refusal) {
        (None, Some(refusal)) => Err(refusal),
        (total, _) => Ok(total),
    }
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            visible: self.visible + other.visible,
            delayed: self.delayed + other.delayed,
            in_flight: self.in_flight + other.in_flight,
        }
    }
}

/// Counts the messages of the queue with this name and kind. `None`: the queue does not exist.
async fn counts_of(service: &Service, name: &str, ordered: bool) -> Result<Option<Counts>, QueueError> {
    let Some(place) = service.find_queue(name, ordered).await? else { return Ok(None) };
    let asked = service.clients.sqs.get_queue_attributes().queue_url(&*place.address);
    let asked = asked
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessages)
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessagesDelayed)
        .attribute_names(QueueAttributeName::ApproximateNumberOfMessagesNotVisible);
    let answer = match asked.send().await {
        Ok(answer) => answer.attributes.unwrap_or_default(),
        Err(error) => match Fault::of(&format!("GetQueueAttributes of {}", place.name), &error) {
            Fault::Missing(_) => {
                service.resolver.forget_queue(&place);
                return Ok(None);
            }
            fault => return Err(fault.into()),
        },
    };
    let count = |name| answer.get(&name).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    Ok(Some(Counts {
        visible: count(QueueAttributeName::ApproximateNumberOfMessages),
        delayed: count(QueueAttributeName::ApproximateNumberOfMessagesDelayed),
        in_flight: count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible),
    }))
}

/// Returns the channels of all queues under our prefix. The channels have no exchange, because SQS does not know which
/// exchange feeds a queue.
pub(super) async fn channels(service: &Arc<Service>) -> Result<Vec<Channel>, QueueError> {
    let mut channels: Vec<Channel> = Vec::new();
    for url in queue_urls(service).await? {
        let channel = service.names.here(name_of(&url)).and_then(|(name, _)| name.parse().ok());
        channels.extend(channel);
    }
    channels.sort();
    channels.dedup();
    Ok(channels)
}

/// Returns the URLs of all queues under our prefix. Reads the list page by page (AWS limit: 1,000 queues per page).
pub(super) async fn queue_urls(service: &Service) -> Result<Vec<String>, QueueError> {
    let prefix = service.names.prefix();
    let list = service.clients.sqs.list_queues().set_queue_name_prefix((!prefix.is_empty()).then(|| prefix.to_owned()));
    let mut pages = list.max_results(1000).into_paginator().items().send();
    let mut urls = Vec::new();
    while let Some(url) = pages.next().await {
        urls.push(url.map_err(|error| Fault::of("ListQueues", &error))?);
    }
    Ok(urls)
}

/// Returns the AWS name of a queue from its URL.
pub(super) fn name_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_the_other_kind_hides_nothing() {
        let some = |visible| Ok(Some(Counts { visible, ..Counts::default() }));
        let refused = || Err(QueueError::Refused("AccessDenied".into()));
        let down = || Err(QueueError::Unavailable("timeout".into()));
        let visible = |kinds| both(kinds).map(|counts| counts.map(|counts| counts.visible));
        assert_eq!(visible([some(3), Ok(None)]), Ok(Some(3)));
        assert_eq!(visible([some(3), some(4)]), Ok(Some(7)));
        assert_eq!(visible([some(3), refused()]), Ok(Some(3)));
        assert_eq!(visible([refused(), some(4)]), Ok(Some(4)));
        assert_eq!(visible([Ok(None), Ok(None)]), Ok(None));
        assert!(matches!(both([refused(), Ok(None)]), Err(QueueError::Refused(_))));
        assert!(matches!(both([some(3), down()]), Err(QueueError::Unavailable(_))));
    }
}
