//! Wakes receives that wait: for messages of this process at once, for those of others by notifications.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hostler_postgres::{Database, Type};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

/// Channel of the notifications. The payload is the name of a queue.
pub(super) const CHANNEL: &str = "hostler_queue";

/// Shortest time between two notifications of this process for a queue.
const APART: Duration = Duration::from_millis(100);

/// Longest time until the next attempt to listen.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Time until the next attempt if the server delivers no notifications.
const RETRY: Duration = Duration::from_secs(300);

/// The receives that wait, and the notifications that were sent.
#[derive(Default)]
pub(super) struct Wakes {
    waiting: Mutex<HashMap<String, Weak<Notify>>>,
    sent: Mutex<HashMap<String, Instant>>,
}

impl Wakes {
    /// Returns the bell of a queue.
    pub(super) fn bell(&self, queue: &str) -> Arc<Notify> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = waiting.get(queue).and_then(Weak::upgrade) {
            return bell;
        }
        waiting.retain(|_, bell| bell.strong_count() > 0);
        let bell = Arc::new(Notify::new());
        waiting.insert(queue.to_owned(), Arc::downgrade(&bell));
        bell
    }

    /// Wakes the receives of this process that wait for a queue.
    pub(super) fn ring(&self, queue: &str) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = waiting.get(queue).and_then(Weak::upgrade) {
            bell.notify_waiters();
        }
    }

    /// Returns `true` if the receives of other processes should be notified now: at most each 100 ms. In between, they poll.
    pub(super) fn should_notify(&self, queue: &str, now: Instant) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.get(queue).is_some_and(|last| now.duration_since(*last) < APART) {
            return false;
        }
        sent.retain(|_, last| now.duration_since(*last) < APART);
        sent.insert(queue.to_owned(), now);
        true
    }

    fn ring_all(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.values().filter_map(Weak::upgrade).for_each(|bell| bell.notify_waiters());
    }
}

/// Listens to the notifications of other processes, on a connection outside of the pool, until dropped.
pub(super) struct Listener {
    _task: JoinSet<()>,
}

impl Listener {
    /// Starts to listen. Receives also poll, so nothing fails if the server lets nobody listen.
    pub(super) fn start(database: Database, wakes: Arc<Wakes>) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut pause = Duration::from_secs(1);
            loop {
                let begun = Instant::now();
                if !listen(&database, &wakes).await {
                    // pgbouncer in transaction mode takes LISTEN, and delivers nothing.
                    debug!("the server delivers no notifications, so receives only poll");
                    tokio::time::sleep(RETRY).await;
                }
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = Duration::from_secs(1);
                }
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        Self { _task: task }
    }
}

/// Listens until the connection ends. Returns `false` if no notification arrives on it.
async fn listen(database: &Database, wakes: &Wakes) -> bool {
    let Ok((client, mut notes)) = database.direct().await else { return true };
    let listening = tokio::time::timeout(database.deadline(), client.batch_execute("LISTEN hostler_queue")).await;
    if !matches!(listening, Ok(Ok(()))) {
        return true;
    }
    // A notification to itself shows that they arrive.
    let probe = format!("\n{:016x}", fastrand::u64(..));
    let Ok(sender) = database.client().await else { return true };
    if sender.execute("SELECT pg_notify($1, $2)", &[(&CHANNEL, Type::TEXT), (&probe, Type::TEXT)]).await.is_err() {
        return true;
    }
    drop(sender);
    let arrives = async {
        while let Some(note) = notes.recv().await {
            wakes.ring(&note.payload);
            if note.payload == probe {
                break;
            }
        }
    };
    if tokio::time::timeout(database.deadline(), arrives).await.is_err() {
        let _ = tokio::time::timeout(database.deadline(), client.batch_execute("UNLISTEN *")).await;
        return false;
    }
    // Messages may have come while nobody listened.
    wakes.ring_all();
    while let Some(note) = notes.recv().await {
        wakes.ring(&note.payload);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn notifications_of_a_queue_are_apart() {
        let wakes = Wakes::default();
        assert!(wakes.should_notify("a", Instant::now()));
        assert!(!wakes.should_notify("a", Instant::now()));
        assert!(wakes.should_notify("b", Instant::now()));
        tokio::time::advance(APART).await;
        assert!(wakes.should_notify("a", Instant::now()));
    }

    #[tokio::test]
    async fn a_ring_wakes_those_who_wait() {
        let wakes = Wakes::default();
        let bell = wakes.bell("a");
        let mut waiting = std::pin::pin!(bell.notified());
        waiting.as_mut().enable();
        wakes.ring("b");
        wakes.ring("a");
        waiting.await;
    }
}
