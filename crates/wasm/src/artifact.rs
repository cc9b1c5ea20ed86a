//! Reads a handler's file, verifies the file against its pin (the configured SHA-256), and detects the handler kind
//! from the exports.

use std::fmt;
use std::io;

use wasmtime::component::Component;
use wasmtime::{ExternType, Module};

use super::batch::BATCH_HANDLER;
use super::command::RUN;
use super::compiled::{self, Built, Code, Found};
use super::contain::contain;
use super::engine::Engine;
use super::load_error::LoadError;
use super::signature::{Interface, export_names};
use super::source::{Contents, Source};
use super::{VERSION, build, contract, foreign, hooks};
#[cfg(feature = "messaging")]
use super::{messaging, wasmcloud};
use hostler_types::digest::{hex, sha256};

/// Size of a linear-memory page in bytes (WebAssembly core specification).
const WASM_PAGE: u64 = 64 * 1024;

/// The compiled code of a handler's file.
pub(super) struct Artifact {
    pub(super) code: Code,
    pub(super) kind: Kind,
    /// Initial linear memory of a sandbox in bytes, summed over all instances in the sandbox.
    pub(super) least_memory: u64,
}

/// The kind of a handler's file, detected from its exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A component that exports the `handler` interface of hostler's own contract.
    Handler,
    /// A component that exports only the `batch-handler` interface of hostler's own contract.
    Batch,
    /// A component that exports the `incoming-handler` interface of wasi:messaging.
    #[cfg(feature = "messaging")]
    Messaging,
    /// A component that exports the `handler` interface of wasmcloud:messaging.
    #[cfg(feature = "messaging")]
    Wasmcloud,
    /// A WASI 0.2 command: a component that exports `wasi:cli/run`.
    Run,
    /// A component that exports lifecycle hooks, but no handler.
    Hooks,
    /// A WASI preview-1 module that exports `_start`.
    Command,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handler => "component (hostler:consumer/handler)",
            Self::Batch => "component (hostler:consumer/batch-handler)",
            #[cfg(feature = "messaging")]
            Self::Messaging => "component (wasi:messaging/incoming-handler)",
            #[cfg(feature = "messaging")]
            Self::Wasmcloud => "component (wasmcloud:messaging/handler)",
            Self::Run => "WASI 0.2 command (wasi:cli/run)",
            Self::Hooks => "hooks component",
            Self::Command => "WASI preview-1 command (_start)",
        })
    }
}

impl Artifact {
    /// Returns the component. `None`: the code is a core module.
    pub(super) fn component(&self) -> Option<&Component> {
        match &self.code {
            Code::Component(component) => Some(component),
            Code::Module(_) => None,
        }
    }

    /// Returns the size of the compiled code and data in bytes.
    pub(super) fn code_size(&self) -> u64 {
        let range = match &self.code {
            Code::Component(component) => component.image_range(),
            Code::Module(module) => module.image_range(),
        };
        (range.end.addr() - range.start.addr()) as u64
    }

    /// Returns the largest initial size of any linear memory in the code, in bytes.
    fn largest_memory(&self) -> u64 {
        let required = match &self.code {
            Code::Component(component) => component.resources_required(),
            Code::Module(module) => Some(module.resources_required()),
        };
        let pages = required.and_then(|required| required.max_initial_memory_size).unwrap_or(0);
        pages.saturating_mul(WASM_PAGE)
    }

    /// Returns the names of the interfaces (for a component) or modules (for a core module) that the code imports,
    /// sorted and without duplicates.
    pub(super) fn imports(&self) -> Vec<String> {
        let mut imports: Vec<String> = match &self.code {
            Code::Component(component) => {
                component.component_type().imports(component.engine()).map(|(name, _)| name.to_owned()).collect()
            }
            Code::Module(module) => module.imports().map(|import| import.module().to_owned()).collect(),
        };
        imports.sort();
        imports.dedup();
        imports
    }
}

/// Reads the handler at `source`. Compiles it unless the file contains compiled code that this machine can run. `pin`:
/// SHA-256 that the file must have, or `None` to skip the check.
///
/// # Errors
/// [`LoadError`] if the file is missing or damaged, does not match its pin, is not WASM, or contains no handler.
pub(super) fn read(engine: &Engine, source: &Source, pin: Option<&[u8; 32]>) -> Result<Artifact, LoadError> {
    contain(source, || read_uncontained(engine, source, pin))
}

