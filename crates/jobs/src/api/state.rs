//! The state that all handlers share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::metrics::Metrics;
use crate::api::problem::Problem;
use crate::api::rate::{Buckets, Rate};
use crate::api::roles::{Access, Tokens};
use crate::api::waiting::Waiting;
use crate::fanout::state::FanoutState;
use crate::shards::Shards;

/// Maximum number of requests with bodies beyond 1 MiB that are under way at a time.
const LARGE_BODIES: usize = 8;

/// The limits of the API's callers.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// The tokens that are accepted. Without any, only local callers are let in.
    pub tokens: Tokens,
    /// The rate of each token; `None`: unlimited. Callers without a token share one bucket.
    pub token_rate: Option<Rate>,
    /// The rate of the whole instance; `None`: unlimited. Health checks are not counted.
    pub instance_rate: Option<Rate>,
}

/// The shared state. Clones are cheap.
#[derive(Clone)]
pub struct App(Arc<Shared>);

/// The parts of the shared state.
pub struct Shared {
    /// The jobs.
    pub store: Shards,
    /// Set if callbacks to channels can be sent.
    pub has_channels: bool,
    /// The tokens that are accepted.
    pub tokens: Tokens,
    /// One bucket for each token, and one for the callers without.
    pub token_rate: Buckets,
    /// The bucket of all.
    pub instance_rate: Buckets,
    /// The workers in long polls.
    pub waiting: Waiting,
    /// The state of the fan-out.
    pub fanout: FanoutState,
    /// The counters of requests.
    pub metrics: Metrics,
    /// Permits for requests with large bodies.
    pub large_bodies: Arc<Semaphore>,
    /// The last answer of the database to a readiness check, and its time.
    pub readiness: Mutex<Option<(Instant, Result<(), Problem>)>>,
    /// Cancelled when long polls must end.
    pub stopping: CancellationToken,
    /// Work that outlives its request.
    pub tasks: TaskTracker,
    /// The callers that each operation lets in, by route and method.
    pub access: HashMap<(String, String), Access>,
    /// The OpenAPI document as JSON.
    pub document: Bytes,
}

impl App {
    /// Creates the state of a server.
    pub fn new(
        store: Shards,
        limits: Limits,
        has_channels: bool,
        access: HashMap<(String, String), Access>,
        document: Bytes,
        stopping: CancellationToken,
    ) -> Self {
        let now = Instant::now();
        Self(Arc::new(Shared {
            store,
            has_channels,
            token_rate: Buckets::new(limits.token_rate, limits.tokens.len() + 1, now),
            instance_rate: Buckets::new(limits.instance_rate, 1, now),
            tokens: limits.tokens,
            waiting: Waiting::default(),
            fanout: FanoutState::default(),
            metrics: Metrics::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            readiness: Mutex::default(),
            stopping,
            tasks: TaskTracker::new(),
            access,
            document,
        }))
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
