//! World of the processes in a run: a queue, with all its faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hostler_health::ConsumerReport;
use hostler_queue::{ChannelSpec, Provisioner, Queue, Records};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::scenario::{Denied, Planned};
use super::system::{Board, Operator};

/// Link between a process and its world.
#[derive(Clone, Default)]
pub struct Line {
    /// Number of the process.
    pub life: usize,
    /// Cancelled when the process is killed.
    dead: CancellationToken,
    /// Receives the function that reports the state of the consumer.
    pub board: Arc<Mutex<Option<Board>>>,
    /// Gets what asks its consumer for an operator.
    pub operator: Arc<Mutex<Option<Operator>>>,
}

impl Line {
    pub fn new(life: usize) -> Self {
        Self { life, ..Self::default() }
    }

    /// Returns the health report of the consumer.
    pub fn shown(&self) -> Option<ConsumerReport> {
        self.board.lock().unwrap().as_ref().map(|board| board().0)
    }

    /// Asks its consumer for an operator; `None`: the process was killed, or has not begun.
    pub fn asked<T>(&self, ask: impl FnOnce(&Operator) -> T) -> Option<T> {
        self.operator.lock().unwrap().as_ref().filter(|_| !self.is_dead()).map(ask)
    }

    /// Returns true after the process was killed.
    pub fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Returns when the process is killed.
    pub async fn death(&self) {
        self.dead.cancelled().await;
    }

    /// Kills the process. Later calls of the process have no effect.
    pub fn cut(&self) {
        self.dead.cancel();
    }
}

/// Returns when the condition is true. The condition is evaluated after every change.
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

/// Resources that a process gets from its world.
pub struct Opened {
    pub broker: Arc<dyn Provisioner>,
    pub queue: Arc<dyn Queue>,
    /// Store of idempotency records. `None`: the consumer has no idempotency.
    pub records: Option<Arc<dyn Records>>,
}

/// A world.
#[async_trait]
pub trait Site: Send + Sync {
    /// Connects a process that starts.
    async fn open(&self, line: &Line, spec: &ChannelSpec) -> Opened;

    /// Accepts a message.
    async fn put(&self, message: &Planned);

    /// Fails for this duration.
    fn fail_for(&self, outage: Duration);

    /// Refuses calls of this kind for this duration.
    fn deny(&self, denied: Denied, denial: Duration) {
        let _ = (denied, denial);
    }

    /// Loses the connection of the process.
    fn cut(&self) {}

    /// Returns the number of messages that the service has sent ahead to a process. `None`: the process receives or is about to rest,
    /// or the service sends nothing ahead.
    fn sent_ahead(&self, life: usize) -> Option<usize> {
        let _ = life;
        None
    }

    /// Changes the wall clock by this number of seconds.
    fn set_clock(&self, by: i64) {
        let _ = by;
    }

    /// Reboots the machine. All its processes have ended.
    async fn boot(&self) {}

    /// Returns when `count` messages have been sent and none is left.
    async fn until_empty(&self, count: usize);
}
