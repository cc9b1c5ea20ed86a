//! The WASM engine: loads handlers from files and runs them in sandboxes.
//!
//! The consumer crate depends only on the [`Handler`] trait (`hostler-handler`). [`load`] creates a [`Handler`] from a
//! file of any kind that the contract allows, or from bytes that [`fetch`] downloaded.
//!
//! | file | job |
//! |---|---|
//! | `source` | the location of a handler's bytes |
//! | `fetch/` | downloads of handlers |
//! | `artifact` | a handler's file: verifies its pin, detects the handler kind from its exports |
//! | `load_error` | the error for a handler that cannot be loaded |
//! | `foreign` | detection of native programs, which are not WASM |
//! | `functions` | code of functions, for compiling variants of a handler |
//! | `contain` | catches panics in the libraries that read a file, and reports them as faults in the file |
//! | `componentize` | core module that describes its exports → component |
//! | `composed` | detection of handlers that are composed of several components and may be stopped late |
//! | `bulk` | splits bulk memory operations into pieces, between which a guest can be stopped |
//! | `demand` | checks the resources that a handler needs, which the engine does not check at load time |
//! | `build`, `compiled` | WASM → native code; code compiled ahead of time, and its checks |
//! | `cache` | fetched and compiled handlers, stored for the next start |
//! | `engine` | wasmtime's settings, the pool of sandboxes, the epoch |
//! | `link`, `guest` | a component linked with the host's functions; its instances |
//! | `component`, `warm` | handlers that are components: hooks in the same component, reused instances |
//! | `batch` | components that process batches |
//! | `contract`, `messaging/`, `wasmcloud` | calls to components, by contract |
//! | `command`, `lines` | commands as handlers; their batches, as lines of JSON |
//! | `hooks` | lifecycle hooks, in the handler's component or in a separate component |
//! | `signature` | functions that a component exports for a contract, with their types checked |
//! | `sandbox`, `scope` | one store with its limits and capabilities; the call that a sandbox serves |
//! | `limits` | limits on memory, tables, and memory that the host allocates for a guest |
//! | `expected` | overrides of WASI functions, which must exist |
//! | `files` | limit on a sandbox's open files |
//! | `listing/` | listings of granted folders, in parts |
//! | `lists` | lists from guests, limited in length |
//! | `host_limit` | finds the host limit that caused an error |
//! | `capabilities` | grants → a WASI context |
//! | `secret_variables` | environment variables whose values change |
//! | `imports`, `jobs` | imports of components beyond WASI |
//! | `stubs` | imports that the host does not implement |
//! | `http/`, `tcp/` | outgoing HTTP; outgoing TCP connections |
//! | `address` | the IP addresses to which a granted name may resolve |
//! | `preview1` | the original WASI preview 1 functions, which overriding functions call |
//! | `denial`, `denied/` | log lines for denied operations |
//! | `output` | standard output and error |

mod address;
mod artifact;
mod batch;
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
mod functions;
mod guest;
mod hooks;
mod host_limit;
mod http;
mod imports;
mod jobs;
mod limits;
mod lines;
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
mod secret_variables;
mod signature;
mod source;
mod stubs;
mod tcp;
mod warm;
#[cfg(feature = "messaging")]
mod wasmcloud;

pub use artifact::Kind;
pub use build::{COMPILED, COMPILING};
pub use capabilities::{Dir, Grants};
pub use compiled::{CompileError, CpuBaseline, Recipe, compile};
pub use composed::LongCopies;
pub use engine::{Engine, EngineError, Pool, SANDBOX_ADDRESSES, compile_with};
pub use files::MOST_FILES;
pub use http::{FOOTPRINT as HTTP_FOOTPRINT, MAX_IDLE_PER_ORIGIN, MAX_OPEN};
pub use limits::footprint;
pub use load_error::LoadError;
pub use secret_variables::{SecretValues, SecretVariables};
pub use source::{Fetched, Source};
pub use tcp::{CONNECTION_FOOTPRINT, ProbeError, TLS_FOOTPRINT, probe};

use std::sync::Arc;

use artifact::Artifact;
use batch::{BATCH_HANDLER, BatchHandler};
use command::{CommandHandler, ComponentProgram, ModuleProgram};
use compiled::Code;
use component::ComponentHandler;
use contract::{Consumer, STATE_CHANGED};
use hooks::Hooked;
use hostler_handler::Handler;
use hostler_telemetry::metrics::ConsumerMetrics;
#[cfg(feature = "messaging")]
use {messaging::Messaging, wasmcloud::Wasmcloud};

/// Version of the contract that this host supports.
const VERSION: &str = "0.1.0";

/// Location of the contract's WIT, for error messages.
const WIT: &str = "wit/ of this hostler";

