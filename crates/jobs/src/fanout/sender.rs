//! The way from the outbox to the broker. Nobody waits for it: a broker that is down, blocked or slow only fills the outbox.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::fanout::broker::{BrokerError, Line};
use crate::fanout::state::{FanoutState, Part};
use crate::fanout::{RabbitMq, Ties};
use crate::store::{Hint, Store, StoreError};

/// Maximum number of ids in a batch.
const BATCH: i32 = 1_000;

/// Time for which an instance has the entries of a batch. Longer than publishing takes.
const LEASE: Duration = Duration::from_secs(30);

/// Interval of looks into the outbox, for commits of other instances.
const POLL: Duration = Duration::from_millis(250);

/// Interval of looks at the size of the outbox.
const KEEP: Duration = Duration::from_secs(1);

/// Time for which the outbox is written without an instance that looks at its size.
const GATE: Duration = Duration::from_secs(60);

/// First and longest wait before the connection is made again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Wait after a refusal, which an operator has to end.
const REFUSED: Duration = Duration::from_secs(10);

/// The reason that a batch was not sent.
enum Fault {
    Store(StoreError),
    Broker(BrokerError),
}

/// Keeps the outbox open as long as it is not full, and searches for lost messages. Never returns.
pub(super) async fn keep(store: &Store, settings: &RabbitMq, state: &FanoutState) {
    let (mut searched_at, mut was_open) = (Instant::now(), true);
    loop {
        match store.keep_outbox(settings.most, GATE).await {
            Ok(outbox) => {
                state.set_outbox(outbox.entries);
                if was_open && !outbox.is_open {
                    tracing::warn!(
                        entries = outbox.entries,
                        "the outbox of the fan-out is full; later ids come by searches"
                    );
                }
                was_open = outbox.is_open;
            }
            Err(error) => tracing::debug!(%error, "the outbox of the fan-out cannot be looked at"),
        }
        if searched_at.elapsed() >= settings.search {
            searched_at = Instant::now();
            match store.search_lost_hints(settings.search, settings.most).await {
                Ok(found) => state.add_searched(found),
                Err(error) => tracing::debug!(%error, "lost messages of the fan-out cannot be searched for"),
            }
        }
        sleep(KEEP.min(settings.search)).await;
    }
}

/// Publishes the entries of the outbox. Never returns.
pub(super) async fn send(store: &Store, settings: &RabbitMq, ties: &Ties) {
    let mut wait = RETRY.0;
    let mut committed = ties.committed.clone();
    loop {
        let published = ties.state.counts().published;
        let error = match settings.broker.connect().await {
            Ok(line) => work(store, line, &ties.state, &mut committed).await,
            Err(error) => error,
        };
        // A connection is no progress: the server may take it, and store nothing.
        wait = if ties.state.counts().published > published { RETRY.0 } else { (wait * 2).min(RETRY.1) };
        let pause = if matches!(error, BrokerError::Refused { .. }) { REFUSED } else { wait };
        ties.state.failed(Part::Broker, error.to_string());
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

/// Publishes through a connection until it fails.
async fn work(store: &Store, mut line: Line, state: &FanoutState, committed: &mut watch::Receiver<()>) -> BrokerError {
    loop {
        if let Some(error) = line.fault() {
            return error;
        }
        match batch(store, &mut line, state).await {
            Ok(may_be_more) => {
                state.works(Part::Broker);
                if may_be_more {
                    continue;
                }
            }
            Err(Fault::Broker(error)) => return error,
            Err(Fault::Store(error)) => tracing::debug!(%error, "the outbox of the fan-out cannot be read"),
        }
        // The sender of this channel lives as long as the instance.
        let _ = timeout(POLL, committed.changed()).await;
    }
}

/// Publishes a batch. Returns whether all of it was stored and there may be more.
async fn batch(store: &Store, line: &mut Line, state: &FanoutState) -> Result<bool, Fault> {
    let hints = store.take_hints(BATCH, LEASE).await.map_err(Fault::Store)?;
    if hints.is_empty() {
        return Ok(false);
    }
    let published = line.publish(&hints).await;
    let stored = published.as_deref().unwrap_or_default();
    state.add_published(stored.len());
    let rest = others(&hints, stored);
    let dropped = if stored.is_empty() { Ok(()) } else { store.drop_hints(stored).await };
    let returned = if rest.is_empty() { Ok(()) } else { store.return_hints(&rest).await };
    if let Err(error) = published {
        return Err(Fault::Broker(error));
    }
    dropped.and(returned).map_err(Fault::Store)?;
    Ok(rest.is_empty())
}

/// Returns the numbers of the hints that are not in `stored`.
fn others(hints: &[Hint], stored: &[i64]) -> Vec<i64> {
    let stored: std::collections::HashSet<i64> = stored.iter().copied().collect();
    hints.iter().map(|hint| hint.id).filter(|id| !stored.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_stored_goes_back() {
        let hints = [1, 2, 3].map(|id| Hint { id, kind: "a".to_owned(), item: id.to_string() });
        assert_eq!(others(&hints, &[2]), [1, 3]);
        assert!(others(&hints, &[3, 2, 1]).is_empty());
    }
}
