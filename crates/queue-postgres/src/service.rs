//! All that the queues of a broker share: the database, the names, and the state of the connection.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hostler_postgres::{Database, DatabaseError};
use hostler_queue::{Link, Origin, QueueError};
use hostler_types::channel::Channel;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::faults::to_queue_error;
use super::options::{Options, SYSTEM};
use super::wake::{Listener, Wakes};

/// Longest pause between two attempts to reach a server that was lost.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// All that the queues of a broker share.
pub(super) struct Service {
    pub(super) database: Database,
    pub(super) options: Options,
    pub(super) wakes: Arc<Wakes>,
    link: watch::Sender<Link>,
    /// Asks a lost server until it answers.
    checks: Mutex<JoinSet<()>>,
    listener: OnceLock<Listener>,
    /// Time of the last removal of old deduplication keys.
    pub(super) swept: Mutex<Option<Instant>>,
}

impl Service {
    pub(super) fn new(database: Database, options: Options) -> Self {
        Self {
            database,
            options,
            wakes: Arc::default(),
            link: watch::Sender::new(Link::Up),
            checks: Mutex::default(),
            listener: OnceLock::new(),
            swept: Mutex::default(),
        }
    }

    /// Returns the name of a queue or an exchange in the database.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.options.prefix)
    }

    pub(super) fn origin(&self, channel: &Channel) -> Origin {
        let name = self.full(channel.exchange().unwrap_or(channel.queue()));
        Origin { system: SYSTEM, address: Some(format!("postgres://{}#{name}", self.database.place()).into()) }
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Listens to notifications from now on.
    pub(super) fn listen(&self) {
        self.listener.get_or_init(|| Listener::start(self.database.clone(), Arc::clone(&self.wakes)));
    }

    /// Awaits a call, and notes what it tells about the connection.
    pub(super) async fn run<T>(&self, call: impl Future<Output = Result<T, DatabaseError>>) -> Result<T, QueueError> {
        let answer = call.await;
        self.note(answer.as_ref().err());
        answer.map_err(|error| to_queue_error(&error))
    }

    /// Notes what the end of a call tells about the connection. `None`: the call succeeded.
    pub(super) fn note(&self, error: Option<&DatabaseError>) {
        match error {
            Some(error) if is_of_the_link(error) => self.down(error.to_string()),
            _ => self.up(),
        }
    }

    fn up(&self) {
        self.link.send_if_modified(|link| std::mem::replace(link, Link::Up) != Link::Up);
    }

    fn down(&self, why: String) {
        let is_new = self.link.send_if_modified(|link| {
            let is_new = !matches!(link, Link::Down { .. });
            if is_new {
                *link = Link::Down { since: Instant::now(), why };
            }
            is_new
        });
        if is_new {
            let (database, link) = (self.database.clone(), self.link.clone());
            let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
            checks.abort_all();
            checks.spawn(until_up(database, link));
        }
    }
}

/// Returns `true` if an error tells that the server cannot be reached.
fn is_of_the_link(error: &DatabaseError) -> bool {
    matches!(error, DatabaseError::Unreachable { .. } | DatabaseError::Deadline | DatabaseError::UnknownFate)
}

/// Asks the server until it answers, because nobody else may ask it: a producer may have nothing to send.
async fn until_up(database: Database, link: watch::Sender<Link>) {
    let mut pause = Duration::from_millis(200);
    while matches!(*link.borrow(), Link::Down { .. }) {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let asked = async { database.client().await?.execute("SELECT 1", &[]).await };
        if !asked.await.is_err_and(|error| is_of_the_link(&error)) {
            link.send_if_modified(|link| std::mem::replace(link, Link::Up) != Link::Up);
        }
    }
}