/// Everything that [`load`] needs to load a handler.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The name of the consumer that runs the handler.
    pub consumer: Arc<str>,
    /// Source of the handler's bytes: a `.wasm`, `.wat` or `.cwasm` file.
    pub source: Source,
    /// The SHA-256 that the handler's bytes must have. `None`: the SHA-256 is not checked.
    pub sha256: Option<[u8; 32]>,
    /// A separate component with lifecycle hooks. `None`: there is no separate component.
    pub hooks: Option<Source>,
    /// The SHA-256 that the bytes of `hooks` must have. `None`: the SHA-256 is not checked.
    pub hooks_sha256: Option<[u8; 32]>,
    /// Resources that the handler and the hooks may use.
    pub grants: Grants,
    /// Maximum number of messages that an instance processes. 1: each message gets a fresh instance.
    pub messages_per_instance: u32,
    /// Set if the consumer has batches. A handler that cannot process them is refused.
    pub batches: bool,
    /// Set if the standard output of a command is its reply.
    pub reply_from_stdout: bool,
    /// The metrics that sandboxes record. `None`: sandboxes are not measured.
    pub metrics: Option<ConsumerMetrics>,
}

/// Loads, verifies and compiles a handler and its hooks. Compiling a large file can take many seconds.
///
/// # Errors
/// [`LoadError`] names the file, the fault and the fix.
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

/// A compiled handler. After all handlers are loaded and their memory needs are known, the host calls
/// [`Loaded::handler`] with the memory limit for the handler's sandboxes.
pub struct Loaded {
    engine: Engine,
    definition: Arc<Definition>,
    artifact: Artifact,
    /// A separate component with lifecycle hooks, and its location.
    hooks: Option<(Source, Artifact)>,
    /// Facts read from the handler's file.
    pub summary: Summary,
}

impl Loaded {
    /// Returns the size of the compiled code and data in bytes, including the separate hooks.
    pub fn code_size(&self) -> u64 {
        self.artifact.code_size() + self.hooks.as_ref().map_or(0, |(_, hooks)| hooks.code_size())
    }

    /// Returns `true` if the handler or its separate hooks export `state-changed`. That hook runs in its own sandbox,
    /// in addition to the sandboxes for messages.
    pub fn observes_states(&self) -> bool {
        let artifacts = [Some(&self.artifact), self.hooks.as_ref().map(|(_, hooks)| hooks)];
        let mut components = artifacts.into_iter().flatten().filter_map(Artifact::component);
        components.any(|component| STATE_CHANGED.interface.of(component).is_some())
    }

    /// Returns an entry for each component (the handler, the separate hooks) whose guests may outlive the processing
    /// timeout because of long copies. `memory`: maximum linear memory of a sandbox in bytes.
    pub fn long_copies(&self, memory: u64) -> Vec<LongCopies> {
        let handler = LongCopies::of(&self.definition.source, &self.artifact, memory);
        let hooks = self.hooks.as_ref().and_then(|(source, hooks)| LongCopies::of(source, hooks, memory));
        handler.into_iter().chain(hooks).collect()
    }

    /// Creates the handler. Each of its sandboxes may use up to `memory` bytes of linear memory.
    ///
    /// # Errors
    /// [`LoadError`] if the initial memory of the handler exceeds `memory` bytes, or if an import cannot be linked.
    pub fn handler(&self, memory: u64) -> Result<Arc<dyn Handler>, LoadError> {
        contain::contain(&self.definition.source, || self.link(memory))
    }

    fn link(&self, memory: u64) -> Result<Arc<dyn Handler>, LoadError> {
        let (engine, definition) = (&self.engine, &self.definition);
        roomy(&definition.source, self.artifact.least_memory, memory)?;
        let guest = |component| link::guest(engine, component, definition, memory);
        let handler: Arc<dyn Handler> = match (&self.artifact.code, self.artifact.kind) {
            (Code::Module(module), _) => {
                Arc::new(CommandHandler(ModuleProgram::new(engine, module, definition, memory)?))
            }
            (Code::Component(component), kind) => match kind {
                Kind::Batch => Arc::new(BatchHandler::new(guest(component)?)?),
                Kind::Handler if definition.batches && BATCH_HANDLER.of(component).is_some() => {
                    Arc::new(BatchHandler::new(guest(component)?)?)
                }
                kind if definition.batches && kind != Kind::Run => {
                    return Err(LoadError::no_batches(&definition.source));
                }
                Kind::Handler => Arc::new(ComponentHandler::<Consumer>::new(guest(component)?)?),
                #[cfg(feature = "messaging")]
                Kind::Messaging => Arc::new(ComponentHandler::<Messaging>::new(guest(component)?)?),
                #[cfg(feature = "messaging")]
                Kind::Wasmcloud => Arc::new(ComponentHandler::<Wasmcloud>::new(guest(component)?)?),
                Kind::Run => Arc::new(CommandHandler(ComponentProgram::new(guest(component)?)?)),
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

/// Returns an error if a guest's initial memory, `least`, exceeds its limit, `memory`. This is checked at load time,
/// because otherwise no instance of the guest could be created and every message would fail.
fn roomy(source: &Source, least: u64, memory: u64) -> Result<(), LoadError> {
    if least > memory { Err(LoadError::needs_memory(source, least, memory)) } else { Ok(()) }
}

/// Facts read from a handler's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The kind of the handler.
    pub kind: Kind,
    /// The interfaces or modules that the handler imports, sorted.
    pub imports: Vec<String>,
}