fn read_uncontained(engine: &Engine, source: &Source, pin: Option<&[u8; 32]>) -> Result<Artifact, LoadError> {
    let unreadable = |error: io::Error| LoadError::unreadable(source, &error);
    let mut contents = Contents::open(source)?;
    if let Some(pin) = pin {
        // Uses the verified bytes in memory, because the file may change after the check.
        let bytes = contents.all().map_err(unreadable)?;
        check_pin(source, &bytes, pin)?;
        contents = bytes.into();
    }
    foreign::refuse(source, &contents)?;
    let Built { code, memory } = if compiled::is_compiled(&contents).map_err(unreadable)? {
        match compiled::load(engine, source, &contents, pin.is_some() || source.is_trusted())? {
            Found::Code(built) => built,
            Found::Wasm(wasm) => build::build(engine, source, &wasm)?,
        }
    } else {
        build::build(engine, source, &contents.all().map_err(unreadable)?)?
    };
    let kind = match &code {
        Code::Component(component) => recognise_component(source, component),
        Code::Module(module) => recognise_module(source, module),
    };
    let artifact = Artifact { kind: kind?, code, least_memory: 0 };
    // The size in the file may be too small if another tool wrote the file.
    Ok(Artifact { least_memory: memory.max(artifact.largest_memory()), ..artifact })
}

/// Reads a component that contains lifecycle hooks and is separate from the handler.
///
/// # Errors
/// All errors of [`read`]. Also [`LoadError`] if the component exports no hook.
pub(super) fn read_hooks(engine: &Engine, source: &Source, pin: Option<&[u8; 32]>) -> Result<Artifact, LoadError> {
    let artifact = read(engine, source, pin)?;
    if artifact.component().is_some_and(hooks::has_any) { Ok(artifact) } else { Err(LoadError::no_hooks(source)) }
}

fn check_pin(source: &Source, bytes: &[u8], pin: &[u8; 32]) -> Result<(), LoadError> {
    let found = sha256(bytes);
    if found == *pin {
        return Ok(());
    }
    let what = format!("its SHA-256 is {}, but the config pins {}", hex(&found), hex(pin));
    Err(LoadError::new(
        source,
        what,
        "deploy the intended file, or set sha256 (hooks_sha256 for hooks) to the digest of the new one",
    ))
}

/// Contracts for components that are not commands, in the order in which hostler looks for their exports.
pub(super) const CONTRACTS: &[(Kind, Interface)] = &[
    (Kind::Handler, contract::HANDLER),
    (Kind::Batch, BATCH_HANDLER),
    #[cfg(feature = "messaging")]
    (Kind::Messaging, messaging::HANDLER),
    #[cfg(feature = "messaging")]
    (Kind::Wasmcloud, wasmcloud::HANDLER),
];

/// Instructions for marking the handler function for export, for each SDK. Part of the error for a file without a
/// handler.
const SDKS: &str = "with an SDK: `#[handler]` above the function in Rust, `@hostler.handler` above it in Python, \
                    `export default` in JavaScript, `hostler.Run(handle)` in `main` in Go";

fn recognise_component(source: &Source, component: &Component) -> Result<Kind, LoadError> {
    if let Some((kind, _)) = CONTRACTS.iter().find(|(_, interface)| interface.of(component).is_some()) {
        return Ok(*kind);
    }
    let names = export_names(component);
    for (_, interface) in CONTRACTS {
        if let Some(other) = names.iter().find(|name| is_another(name, interface)) {
            let Interface { name, version, wit } = interface;
            let what = format!("it exports `{other}`, which this hostler does not support");
            return Err(LoadError::new(source, what, format!("build it against {wit} ({name}@{version})")));
        }
    }
    if RUN.of(component).is_some() {
        return Ok(Kind::Run);
    }
    if hooks::has_any(component) {
        return Ok(Kind::Hooks);
    }
    let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let cure = format!("export {}@{VERSION} or {}@0.2; {SDKS}", contract::HANDLER.name, RUN.name);
    Err(LoadError::new(source, format!("it is a component that exports no handler (it exports {found})"), cure))
}

/// Returns `true` if `export` is probably another version or draft of `interface`. This is the case if both have the
/// same name, in any version. If another project owns the interface's package, any export from that package also
/// counts, because drafts of the package rename interfaces.
fn is_another(export: &str, interface: &Interface) -> bool {
    let name = export.split('@').next().unwrap_or_default();
    let package = interface.package().filter(|_| !interface.is_own());
    name == interface.name || package.is_some_and(|package| name.split('/').next() == Some(package))
}

/// Module names under which Go programs that are built for browsers import their host functions. Go before version 1.21
/// used the second name.
const GO_FOR_BROWSERS: [&str; 2] = ["gojs", "go"];

fn recognise_module(source: &Source, module: &Module) -> Result<Kind, LoadError> {
    if let Some(start) = module.get_export("_start").as_ref().and_then(ExternType::func) {
        return match (start.params().len(), start.results().len()) {
            (0, 0) => Ok(Kind::Command),
            _ => {
                let what = "its `_start` takes parameters or gives results, which that of a command does not";
                Err(LoadError::new(source, what, "build it as a command (a program with `main`)"))
            }
        };
    }
    if module.imports().any(|import| GO_FOR_BROWSERS.contains(&import.module())) {
        let cure = "build it for WASI: GOOS=wasip1 GOARCH=wasm go build";
        return Err(LoadError::new(source, "it is Go built for browsers (GOOS=js)", cure));
    }
    let cure = format!(
        "build it as a command (a program with `main`), or as a component that exports hostler:consumer/handler; {SDKS}"
    );
    Err(LoadError::new(source, "it is a core module without the function `_start`", cure))
}
