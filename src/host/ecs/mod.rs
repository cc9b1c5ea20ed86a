//! Integration with ECS: task metadata and scale-in protection.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `agent` | the agent's endpoints as calls with typed answers | HTTP |
//! | `protection` | decides when to start and end the task's protection from scale-in | none |
//! | `guard` | the task that carries out the decisions of `protection` | through `agent` |
//! | `metadata` | interprets the metadata documents | none |
//!
//! Outside ECS, the environment contains no agent addresses, and the integration is inactive.

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

/// Maximum duration of a protection call. The agent itself gives up after this time (amazon-ecs-agent,
/// `agent/handlers/task_server_setup.go`).
const PROTECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time that startup waits for the metadata.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum duration of one attempt to read the metadata. The endpoint can be slow while the task starts.
const METADATA_TRY: Duration = Duration::from_millis(900);

/// Delay after the first failed attempt to read the metadata. The delay doubles with each further attempt.
const METADATA_PAUSE: Duration = Duration::from_millis(100);

/// Addresses of the agent, as ECS sets them in the environment of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ecs {
    /// Value of `ECS_AGENT_URI`.
    agent: Option<String>,
    /// Value of `ECS_CONTAINER_METADATA_URI_V4`.
    metadata: Option<String>,
}

impl Ecs {
    /// Reads the addresses from environment variables.
    pub(super) fn from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let address = |name: &str| variable(name).filter(|address| !address.is_empty());
        Self { agent: address("ECS_AGENT_URI"), metadata: address("ECS_CONTAINER_METADATA_URI_V4") }
    }

    /// Reads the metadata, and adds its attributes to the log. Takes at most two seconds. Logs one warning if reading fails.
    /// `None`: the process runs outside ECS, or reading failed.
    pub(super) async fn metadata(&self, log: LogFormat) -> Option<Metadata> {
        let base = self.metadata.as_deref()?;
        let mut fault = None;
        let metadata = timeout(METADATA_TIMEOUT, read_metadata(base, &mut fault)).await.ok();
        match &metadata {
            None => {
                let fault = fault.map(|fault| fault.to_string());
                let fault = fault.as_deref().unwrap_or("no answer");
                tracing::warn!(fault, "cannot read the ECS task metadata; log lines do not name the task");
            }
            Some(Metadata { resource, .. }) => {
                telemetry::describe(resource.clone());
                match (log, serde_json::to_string(resource)) {
                    (LogFormat::Text, Ok(resource)) => tracing::info!(resource, "runs in an ECS task"),
                    // Each JSON line already contains the resource attributes.
                    (LogFormat::Json, _) | (_, Err(_)) => tracing::info!("runs in an ECS task"),
                }
            }
        }
        metadata
    }

    /// Starts a [`Guard`], which keeps the task protected while any consumer has messages in hand. `work` receives a notification
    /// when a consumer may have become busy or idle. `None`: the config disables protection, the process runs outside ECS, or the
    /// client cannot be created.
    pub(super) fn protect(&self, config: &Config, boards: &[StatusHandle], work: &Arc<Notify>) -> Option<Guard> {
        let base = self.agent.as_deref().filter(|_| config.host.task_protection == TaskProtection::Auto)?;
        match Endpoint::new(base, PROTECTION_TIMEOUT) {
            Ok(agent) => {
                Some(Guard::start(agent, protection::minutes(longest(config)), boards.to_vec(), Arc::clone(work)))
            }
            Err(fault) => {
                tracing::warn!(%fault, "cannot use ECS scale-in protection; this task may be stopped while it works");
                None
            }
        }
    }
}

/// Returns the maximum time for which a message can be in hand. The result is the sum of the processing timeout, one lease for
/// settling, and the duration of the drain.
fn longest(config: &Config) -> Duration {
    let spans = config.consumers.iter().map(|consumer| consumer.processing_timeout.saturating_add(consumer.lease));
    spans.max().unwrap_or_default().saturating_add(config.host.shutdown_grace)
}

/// Reads the metadata. Retries until a read succeeds. Stores the error of the latest failed read in `last`.
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
