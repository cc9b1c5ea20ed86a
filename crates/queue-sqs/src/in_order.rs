//! Sends a batch to a FIFO queue or topic. Preserves the order of each group, even if only part of the batch is
//! accepted.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::Service;
use super::deliver::{Delivered, Job, PATIENCE, REST, refusal};
use super::fault::Fault;
use super::place::Target;
use hostler_queue::{QueueError, SendError, Sent};
use hostler_types::channel::Channel;

/// Groups in which a message could not be sent. Later messages of these groups are not sent.
pub(super) type Ended = HashSet<Option<String>>;

/// Sends one batch. Messages with a temporary failure are retried for up to [`PATIENCE`]. If a message fails for good,
/// its group is added to `ended`, and no later message of the group is sent, either in this batch or in later batches
/// with the same `ended`. The group is not added if the message itself is at fault ([`Fault::Message`]).
pub(super) async fn deliver_in_order(
    service: &Arc<Service>,
    channel: &Channel,
    target: &mut Target,
    jobs: Vec<Job>,
    ended: &mut Ended,
) -> Delivered {
    let (give_up_at, mut failures) = (Instant::now() + PATIENCE, 0);
    let (mut delivered, mut waiting, mut singly) = (Vec::new(), jobs, false);
    loop {
        let (stopped, going): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|job| ended.contains(&job.entry.group));
        delivered.extend(stopped.into_iter().map(|job| (job.index, Err(behind()))));
        if going.is_empty() {
            return delivered;
        }
        let (now, later) = if singly { first_of_each_group(going) } else { (going, Vec::new()) };
        let count = now.len();
        let answers = service.call(target, now.iter().map(|job| &job.entry)).await;
        let again = Instant::now() + REST.ceiling(failures) < give_up_at;
        let Sorted { done, left, is_gone } = sort(now.into_iter().zip(answers), again, ended);
        delivered.extend(done);
        // If a whole call fails, no message has overtaken another, so the whole batch is sent again. After a partial
        // failure, each call has only the first message of each group.
        singly |= !left.is_empty() && left.len() < count;
        let has_failed = !left.is_empty();
        waiting = left.into_iter().chain(later).collect();
        if is_gone {
            service.resolver.forget(channel, &target.place().name);
            match service.target(channel, true).await {
                Ok(found) => *target = found,
                Err(error) => {
                    ended.extend(waiting.iter().map(|job| job.entry.group.clone()));
                    delivered.extend(waiting.into_iter().map(|job| (job.index, Err(error.clone().into()))));
                    return delivered;
                }
            }
        }
        if has_failed {
            tokio::time::sleep(REST.rest(failures, fastrand::f64())).await;
            failures += 1;
        }
    }
}

/// Answers to a call, sorted by what happens to each message next.
struct Sorted {
    /// Final results.
    done: Delivered,
    /// Messages to send again, in their order.
    left: Vec<Job>,
    /// Set if the target no longer exists.
    is_gone: bool,
}

/// Decides what happens to each message of a call next. `answers`: the messages with their answers, in the order in
/// which the messages were sent. A failed message is not sent again if a later message of its group was accepted,
/// because that would change the order of the group. `again`: set if there is time for another attempt.
fn sort(answers: impl Iterator<Item = (Job, Result<String, Fault>)>, again: bool, ended: &mut Ended) -> Sorted {
    let mut sorted = Sorted { done: Vec::new(), left: Vec::new(), is_gone: false };
    let mut failed: Vec<(Job, Fault)> = Vec::new();
    for (job, answer) in answers {
        match answer {
            Ok(id) => {
                let group = &job.entry.group;
                for (passed, fault) in failed.extract_if(.., |(earlier, _)| earlier.entry.group == *group) {
                    ended.insert(group.clone());
                    sorted.done.push((passed.index, Err(overtaken(fault))));
                }
                sorted.done.push((job.index, Ok(Sent { id, queues: job.counted.then_some(1) })));
            }
            // This message itself is at fault and can never be sent, so its group continues without it.
            Err(fault @ Fault::Message(_)) => sorted.done.push((job.index, Err(refusal(fault)))),
            Err(fault) => failed.push((job, fault)),
        }
    }
    for (job, fault) in failed {
        if ended.contains(&job.entry.group) {
            sorted.done.push((job.index, Err(behind())));
        } else if again && (fault.may_pass() || fault.is_missing()) {
            sorted.is_gone |= fault.is_missing();
            sorted.left.push(job);
        } else {
            ended.insert(job.entry.group.clone());
            sorted.done.push((job.index, Err(refusal(fault))));
        }
    }
    sorted
}

/// Returns a list with the first message of each group, and a second list with all other messages. Both lists keep the
/// order of `jobs`.
fn first_of_each_group(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let mut seen = HashSet::new();
    jobs.into_iter().partition(|job| seen.insert(job.entry.group.clone()))
}

fn behind() -> SendError {
    QueueError::Unavailable("not sent, as an earlier message of its group was not".to_owned()).into()
}

fn overtaken(fault: Fault) -> SendError {
    let text = fault.into_text();
    QueueError::Unavailable(format!("{text}; not sent again, as a later message of its group was taken meanwhile"))
        .into()
}
