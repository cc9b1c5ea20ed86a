//! Sends a batch to a queue or a topic and retries the entries that failed.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sns::types::PublishBatchRequestEntry;
use aws_sdk_sqs::operation::RequestId;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use tokio::time::Instant;

use super::Service;
use super::fault::{Fault, Request};
use super::place::{Place, Target};
use super::wire::Entry;
use hostler_queue::{QueueError, SendError, Sent};
use hostler_types::Backoff;
use hostler_types::channel::Channel;
use hostler_types::message::Invalid;

/// Maximum time for which a message with a temporary failure is retried.
pub(super) const PATIENCE: Duration = Duration::from_secs(18);
/// Delays between the attempts.
pub(super) const REST: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(4));

/// A message to send.
#[derive(Debug)]
pub(super) struct Job {
    /// Position of the message in the caller's batch.
    pub(super) index: usize,
    /// Set if the message is known to reach exactly one queue: it is sent to a queue, not a topic, and has no dedupe
    /// key. A message with a dedupe key may be dropped as a duplicate.
    pub(super) counted: bool,
    pub(super) entry: Entry,
}

pub(super) type Delivered = Vec<(usize, Result<Sent, SendError>)>;

/// Sends one batch to `target`. Retries messages with a temporary failure for up to [`PATIENCE`]. If the target no
/// longer exists, determines the channel's target again. Depending on the options, this creates the target anew or is
/// an error.
pub(super) async fn deliver(
    service: Arc<Service>,
    channel: Channel,
    mut target: Target,
    mut jobs: Vec<Job>,
) -> Delivered {
    let (give_up_at, mut failures) = (Instant::now() + PATIENCE, 0);
    let mut delivered = Vec::new();
    loop {
        let answers = service.call(&target, jobs.iter().map(|job| &job.entry)).await;
        let again = Instant::now() + REST.ceiling(failures) < give_up_at;
        let (mut left, mut is_gone) = (Vec::new(), false);
        for (job, answer) in jobs.into_iter().zip(answers) {
            match answer {
                Ok(id) => delivered.push((job.index, Ok(Sent { id, queues: job.counted.then_some(1) }))),
                Err(fault) if again && (fault.may_pass() || fault.is_missing()) => {
                    is_gone |= fault.is_missing();
                    left.push(job);
                }
                Err(fault) => delivered.push((job.index, Err(refusal(fault)))),
            }
        }
        if left.is_empty() {
            return delivered;
        }
        jobs = left;
        if is_gone {
            service.resolver.forget(&channel, &target.place().name);
            target = match service.target(&channel, target.place().ordered).await {
                Ok(target) => target,
                Err(error) => {
                    delivered.extend(jobs.into_iter().map(|job| (job.index, Err(error.clone().into()))));
                    return delivered;
                }
            };
        }
        tokio::time::sleep(REST.rest(failures, fastrand::f64())).await;
        failures += 1;
    }
}

pub(super) fn refusal(fault: Fault) -> SendError {
    match fault {
        Fault::Message(text) => Invalid::Unsupported(text).into(),
        fault => QueueError::from(fault).into(),
    }
}

impl Service {
    /// Sends `entries` to `target` in one call. Returns the message id or the fault of each entry, in the order of
    /// `entries`.
    pub(super) async fn call<'a>(
        &self,
        target: &Target,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<Result<String, Fault>> {
        match target {
            Target::Queue(place) => self.send_batch(place, entries).await,
            Target::Topic(place) => self.publish_batch(place, entries).await,
        }
    }

    async fn send_batch<'a>(
        &self,
        place: &Place,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<Result<String, Fault>> {
        let what = format!("SendMessageBatch to {}", place.name);
        let entry = |(n, entry): (usize, &Entry)| {
            SendMessageBatchRequestEntry::builder()
                .id(n.to_string())
                .message_body(&entry.body)
                .set_message_attributes(entry.for_sqs())
                .set_message_system_attributes(entry.system())
                .set_delay_seconds((entry.delay > 0).then_some(entry.delay))
                .set_message_group_id(entry.group.clone())
                .set_message_deduplication_id(entry.dedupe.clone())
                .build()
                .ok()
        };
        let entries: Vec<_> = entries.enumerate().filter_map(entry).collect();
        let count = entries.len();
        let call = self.clients.sends.send_message_batch().queue_url(&*place.address).set_entries(Some(entries));
        match call.send().await {
            Ok(answer) => {
                let request = answer.request_id().map(str::to_owned);
                let sent = answer.successful.into_iter().map(|entry| (entry.id, Ok(entry.message_id)));
                let failed = answer.failed.into_iter().map(|entry| {
                    let fault = Fault::of_entry(&what, &entry, request.as_deref());
                    (entry.id, Err(fault))
                });
                in_order(count, &what, sent.chain(failed))
            }
            Err(error) => vec![Err(Fault::of(&what, &error)); count],
        }
    }

    async fn publish_batch<'a>(
        &self,
        place: &Place,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<Result<String, Fault>> {
        let what = format!("PublishBatch to {}", place.name);
        let entry = |(n, entry): (usize, &Entry)| {
            PublishBatchRequestEntry::builder()
                .id(n.to_string())
                .message(&entry.body)
                .set_message_attributes(entry.for_sns())
                .set_message_group_id(entry.group.clone())
                .set_message_deduplication_id(entry.dedupe.clone())
                .build()
                .ok()
        };
        let entries: Vec<_> = entries.enumerate().filter_map(entry).collect();
        let count = entries.len();
        let call = self.clients.publishes.publish_batch().topic_arn(&*place.address);
        match call.set_publish_batch_request_entries(Some(entries)).send().await {
            Ok(answer) => {
                let request = answer.request_id().map(str::to_owned);
                let request = Request(request.as_deref());
                let sent = answer.successful.unwrap_or_default().into_iter();
                let sent = sent.filter_map(|entry| Some((entry.id?, Ok(entry.message_id.unwrap_or_default()))));
                let failed = answer.failed.unwrap_or_default().into_iter().map(|entry| {
                    let text =
                        format!("{what}: {}: {}{request}", entry.code(), entry.message().unwrap_or("no message"));
                    let fault = Fault::by_code(entry.code(), text, !entry.sender_fault()).of_one();
                    (entry.id, Err(fault))
                });
                in_order(count, &what, sent.chain(failed))
            }
            Err(error) => vec![Err(Fault::of(&what, &error)); count],
        }
    }
}

/// Sorts the answers into the order of the call's `count` entries. An entry without an answer counts as not sent.
fn in_order(
    count: usize,
    what: &str,
    answers: impl Iterator<Item = (String, Result<String, Fault>)>,
) -> Vec<Result<String, Fault>> {
    let unmentioned = Fault::Later(format!("{what}: the answer does not mention the entry"));
    let mut ordered = vec![Err(unmentioned); count];
    for (id, answer) in answers {
        if let Some(place) = id.parse::<usize>().ok().and_then(|n| ordered.get_mut(n)) {
            *place = answer;
        }
    }
    ordered
}
