//! Handlers: what processes a message, and the WASM engine that runs them.
//!
//! The consumer knows only [`Handler`]; [`load`] makes one from a file of any kind that the contract allows, or from what [`fetch`] brought.

mod artifact;
mod build;
pub mod cache;
mod call;
mod capabilities;
mod command;
mod compiled;
mod component;
mod contract;
mod engine;
#[cfg_attr(
    not(any(feature = "sqs", feature = "oci")),
    allow(dead_code, reason = "what all ways of fetching share; this build has none")
)]
pub mod fetch;
mod hooks;
mod imports;
mod limits;
mod output;
mod sandbox;
mod source;
mod stubs;

pub use artifact::{Artifact, Kind, LoadError};
pub use call::{Bounds, Call, Outcome, Stop, run, run_until_stopped};
pub use capabilities::{Dir, Grants};
pub use compiled::{CompileError, CpuBaseline, Recipe, compile};
pub use engine::{Engine, EngineError, Pool};
pub use output::{Captured, Output, Stream};
pub use source::{Fetched, Source};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::health::State;
use command::{CommandHandler, RunHandler};
use component::ComponentHandler;
use hooks::Hooked;

/// How long a lifecycle hook may take: one that observes, or that decides about a message already stopped.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What runs on each message.
///
/// The futures run guest code; dropping one stops its guest at the next yield, at most one epoch tick later.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Processes one message and says what became of it. Never fails: every fault is an [`Outcome`].
    async fn handle(&self, call: &Call) -> Outcome;

    /// What is to become of a message that was stopped at its processing timeout; `None`: the consumer's own rule.
    async fn processing_timeout(&self, _call: &Call, _elapsed: Duration) -> Option<Outcome> {
        None
    }

    /// Whether [`Self::state_changed`] does anything.
    fn observes_states(&self) -> bool {
        false
    }

    /// Tells of a change of the consumer's state.
    async fn state_changed(&self, _from: State, _to: State) {}
}

/// All that is needed to load a handler.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The consumer that it works for.
    pub consumer: Arc<str>,
    /// The handler: the bytes of a `.wasm`, `.wat` or `.cwasm` file.
    pub source: Source,
    /// Their SHA-256, if it is pinned.
    pub sha256: Option<[u8; 32]>,
    /// A component with lifecycle hooks, apart from the handler.
    pub hooks: Option<Source>,
    /// What its guests may reach.
    pub grants: Grants,
    /// The most linear memory a guest may have, in bytes.
    pub memory: u64,
    /// How many messages one instance processes before it is thrown away; 1 is a fresh one each.
    pub messages_per_instance: u32,
    /// Whether a command's standard output is its reply.
    pub reply_from_stdout: bool,
}

/// Loads, verifies and compiles a handler, and its hooks. Takes up to many seconds for a large file that is not compiled.
///
/// # Errors
/// [`LoadError`] names the file, what is wrong with it, and the cure.
pub fn load(engine: &Engine, definition: &Definition) -> Result<Loaded, LoadError> {
    definition.grants.prepare().map_err(|(path, error)| LoadError::grant(path, &error))?;
    let artifact = artifact::read(engine, &definition.source, definition.sha256.as_ref())?;
    let summary = Summary { kind: artifact.kind(), imports: artifact.imports(engine) };
    let definition = Arc::new(definition.clone());
    let handler: Arc<dyn Handler> = match &artifact {
        Artifact::Handler(component) => Arc::new(ComponentHandler::new(engine, component, &definition)?),
        Artifact::Run(component) => Arc::new(RunHandler::new(engine, component, &definition)?),
        Artifact::Command(module) => Arc::new(CommandHandler::new(engine, module, &definition)?),
        Artifact::Hooks(_) => return Err(LoadError::only_hooks(&definition.source)),
    };
    let handler = match &definition.hooks {
        Some(source) => Arc::new(Hooked::load(engine, source, &definition, handler)?),
        None => handler,
    };
    Ok(Loaded { handler, summary })
}

/// A handler that is ready to run.
pub struct Loaded {
    /// The handler.
    pub handler: Arc<dyn Handler>,
    /// What was found in its file.
    pub summary: Summary,
}

/// What a handler's file turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its kind.
    pub kind: Kind,
    /// The interfaces or modules that it imports, sorted.
    pub imports: Vec<String>,
}
