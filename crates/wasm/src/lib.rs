//! The WASM engine: handlers from files, and the sandboxes that they run in.
//!
//! The consumer knows only [`Handler`] (`hostler-handler`). [`load`] creates one from a file of any kind that the contract
//! allows, or from bytes that [`fetch`] brought.
//!
//! | file | job |
//! |---|---|
//! | `source` | the location of a handler's bytes |
//! | `fetch/` | handlers from elsewhere |
//! | `artifact` | a handler's file: its pin, its kind by its exports |
//! | `load_error` | the reason why it cannot be loaded |
//! | `foreign` | programs that are not WASM, told from damaged files |
//! | `contain` | panics in the libraries that read a file, as faults of that file |
//! | `componentize` | a core module that describes its exports → a component |
//! | `composed` | handlers of several components, which may be stopped late if they copy much |
//! | `bulk` | bulk memory operations in pieces, so that a guest can be stopped in the middle of one |
//! | `demand` | demands of a handler on its sandbox that the engine does not check |
//! | `build`, `compiled` | WASM → code; code compiled ahead of time, and its checks |
//! | `cache` | fetched and compiled handlers, for the next start |
//! | `engine` | wasmtime's settings, the pool of sandboxes, the epoch |
//! | `link`, `guest` | a component, linked with everything that the host offers; its instances |
//! | `component` | handlers that are components: reused instances, hooks inside |
//! | `contract`, `messaging/`, `wasmcloud` | calls of components of each contract |
//! | `command` | commands as handlers |
//! | `hooks` | lifecycle hooks, inside a handler or around one |
//! | `signature` | functions that a component exports for a contract, with their types checked |
//! | `sandbox`, `scope` | one store: its limits, its capabilities; its call |
//! | `limits` | memory, tables, and memory that the host holds for a guest |
//! | `expected` | overrides of functions of WASI, which must exist |
//! | `files` | open files of a sandbox |
//! | `listing/` | listings of granted folders, in parts |
//! | `lists` | lists that guests pass, bounded |
//! | `host_limit` | limits of the host that a call reached |
//! | `capabilities` | grants → a WASI context |
//! | `imports` | imports of components beyond WASI |
//! | `stubs` | imports that the host does not offer |
//! | `http/` | outgoing HTTP |
//! | `preview1` | original functions of WASI preview 1, for their overrides |
//! | `denial`, `denied/` | denials, in the log |
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

/// The version of the contract that this host supports.
const VERSION: &str = "0.1.0";

/// The location of its WIT, for people.
const WIT: &str = "wit/ of this hostler";

/// Everything that is needed to load a handler.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The consumer that it works for.
    pub consumer: Arc<str>,
    /// The handler: the bytes of a `.wasm`, `.wat` or `.cwasm` file.
    pub source: Source,
    /// The SHA-256 of those bytes, if it is pinned.
    pub sha256: Option<[u8; 32]>,
    /// A component with lifecycle hooks, separate from the handler.
    pub hooks: Option<Source>,
    /// The SHA-256 of that component's bytes, if it is pinned.
    pub hooks_sha256: Option<[u8; 32]>,
    /// The grants of its guests.
    pub grants: Grants,
    /// The number of messages that one instance processes before it is replaced; 1: a fresh instance for each.
    pub messages_per_instance: u32,
    /// Makes a command's standard output its reply.
    pub reply_from_stdout: bool,
    /// The metrics of its sandboxes; `None`: they are not measured.
    pub metrics: Option<ConsumerMetrics>,
}

/// Loads, verifies and compiles a handler and its hooks. Takes up to many seconds for a large file that is not compiled.
///
/// # Errors
/// [`LoadError`] names the file, its fault, and the cure.
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

/// A compiled handler. The limits of its sandboxes are set later, when the needs of all handlers are known.
pub struct Loaded {
    engine: Engine,
    definition: Arc<Definition>,
    artifact: Artifact,
    /// A component with hooks, separate from the handler.
    hooks: Option<(Source, Artifact)>,
    /// The facts found in its file.
    pub summary: Summary,
}

impl Loaded {
    /// Returns the size of its compiled code and data in bytes, including its hooks'.
    pub fn code_size(&self) -> u64 {
        self.artifact.code_size() + self.hooks.as_ref().map_or(0, |(_, hooks)| hooks.code_size())
    }

    /// Returns `true` if it has a `state-changed` hook, which runs in a sandbox of its own beside those of messages.
    pub fn observes_states(&self) -> bool {
        let artifacts = [Some(&self.artifact), self.hooks.as_ref().map(|(_, hooks)| hooks)];
        let mut components = artifacts.into_iter().flatten().filter_map(Artifact::component);
        components.any(|component| STATE_CHANGED.interface.of(component).is_some())
    }

    /// Returns the handler and the hooks whose guests may outlive their processing timeout, in sandboxes of `memory` bytes.
    pub fn long_copies(&self, memory: u64) -> Vec<LongCopies> {
        let handler = LongCopies::of(&self.definition.source, &self.artifact, memory);
        let hooks = self.hooks.as_ref().and_then(|(source, hooks)| LongCopies::of(source, hooks, memory));
        handler.into_iter().chain(hooks).collect()
    }

    /// Creates the handler, with sandboxes of `memory` bytes of linear memory.
    ///
    /// # Errors
    /// [`LoadError`] if that is less than it starts with, or if its imports do not fit.
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

/// Refuses a guest that could never start, so that it does not fail message by message.
fn roomy(source: &Source, least: u64, memory: u64) -> Result<(), LoadError> {
    if least > memory { Err(LoadError::needs_memory(source, least, memory)) } else { Ok(()) }
}

/// The facts found in a handler's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its kind.
    pub kind: Kind,
    /// The interfaces or modules that it imports, sorted.
    pub imports: Vec<String>,
}
