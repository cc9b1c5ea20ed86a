//! The WASM engine: handlers from files, and the sandboxes that they run in.
//!
//! The consumer knows only [`Handler`] (`hostler-handler`); [`load`] makes one from a file of any kind that the contract allows, or from what [`fetch`] brought.
//!
//! | file | job |
//! |---|---|
//! | `source` | where a handler's bytes are |
//! | `fetch/` | handlers from elsewhere |
//! | `artifact` | a handler's file: its pin, its kind by its exports |
//! | `load_error` | why it cannot be loaded |
//! | `foreign` | programs that are not WASM, told apart from damaged files |
//! | `contain` | panics of the libraries that read a file, as faults of that file |
//! | `componentize` | a core module that says what it exports → a component |
//! | `composed` | handlers of several components, which are stopped late where they copy much |
//! | `bulk` | bulk memory operations in pieces, so that a guest can be stopped in the midst of one |
//! | `demand` | what a handler needs of its sandbox that the engine does not look at |
//! | `build`, `compiled` | WASM → code; code compiled ahead of time, and whether it is believed |
//! | `cache` | what was fetched and compiled, for the next start |
//! | `engine` | wasmtime's settings, the pool of sandboxes, the epoch |
//! | `link`, `guest` | a component, linked with all that the host offers; its instances |
//! | `component` | handlers that are components: instances used again, hooks inside |
//! | `contract`, `messaging/`, `wasmcloud` | how components of each contract are called |
//! | `command` | commands as handlers |
//! | `hooks` | lifecycle hooks, inside a handler or around one |
//! | `signature` | functions that a component exports for a contract, and whether their types are the contract's |
//! | `sandbox`, `scope` | one store: its limits, its capabilities; its call |
//! | `limits` | memory, tables, and what the host holds for a guest |
//! | `expected` | functions of WASI that have to be there to be bounded |
//! | `files` | open files of a sandbox |
//! | `listing/` | listings of granted folders, in parts |
//! | `lists` | lists that guests pass, bounded |
//! | `host_limit` | limits of the host that a call ran into |
//! | `capabilities` | grants → a WASI context |
//! | `imports` | what a component may import beyond WASI |
//! | `stubs` | imports that nobody offers |
//! | `http/` | outgoing HTTP |
//! | `preview1` | functions of WASI preview 1, called by those put before them |
//! | `denial`, `denied/` | what was denied, told in the log |
//! | `output` | standard output and error |

mod artifact;
mod build;
mod bulk;
pub mod cache;
mod capabilities;
mod command;
mod compiled;
mod component;
mod componentize;
mod composed;
mod contain;
mod contract;
mod demand;
mod denial;
mod denied;
mod engine;
mod expected;
#[cfg_attr(
    not(any(feature = "sqs", feature = "oci")),
    allow(dead_code, reason = "what all ways of fetching share; this build has none")
)]
pub mod fetch;
mod files;
mod foreign;
mod guest;
mod hooks;
mod host_limit;
mod http;
mod imports;
mod limits;
mod link;
mod listing;
mod lists;
mod load_error;
#[cfg(feature = "messaging")]
mod messaging;
mod output;
mod preview1;
mod sandbox;
mod scope;
mod signature;
mod source;
mod stubs;
#[cfg(feature = "messaging")]
mod wasmcloud;

pub use artifact::Kind;
pub use capabilities::{Dir, Grants};
pub use compiled::{CompileError, CpuBaseline, Recipe, compile};
pub use composed::LongCopies;
pub use engine::{Engine, EngineError, Pool, SANDBOX_ADDRESSES, compile_with};
pub use files::MOST_FILES;
pub use http::{FOOTPRINT as HTTP_FOOTPRINT, MAX_IDLE_PER_ORIGIN, MAX_OPEN};
pub use limits::footprint;
pub use load_error::LoadError;
pub use source::{Fetched, Source};

use std::sync::Arc;

use artifact::Artifact;
use command::{CommandHandler, RunHandler};
use compiled::Code;
use component::ComponentHandler;
use contract::{Consumer, STATE_CHANGED};
use hooks::Hooked;
use hostler_handler::Handler;
use hostler_telemetry::metrics::ConsumerMetrics;
#[cfg(feature = "messaging")]
use {messaging::Messaging, wasmcloud::Wasmcloud};

/// The version of the contract that this host speaks.
const VERSION: &str = "0.1.0";

/// Where its WIT is to be had, for people.
const WIT: &str = "wit/ of this hostler";

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
    /// The SHA-256 of that component's bytes, if it is pinned.
    pub hooks_sha256: Option<[u8; 32]>,
    /// What its guests may reach.
    pub grants: Grants,
    /// How many messages one instance processes before it is thrown away; 1 is a fresh one each.
    pub messages_per_instance: u32,
    /// Whether a command's standard output is its reply.
    pub reply_from_stdout: bool,
    /// Measures its sandboxes, if anything does.
    pub metrics: Option<ConsumerMetrics>,
}

