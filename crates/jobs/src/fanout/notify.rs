//! Notifications of PostgreSQL between the instances, by one connection outside of the pool.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use hostler_postgres::Notifications;

use crate::fanout::Ties;
use crate::fanout::note::{self, Hinted};
use crate::fanout::state::Part;
use crate::store::{CHANNEL, Store};

/// Minimum time between two notifications of an instance.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum time until the notification of a test arrives.
const PROBE: Duration = Duration::from_secs(5);

/// First and longest wait before the connection is made again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Wait before another attempt where notifications do not arrive, as through pgbouncer in transaction mode.
const DEAF: Duration = Duration::from_secs(300);

/// The end of a connection.
enum End {
    /// It could not be made, or was lost.
    Lost(String),
    /// It is there, but notifications do not arrive.
    Deaf,
}

/// Sends and receives notifications. Never returns.
pub(super) async fn run(store: &Store, ties: &Ties) {
    let instance = format!("{:016x}", fastrand::u64(..));
    tokio::join!(send(store, ties, &instance), receive(store, ties, &instance));
}

/// Notifies the others after commits. A burst of commits is one notification.
async fn send(store: &Store, ties: &Ties, instance: &str) {
    let mut committed = ties.committed.clone();
    while committed.changed().await.is_ok() {
        match store.notify_ready(instance).await {
            Ok(true) => ties.state.add_notified(),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "the other instances are not notified"),
        }
        sleep(PAUSE).await;
    }
}

/// Wakes long polls by the notifications of others.
async fn receive(store: &Store, ties: &Ties, instance: &str) {
    let mut wait = RETRY.0;
    loop {
        let begun = Instant::now();
        let pause = match listen(store, ties, instance).await {
            End::Lost(reason) => {
                ties.state.failed(Part::Notifications, format!("notifications are not received: {reason}"));
                wait = if begun.elapsed() > RETRY.1 { RETRY.0 } else { (wait * 2).min(RETRY.1) };
                wait.mul_f64(0.5 + fastrand::f64() / 2.0)
            }
            End::Deaf => {
                let reason = "notifications do not arrive: a pooler in transaction mode may be between; let jobs.database lead to \
                              PostgreSQL itself, or write jobs.fanout = \"poll\"";
                ties.state.failed(Part::Notifications, reason.to_owned());
                DEAF
            }
        };
        sleep(pause).await;
    }
}

/// Listens until the connection ends.
async fn listen(store: &Store, ties: &Ties, instance: &str) -> End {
    let (client, mut notes) = match store.database().direct().await {
        Ok(connected) => connected,
        Err(error) => return End::Lost(error.to_string()),
    };
    let listening = timeout(store.database().deadline(), client.batch_execute(&format!("LISTEN {CHANNEL}"))).await;
    match listening {
        Ok(Ok(())) => {}
        // The text of the client has no password, and the server's message follows it.
        Ok(Err(error)) => return End::Lost(error.to_string()),
        Err(_) => return End::Lost("the database did not answer in time".to_owned()),
    }
    match arrives(store, &mut notes).await {
        Ok(true) => {}
        Ok(false) => return End::Deaf,
        Err(reason) => return End::Lost(reason),
    }
    ties.state.works(Part::Notifications);
    // Notifications before this moment were missed.
    (ties.wake)(None);
    while let Some(note) = notes.recv().await {
        match note::read(&note.payload, instance) {
            Hinted::All => (ties.wake)(None),
            Hinted::Types(types) => (ties.wake)(Some(&types)),
            Hinted::Nothing => {}
        }
    }
    End::Lost("the connection has ended".to_owned())
}

/// Finds out whether notifications arrive: a pooler in transaction mode takes a LISTEN, and then gives its connection to others.
async fn arrives(store: &Store, notes: &mut Notifications) -> Result<bool, String> {
    let probe = format!("probe-{:016x}", fastrand::u64(..));
    store.notify_probe(&probe).await.map_err(|error| error.to_string())?;
    let deadline = Instant::now() + PROBE;
    loop {
        match timeout_at(deadline, notes.recv()).await {
            Ok(Some(note)) if note.payload == probe => return Ok(true),
            Ok(Some(_)) => {}
            Ok(None) => return Err("the connection has ended".to_owned()),
            Err(_) => return Ok(false),
        }
    }
}
