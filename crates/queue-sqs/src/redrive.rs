//! Moves the messages of a dead-letter queue with an SQS message move task (StartMessageMoveTask).

use std::time::Duration;

use aws_sdk_sqs::types::{ListMessageMoveTasksResultEntry as Task, QueueAttributeName};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Service;
use super::fault::Fault;
use hostler_queue::{QueueError, Redriven};
use hostler_types::channel::Channel;

/// Maximum rate of a task in messages per second (AWS limit: MaxNumberOfMessagesPerSecond 500).
const MAX_PER_SECOND: u32 = 500;

/// Interval between checks of the task's progress.
const LOOK: Duration = Duration::from_secs(1);

/// Maximum number of consecutive checks that may fail or find no task. After one more such check, [`redrive`] returns
/// an error, but the task itself continues.
const BLIND_LOOKS: u32 = 30;

/// Moves all messages from the queue `from` to the queue `to`. Returns when the task has ended. If `stop` is cancelled,
/// cancels the task. `per_second`: maximum rate, at most 500 messages per second. `None`: SQS chooses the rate. Passes
/// the counts so far to `progress`.
///
/// # Errors
/// [`QueueError`]: the task failed, or could not be started, followed or cancelled. SQS refuses to start a task if
/// `from` is not a dead-letter queue, or if another task is already moving messages out of it.
pub(super) async fn redrive(
    service: &Service,
    from: &Channel,
    to: &Channel,
    per_second: Option<u32>,
    stop: &CancellationToken,
    progress: &mut (dyn FnMut(Redriven) + Send),
) -> Result<Redriven, QueueError> {
    if let Some(rate) = per_second.filter(|rate| *rate > MAX_PER_SECOND) {
        let text = format!("SQS moves at most {MAX_PER_SECOND} messages a second at a given rate, not {rate}");
        return Err(QueueError::Refused(text));
    }
    let (source, destination) = (arn(service, from).await?, arn(service, to).await?);
    let earlier = latest(service, &source).await?.map_or(0, |task| task.started_timestamp);
    let handle = start(service, &source, &destination, per_second).await?;
    let ours = |task: &Task| task.task_handle.as_ref() == Some(&handle) || task.started_timestamp > earlier;
    let (mut blind, mut cancelling) = (0, false);
    loop {
        match latest(service, &source).await {
            Ok(Some(task)) if ours(&task) => {
                blind = 0;
                match standing(&task) {
                    Standing::Runs(redriven) => progress(redriven),
                    Standing::Over(redriven) => return Ok(redriven),
                    Standing::Failed(reason) => return Err(QueueError::Refused(reason)),
                }
            }
            Err(error @ QueueError::Refused(_)) => return Err(error),
            Err(error) if blind >= BLIND_LOOKS => return Err(error),
            Ok(_) if blind >= BLIND_LOOKS => {
                return Err(QueueError::Unavailable(format!(
                    "ListMessageMoveTasks of {source}: our task is not there"
                )));
            }
            Ok(_) | Err(_) => blind += 1,
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            () = stop.cancelled(), if !cancelling => {
                cancelling = true;
                cancel(service, &handle).await?;
            }
        }
    }
}

/// State of a task.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Runs(Redriven),
    Over(Redriven),
    Failed(String),
}

fn standing(task: &Task) -> Standing {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let redriven = Redriven {
        moved: count(task.approximate_number_of_messages_moved),
        total: task.approximate_number_of_messages_to_move.map(count),
        cancelled: false,
    };
    match task.status() {
        Some("COMPLETED") => Standing::Over(redriven),
        Some("CANCELLED") => Standing::Over(Redriven { cancelled: true, ..redriven }),
        Some("FAILED") => {
            let reason = task.failure_reason().unwrap_or("SQS gives no reason");
            Standing::Failed(format!("SQS's move task failed after {} messages: {reason}", redriven.moved))
        }
        // RUNNING, CANCELLING, and states that AWS may add.
        _ => Standing::Runs(redriven),
    }
}

async fn arn(service: &Service, channel: &Channel) -> Result<String, QueueError> {
    let found = service.find_queue_of_either_kind(channel.queue()).await?;
    let place = found.ok_or_else(|| service.no_queue(channel.queue(), false))?;
    let asked = service.clients.sqs.get_queue_attributes().queue_url(&*place.address);
    let asked = asked.attribute_names(QueueAttributeName::QueueArn).send().await;
    let answer = asked.map_err(|error| Fault::of(&format!("GetQueueAttributes of {}", place.name), &error))?;
    let arn = answer.attributes.and_then(|mut attributes| attributes.remove(&QueueAttributeName::QueueArn));
    arn.ok_or_else(|| QueueError::Refused(format!("GetQueueAttributes of {}: no QueueArn in the answer", place.name)))
}

async fn start(
    service: &Service,
    source: &str,
    destination: &str,
    per_second: Option<u32>,
) -> Result<String, QueueError> {
    let rate = per_second.and_then(|rate| i32::try_from(rate).ok());
    let task = service.clients.sqs.start_message_move_task().source_arn(source).destination_arn(destination);
    let started = task.set_max_number_of_messages_per_second(rate).send().await;
    let started = started.map_err(|error| Fault::of(&format!("StartMessageMoveTask from {source}"), &error))?;
    Ok(started.task_handle.unwrap_or_default())
}

/// Returns the most recent move task for the queue with the ARN `source`. `None`: the queue has no such task.
async fn latest(service: &Service, source: &str) -> Result<Option<Task>, QueueError> {
    let listed = service.clients.sqs.list_message_move_tasks().source_arn(source).max_results(1).send().await;
    let listed = listed.map_err(|error| Fault::of(&format!("ListMessageMoveTasks of {source}"), &error))?;
    Ok(listed.results.unwrap_or_default().into_iter().next())
}

/// Cancels the task. It is not an error if the task has already ended.
async fn cancel(service: &Service, handle: &str) -> Result<(), QueueError> {
    let cancelled = service.clients.sqs.cancel_message_move_task().task_handle(handle).send().await;
    match cancelled.map_err(|error| Fault::of("CancelMessageMoveTask", &error)) {
        Err(fault) if !fault.is_missing() => Err(fault.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(status: &str) -> Task {
        Task::builder()
            .status(status)
            .approximate_number_of_messages_moved(3)
            .approximate_number_of_messages_to_move(7)
            .build()
    }

    #[test]
    fn a_task_runs_until_it_says_that_it_is_over() {
        let so_far = Redriven { moved: 3, total: Some(7), cancelled: false };
        for status in ["RUNNING", "CANCELLING", "PAUSED"] {
            assert_eq!(standing(&task(status)), Standing::Runs(so_far), "{status}");
        }
        assert_eq!(standing(&task("COMPLETED")), Standing::Over(so_far));
        assert_eq!(standing(&task("CANCELLED")), Standing::Over(Redriven { cancelled: true, ..so_far }));
        let mut failed = task("FAILED");
        failed.failure_reason = Some("AccessDenied".into());
        let text = "SQS's move task failed after 3 messages: AccessDenied";
        assert_eq!(standing(&failed), Standing::Failed(text.into()));
    }
}
