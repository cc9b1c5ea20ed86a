//! Sends a batch to a FIFO queue or topic so that each group keeps its order, whatever part of the batch is taken.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::Service;
use super::deliver::{Delivered, Job, PATIENCE, REST, refusal};
use super::fault::Fault;
use super::place::Target;
use hostler_queue::{QueueError, SendError, Sent};
use hostler_types::channel::Channel;

/// Groups of which a message was not sent: nothing of theirs follows.
pub(super) type Ended = HashSet<Option<String>>;

/// Sends one batch. What is not taken this time is tried again, until the patience ends. The first failure ends its group, in
/// this batch and in those that follow with the same `ended`.
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
        // A call that failed as a whole has let nothing pass anything: it goes as a whole again.
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

/// What the answers to a call mean.
struct Sorted {
    /// Whose end it is.
    done: Delivered,
    /// To be sent again, in their order.
    left: Vec<Job>,
    /// Whether the target turned out to be gone.
    is_gone: bool,
}

/// Sorts a call's answers, in the order of its entries. What a later message of its group has passed is not sent again.
/// `again`: whether there is time for another try.
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
            // It is this message's own failure, and never comes.
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

/// The first of each group, and the others, in their order.
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