/// Loads, verifies and compiles a handler, and its hooks. Takes up to many seconds for a large file that is not compiled.
///
/// # Errors
/// [`LoadError`] names the file, what is wrong with it, and the cure.
pub fn load(engine: &Engine, definition: &Definition) -> Result<Loaded, LoadError> {
    definition.grants.prepare().map_err(|(path, error)| LoadError::grant(path, &error))?;
    let artifact = artifact::read(engine, &definition.source, definition.sha256.as_ref())?;
    if artifact.kind == Kind::Hooks {
        return Err(LoadError::only_hooks(&definition.source));
    }
    let pin = definition.hooks_sha256.as_ref();
    let hooks = definition.hooks.as_ref();
    let hooks = hooks.map(|source| Ok((source.clone(), artifact::read_hooks(engine, source, pin)?))).transpose()?;
    let summary = Summary { kind: artifact.kind, imports: artifact.imports() };
    Ok(Loaded { engine: engine.clone(), definition: Arc::new(definition.clone()), artifact, hooks, summary })
}

/// A handler that is compiled. What its sandboxes may use is decided when it is known what all handlers need.
pub struct Loaded {
    engine: Engine,
    definition: Arc<Definition>,
    artifact: Artifact,
    /// A component with hooks, apart from the handler.
    hooks: Option<(Source, Artifact)>,
    /// What was found in its file.
    pub summary: Summary,
}

impl Loaded {
    /// The bytes of its compiled code and data, its hooks' included.
    pub fn code_size(&self) -> u64 {
        self.artifact.code_size() + self.hooks.as_ref().map_or(0, |(_, hooks)| hooks.code_size())
    }

    /// Whether it has a `state-changed` hook, which runs in a sandbox of its own beside those of messages.
    pub fn observes_states(&self) -> bool {
        let artifacts = [Some(&self.artifact), self.hooks.as_ref().map(|(_, hooks)| hooks)];
        let mut components = artifacts.into_iter().flatten().filter_map(Artifact::component);
        components.any(|component| STATE_CHANGED.interface.of(component).is_some())
    }

    /// The handler and the hooks whose guests may outlive their processing timeout, with sandboxes of `memory` bytes.
    pub fn long_copies(&self, memory: u64) -> Vec<LongCopies> {
        let handler = LongCopies::of(&self.definition.source, &self.artifact, memory);
        let hooks = self.hooks.as_ref().and_then(|(source, hooks)| LongCopies::of(source, hooks, memory));
        handler.into_iter().chain(hooks).collect()
    }

    /// Makes the handler, with sandboxes of `memory` bytes of linear memory.
    ///
    /// # Errors
    /// [`LoadError`] when that is less than it starts with, or when its imports do not fit.
    pub fn handler(&self, memory: u64) -> Result<Arc<dyn Handler>, LoadError> {
        contain::contain(&self.definition.source, || self.link(memory))
    }

    fn link(&self, memory: u64) -> Result<Arc<dyn Handler>, LoadError> {
        let (engine, definition) = (&self.engine, &self.definition);
        roomy(&definition.source, self.artifact.least_memory, memory)?;
        let guest = |component| link::guest(engine, component, definition, memory);
        let handler: Arc<dyn Handler> = match (&self.artifact.code, self.artifact.kind) {
            (Code::Module(module), _) => Arc::new(CommandHandler::new(engine, module, definition, memory)?),
            (Code::Component(component), kind) => match kind {
                Kind::Handler => Arc::new(ComponentHandler::<Consumer>::new(guest(component)?)?),
                #[cfg(feature = "messaging")]
                Kind::Messaging => Arc::new(ComponentHandler::<Messaging>::new(guest(component)?)?),
                #[cfg(feature = "messaging")]
                Kind::Wasmcloud => Arc::new(ComponentHandler::<Wasmcloud>::new(guest(component)?)?),
                Kind::Run => Arc::new(RunHandler::new(guest(component)?)?),
                Kind::Hooks | Kind::Command => return Err(LoadError::only_hooks(&definition.source)),
            },
        };
        let Some((source, hooks)) = &self.hooks else { return Ok(handler) };
        roomy(source, hooks.least_memory, memory)?;
        let Some(component) = hooks.component() else { return Err(LoadError::no_hooks(source)) };
        let definition = Arc::new(Definition { source: source.clone(), ..(**definition).clone() });
        Ok(Arc::new(Hooked::new(link::guest(engine, component, &definition, memory)?, handler)?))
    }
}

/// A guest that could never start must not fail message by message.
fn roomy(source: &Source, least: u64, memory: u64) -> Result<(), LoadError> {
    if least > memory { Err(LoadError::needs_memory(source, least, memory)) } else { Ok(()) }
}

/// What a handler's file turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its kind.
    pub kind: Kind,
    /// The interfaces or modules that it imports, sorted.
    pub imports: Vec<String>,
}
