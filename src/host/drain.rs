//! The drain of a host: the end of all its consumers within `shutdown_grace`.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use hostler_consumer::{Phase, Summary};

/// Length of the last part of `shutdown_grace`, which is reserved for settling. The part is shorter if this time
/// exceeds a fifth of `shutdown_grace`. When the part begins, hostler stops the handlers that still run, and then
/// settles their messages.
const SETTLING: Duration = Duration::from_secs(2);

/// Returns the time from the start of a drain until the host stops the handlers that still run.
pub(super) fn until_stop(grace: Duration) -> Duration {
    grace - SETTLING.min(grace / 5)
}

/// Drains the consumers. Shortly before the end of `shutdown_grace`, stops the handlers that still run, to leave time to release
/// their messages. Returns the total counts and two flags. The first flag is true if all consumers ended within
/// `shutdown_grace`. The second flag is true if a consumer panicked.
pub(super) async fn drain(
    running: &mut JoinSet<Summary>,
    phase: &watch::Sender<Phase>,
    grace: Duration,
) -> (Summary, bool, bool) {
    let end = Instant::now() + grace;
    let stop_at = Instant::now() + until_stop(grace);
    let mut total = Summary::default();
    let mut panicked = false;
    phase.send_replace(Phase::Draining);
    let all = async {
        loop {
            tokio::select! {
                ended = running.join_next() => match ended {
                    Some(ended) => panicked |= report(ended, &mut total),
                    None => break,
                },
                () = sleep_until(stop_at), if *phase.borrow() < Phase::Deadline => {
                    phase.send_replace(Phase::Deadline);
                }
            }
        }
    };
    let in_time = timeout_at(end, all).await.is_ok();
    (total, in_time, panicked)
}

/// Adds the counts of an ended consumer to the total. Returns true if the consumer panicked.
pub(super) fn report(ended: Result<Summary, JoinError>, total: &mut Summary) -> bool {
    match ended {
        Ok(summary) => {
            total.processed += summary.processed;
            total.failed += summary.failed;
            total.late += summary.late;
            total.abandoned += summary.abandoned;
            total.refused = total.refused.take().or(summary.refused);
            false
        }
        Err(error) => {
            tracing::error!(%error, "a consumer failed: this is a bug in hostler, please report it");
            true
        }
    }
}
