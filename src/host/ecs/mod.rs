//! Integration with ECS: metadata of the task, and its protection from scale-in.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `agent` | the agent's endpoints as calls with typed answers | HTTP |
//! | `protection` | decides when to start and end the task's protection from scale-in | none |
//! | `guard` | the task that carries out the decisions of `protection` | through `agent` |
//! | `metadata` | interprets the metadata documents | none |
//!
//! Outside ECS the environment has no addresses of an agent, so none of this does anything.

mod agent;
mod guard;
mod metadata;
mod protection;

pub(super) use guard::Guard;
pub use metadata::Metadata;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use agent::{Endpoint, Fault};
use hostler_config::{Config, LogFormat, TaskProtection};
use hostler_consumer::StatusHandle;
use hostler_telemetry as telemetry;

/// The longest that a call on protection may take: the agent itself stops writing an answer after this time (amazon-ecs-agent,
/// `agent/handlers/task_server_setup.go`).
const PROTECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that the start waits for the metadata.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest that one attempt may take: the endpoint can be slow while the task starts.
const METADATA_TRY: Duration = Duration::from_millis(900);

/// The pause after the first failed attempt; doubles with each.
const METADATA_PAUSE: Duration = Duration::from_millis(100);

/// The agent's addresses, as ECS puts them into the environment of its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ecs {
    /// `ECS_AGENT_URI`.
    agent: Option<String>,
    /// `ECS_CONTAINER_METADATA_URI_V4`.
    metadata: Option<String>,
}

impl Ecs {
    /// Reads the addresses from an environment.
    pub(super) fn from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let address = |name: &str| variable(name).filter(|address| !address.is_empty());
        Self { agent: address("ECS_AGENT_URI"), metadata: address("ECS_CONTAINER_METADATA_URI_V4") }
    }

    /// Reads the metadata, and logs the description of this process. Takes at most two seconds; logs a failure as one warning.
    pub(super) async fn metadata(&self, log: LogFormat) -> Option<Metadata> {
        let base = self.metadata.as_deref()?;
        let mut fault = None;
        let metadata = timeout(METADATA_TIMEOUT, read_metadata(base, &mut fault)).await.ok();
        match &metadata {
            None => {
                let fault = fault.map(|fault| fault.to_string());
                let fault = fault.as_deref().unwrap_or("no answer");
                tracing::warn!(fault, "cannot read the task metadata; logs do not tell the task");
            }
            Some(Metadata { resource, .. }) => {
                telemetry::describe(resource.clone());
                match (log, serde_json::to_string(resource)) {
                    (LogFormat::Text, Ok(resource)) => tracing::info!(resource, "runs in an ECS task"),
                    // Each line carries the resource already.
                    (LogFormat::Json, _) | (_, Err(_)) => tracing::info!("runs in an ECS task"),
                }
            }
        }
        metadata
    }

    /// Keeps the task protected while the consumers of these boards have work, if the config allows it. `work` is notified when a
    /// board may have become busy or idle.
    pub(super) fn protect(&self, config: &Config, boards: &[StatusHandle], work: &Arc<Notify>) -> Option<Guard> {
        let base = self.agent.as_deref().filter(|_| config.host.task_protection == TaskProtection::Auto)?;
        match Endpoint::new(base, PROTECTION_TIMEOUT) {
            Ok(agent) => {
                Some(Guard::start(agent, protection::minutes(longest(config)), boards.to_vec(), Arc::clone(work)))
            }
            Err(fault) => {
                tracing::warn!(%fault, "no scale-in protection");
                None
            }
        }
    }
}

/// Returns the longest time that a message can be in hand: its processing, another lease for its settlement, and the drain.
fn longest(config: &Config) -> Duration {
    let spans = config.consumers.iter().map(|consumer| consumer.processing_timeout.saturating_add(consumer.lease));
    spans.max().unwrap_or_default().saturating_add(config.host.shutdown_grace)
}

/// Retries until it succeeds; keeps the last fault in `last`.
async fn read_metadata(base: &str, last: &mut Option<Fault>) -> Metadata {
    let mut pause = METADATA_PAUSE;
    loop {
        match try_metadata(base).await {
            Ok(metadata) => return metadata,
            Err(fault) => *last = Some(fault),
        }
        sleep(pause).await;
        pause *= 2;
    }
}

async fn try_metadata(base: &str) -> Result<Metadata, Fault> {
    let endpoint = Endpoint::new(base, METADATA_TRY)?;
    let (container, task) = tokio::try_join!(endpoint.get(""), endpoint.get("/task"))?;
    Ok(Metadata::read(&container, &task))
}
