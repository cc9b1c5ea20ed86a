//! The periodic transactions: any number of processes may run them on one database.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::store::{Store, StoreError};

/// The period of folding counters.
const FOLD: Duration = Duration::from_millis(50);
/// The period of making items ready whose time has come.
const PROMOTE: Duration = Duration::from_millis(200);
/// The period of making partitions and reaping.
const REAP: Duration = Duration::from_secs(60);
/// The period of looking for stuck jobs and keys.
const UNSTICK: Duration = Duration::from_secs(60);
/// A sweep that takes long waits so many times as long before the next, so that it takes a small part of the database's time.
const REST: u32 = 9;
/// The longest wait after a sweep that took long or failed.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Runs all sweeps at their periods until cancelled. A sweep that fails is logged and tried again; a database that does not answer is
/// logged once, and not by each sweep. `wake` is called after those that
/// made items ready.
pub async fn run(store: Store, wake: impl Fn(), cancel: CancellationToken) {
    let (fold, promote, expire, reap, unstick) =
        (store.clone(), store.clone(), store.clone(), store.clone(), store.clone());
    let expiry = store.expiry_period();
    tokio::join!(
        repeat("fold", FOLD, &store, &cancel, || fold.fold()),
        repeat("promote", PROMOTE, &store, &cancel, || waking(promote.promote(), &wake)),
        repeat("expire", expiry, &store, &cancel, || waking(expire.expire(), &wake)),
        repeat("unstick", UNSTICK, &store, &cancel, || waking(unstick.unstick(), &wake)),
        repeat("reap", REAP, &store, &cancel, || async {
            let (made, reaped) = (reap.partitions().await, reap.reap().await);
            made.and(reaped)
        }),
    );
}

async fn repeat<F>(
    name: &'static str,
    period: Duration,
    store: &Store,
    cancel: &CancellationToken,
    sweep: impl Fn() -> F,
) where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut failing = false;
    store.note_sweep(name);
    loop {
        let begun = Instant::now();
        let swept = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            swept = sweep() => swept,
        };
        let mut pause = period.max((begun.elapsed() * REST).min(LONGEST_REST));
        match swept {
            Ok(_) => {
                store.note_sweep(name);
                store.note_answer();
                if std::mem::take(&mut failing) {
                    tracing::info!(sweep = name, "sweep works again");
                }
            }
            Err(error) => {
                pause = pause.max(Duration::from_secs(1));
                if store.is_silent(&error).await {
                    store.note_silence(&error);
                } else if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(sweep = name, %error, "sweep failed; trying again");
                }
            }
        }
        wait(pause, cancel).await;
    }
}

/// Calls `wake` after a sweep that found something.
async fn waking(sweep: impl Future<Output = Result<u64, StoreError>>, wake: &impl Fn()) -> Result<u64, StoreError> {
    let found = sweep.await?;
    if found > 0 {
        wake();
    }
    Ok(found)
}

async fn wait(pause: Duration, cancel: &CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}
