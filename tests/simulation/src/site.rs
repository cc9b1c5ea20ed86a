//! What the processes of a run work on: a queue, with all that can go wrong around it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hostler_health::ConsumerReport;
use hostler_queue::{ChannelSpec, Provisioner, Queue};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::scenario::{Denied, Planned};
use super::system::Board;

/// What ties a process to its world.
#[derive(Clone, Default)]
pub struct Line {
    /// The number of the process.
    pub life: usize,
    /// Cancelled once the process was killed.
    dead: CancellationToken,
    /// Gets what tells how its consumer is.
    pub board: Arc<Mutex<Option<Board>>>,
}

impl Line {
    pub fn new(life: usize) -> Self {
        Self { life, ..Self::default() }
    }

    /// What the health file would say of its consumer.
    pub fn shown(&self) -> Option<ConsumerReport> {
        self.board.lock().unwrap().as_ref().map(|board| board().0)
    }

    /// Whether the process was killed.
    pub fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Returns once the process was killed.
    pub async fn death(&self) {
        self.dead.cancelled().await;
    }

    /// Kills it: nothing that it asks for is heard any more.
    pub fn cut(&self) {
        self.dead.cancel();
    }
}

/// Returns once this is so; it is looked at after every change.
pub async fn until(changed: &Notify, is_so: impl Fn() -> bool) {
    loop {
        let next = changed.notified();
        tokio::pin!(next);
        next.as_mut().enable();
        if is_so() {
            return;
        }
        next.await;
    }
}

/// What a process gets of its world.
pub struct Opened {
    pub broker: Arc<dyn Provisioner>,
    pub queue: Arc<dyn Queue>,
}

/// A world.
#[async_trait]
pub trait Site: Send + Sync {
    /// Connects a process that starts.
    async fn open(&self, line: &Line, spec: &ChannelSpec) -> Opened;

    /// Takes a message in.
    async fn put(&self, message: &Planned);

    /// Fails for so long.
    fn fail_for(&self, outage: Duration);

    /// Refuses calls of a kind for so long.
    fn deny(&self, denied: Denied, denial: Duration) {
        let _ = (denied, denial);
    }

    /// Sets the wall clock by so many seconds.
    fn set_clock(&self, by: i64) {
        let _ = by;
    }

    /// The machine starts anew; all of its processes are gone.
    async fn boot(&self) {}

    /// Returns once so many messages came and all of them are gone.
    async fn until_empty(&self, count: usize);
}
