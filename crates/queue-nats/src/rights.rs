//! Permissions that receiving needs, tried without taking a message.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use hostler_queue::{Finding, QueueError, SubjectSpec};
use tokio::time::{Instant, timeout};

use super::acks::PROGRESS;
use super::line::{Line, PATIENCE, Unanswered};
use super::pulls;
use super::stamp::Stamp;
use super::subjects::{MORE_THAN_SERVERS_COUNT, again_after};

/// Body that is not a request for messages. The server refuses it, and sends none.
const NO_REQUEST: &str = "?";

/// Delivery of no message: the numbers of messages begin with 1.
const NO_DELIVERY: Stamp = Stamp { sequence: 0, deliveries: 1, stored_at: 0 };

/// Wait for the server's errors, which the client passes on by a task of its own.
const ERRORS: Duration = Duration::from_millis(100);

/// Returns the faults of a user who receives from a consumer of a stream.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn of_consumer(line: &Line, stream: &str, consumer: &str) -> Result<Vec<Finding>, QueueError> {
    let next = (pulls::subject(stream, consumer), NO_REQUEST, "$JS.API.CONSUMER.MSG.NEXT.>");
    let ack = (NO_DELIVERY.reply(stream, consumer, 0), PROGRESS, "$JS.ACK.>");
    let what = || format!("try to receive from {stream}");
    let tried = [next, ack];
    let mut watch = line.watch();
    for (subject, body, _) in &tried {
        let sent = line.client.publish(subject.clone(), (*body).into()).await;
        sent.map_err(|error| Unanswered::Failed(error.to_string()).of(&what()))?;
    }
    line.prove(PATIENCE).await.map_err(|error| error.of(&what()))?;
    let mut findings = Vec::new();
    for (subject, _, all) in &tried {
        match timeout(ERRORS, watch.fault(&[subject])).await {
            Ok(Unanswered::Denied(why)) => findings.push(Finding {
                fault: format!("the user may not receive from {stream}: {why}"),
                cure: format!("let the user publish to `{all}`"),
                fatal: true,
            }),
            Ok(fault) => return Err(fault.of(&what())),
            Err(_) => {}
        }
    }
    Ok(findings)
}

/// Returns the fault of a user who may not listen on a subject.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn of_subject(line: &Line, spec: &SubjectSpec) -> Result<Option<Finding>, QueueError> {
    let what = || format!("listen on `{}`", spec.subject);
    let inbox = line.client.new_inbox();
    let subject = quiet(&spec.subject, inbox.rsplit('.').next().unwrap_or(&inbox));
    line.up(Instant::now() + PATIENCE).await?;
    let mut watch = line.watch();
    let lost = |error: String| Unanswered::Failed(error).of(&what());
    let subscribed = line.client.queue_subscribe(subject.clone(), spec.queue_group.clone()).await;
    let mut requests = subscribed.map_err(|error| lost(error.to_string()))?;
    // The server reads both at once, so hardly a request comes in between.
    let ended = requests.unsubscribe_after(MORE_THAN_SERVERS_COUNT).await;
    ended.map_err(|error| lost(error.to_string()))?;
    line.prove(PATIENCE).await.map_err(|error| error.of(&what()))?;
    while let Some(Some(request)) = requests.next().now_or_never() {
        if let Some(reply) = request.reply {
            let sent = line.client.publish(reply, again_after(Duration::ZERO).into()).await;
            sent.map_err(|error| lost(error.to_string()))?;
        }
    }
    match timeout(ERRORS, watch.fault(&[&subject])).await {
        Ok(Unanswered::Denied(why)) => Ok(Some(Finding {
            fault: format!("the user may not listen on `{}`: {why}", spec.subject),
            cure: format!("let the user subscribe to `{}` in the queue group `{}`", spec.subject, spec.queue_group),
            fatal: true,
        })),
        Ok(fault) => Err(fault.of(&what())),
        Err(_) => Ok(None),
    }
}

/// Returns a subject of a pattern to which nobody sends, unless the pattern is a subject itself.
fn quiet(pattern: &str, unique: &str) -> String {
    let part = |part| if matches!(part, "*" | ">") { unique } else { part };
    pattern.split('.').map(part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_tried_where_nobody_sends() {
        let quiet = ["hooks.*", "hooks.>", "*.a.*", ">", "hooks.a", "a*"].map(|pattern| quiet(pattern, "u"));
        assert_eq!(quiet, ["hooks.u", "hooks.u", "u.a.u", "u", "hooks.a", "a*"]);
    }
}
