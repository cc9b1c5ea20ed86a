//! A queue over the job service of hostler: items are received, leased and settled.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `shapes` | requests and answers of the service | none |
//! | `item` | messages out of items, and the handles of their leases | none |
//! | `buffers` | items and seals that handlers ask for | none |
//! | `reports` | results and failures out of settlements | none |
//! | `depths` | counts of items out of the service's metrics | none |
//! | `client` | requests with deadlines, and the state of the connection | service |
//! | `queue` | the queue of one type of jobs | through `client` |

mod buffers;
mod client;
mod depths;
mod item;
mod queue;
mod reports;
#[cfg(test)]
mod scripted;
mod shapes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{Broker, ChannelSpec, Depth, Link, Origin, Queue, QueueError, SendError, Sent};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::sync::watch;

use client::Client;
use queue::JobQueue;

pub use item::{JOB_ID, JOB_TYPE, METADATA, ROOT_ID};

/// Value of `messaging.system`.
pub const SYSTEM: &str = "hostler-jobs";

/// Longest wait for an answer that needs no work of the service.
const PATIENCE: Duration = Duration::from_secs(10);

/// Address of a job service, and the right to use it.
#[derive(Clone)]
pub struct Options {
    /// URL of the service, such as `https://jobs.example.com`.
    pub url: String,
    /// Token with the role of a worker. `None`: the service asks for none.
    pub token: Option<String>,
}

/// A job service, for its workers.
pub struct JobService(Arc<Client>);

impl JobService {
    /// Connects: asks the service whether it can work, and whether it takes the token.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: the URL or the token is not valid. [`QueueError::Unavailable`]: the service cannot be reached,
    /// or cannot work now.
    pub async fn connect(options: &Options) -> Result<Self, QueueError> {
        let client = Client::new(options)?;
        client.get("/readyz", PATIENCE).await.map_err(QueueError::from)?;
        let nothing = shapes::body(&shapes::Ids { assignment_ids: Vec::new() });
        client.post::<shapes::Stale>("/heartbeat", nothing, PATIENCE).await.map_err(QueueError::from)?;
        Ok(Self(Arc::new(client)))
    }

    /// Returns the queue of the items whose jobs have this type. `worker`: name of the worker in the service, 1 to 200 bytes.
    pub fn queue(&self, kind: &str, worker: &str) -> Arc<dyn Queue> {
        Arc::new(JobQueue::new(Arc::clone(&self.0), kind, worker))
    }

    /// Counts the items whose jobs have this type. Items that failed for good are not counted, nor are those behind an older
    /// one of their serialize key.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached, refuses the token, or cannot count now.
    pub async fn depth(&self, kind: &str) -> Result<Depth, QueueError> {
        let text = self.0.get("/metrics", PATIENCE).await.map_err(QueueError::from)?;
        depths::depth(&text, kind)
            .ok_or_else(|| QueueError::Unavailable("the job service cannot count its items now".to_owned()))
    }
}

/// The service of a host whose consumers all process jobs. Nothing can be sent: items are added over the service's HTTP API.
#[async_trait]
impl Broker for JobService {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let text = format!("the job service has no channel `{}`: set `job` to receive the items of jobs", spec.channel);
        Err(QueueError::Refused(text))
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let refused = |_| {
            let text = format!("cannot send to `{channel}`: the job service has no channels");
            Err(QueueError::Refused(text).into())
        };
        batch.into_iter().map(refused).collect()
    }

    fn origin(&self, _: &Channel) -> Origin {
        Origin { system: SYSTEM, address: Some(self.0.address().into()) }
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.0.link()
    }
}
