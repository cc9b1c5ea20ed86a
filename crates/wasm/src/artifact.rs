//! A handler's file: read, checked against its pin, recognised by its exports.

use std::fmt;
use std::io;
use std::path::Path;

use wasmtime::component::{Component, ComponentExportIndex};
use wasmtime::{ExternType, Module};

use super::build;
use super::compiled::{self, Code};
use super::contain::contain;
use super::contract::{HANDLER, VERSION, WIT};
use super::engine::Engine;
use super::hooks::HookSet;
use super::source::{Contents, Source};
use super::{foreign, messaging, wasmcloud};
use hostler_types::digest::{hex, sha256};

/// The export by which a component is known as a WASI 0.2 command.
pub(super) const RUN: &str = "wasi:cli/run";

/// Bytes of a page of linear memory (WebAssembly core specification).
const WASM_PAGE: u64 = 64 * 1024;

/// What a handler's file holds.
pub enum Artifact {
    /// A component, and what it is by its exports.
    Component(Component, Role),
    /// A preview-1 module with `_start`.
    Command(Module),
}

/// What kind of handler a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A component.
    Component(Role),
    /// A preview-1 module with `_start`.
    Command,
}

/// What a component is by its exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It exports the contract's `handler`.
    Handler,
    /// It exports `incoming-handler` of wasi:messaging.
    Messaging,
    /// It exports `handler` of wasmcloud:messaging.
    Wasmcloud,
    /// A WASI 0.2 command.
    Run,
    /// It exports hooks and no handler.
    Hooks,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Component(Role::Handler) => "component (hostler:consumer/handler)",
            Self::Component(Role::Messaging) => "component (wasi:messaging/incoming-handler)",
            Self::Component(Role::Wasmcloud) => "component (wasmcloud:messaging/handler)",
            Self::Component(Role::Run) => "WASI 0.2 command (wasi:cli/run)",
            Self::Component(Role::Hooks) => "hooks component",
            Self::Command => "WASI preview-1 command (_start)",
        })
    }
}

impl Artifact {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Component(_, role) => Kind::Component(*role),
            Self::Command(_) => Kind::Command,
        }
    }

    /// The component, if it is one.
    pub(super) fn component(&self) -> Option<&Component> {
        match self {
            Self::Component(component, _) => Some(component),
            Self::Command(_) => None,
        }
    }

    /// The bytes of its compiled code, with its data.
    pub(super) fn code_size(&self) -> u64 {
        let range = match self {
            Self::Component(component, _) => component.image_range(),
            Self::Command(module) => module.image_range(),
        };
        (range.end.addr() - range.start.addr()) as u64
    }

    /// The largest memory that it has from the start, in bytes.
    pub(super) fn least_memory(&self) -> u64 {
        let required = match self {
            Self::Component(component, _) => component.resources_required(),
            Self::Command(module) => Some(module.resources_required()),
        };
        let pages = required.and_then(|required| required.max_initial_memory_size).unwrap_or(0);
        pages.saturating_mul(WASM_PAGE)
    }

    /// The interfaces or modules that it imports, sorted and without repetition.
    pub fn imports(&self, engine: &Engine) -> Vec<String> {
        let mut imports: Vec<String> = match self {
            Self::Component(component, _) => {
                component.component_type().imports(engine.inner()).map(|(name, _)| name.to_owned()).collect()
            }
            Self::Command(module) => module.imports().map(|import| import.module().to_owned()).collect(),
        };
        imports.sort();
        imports.dedup();
        imports
    }
}

/// Why a handler cannot be loaded: what is at fault, what is wrong with it, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("handler {handler}: {what}\n  cure: {cure}")]
pub struct LoadError {
    handler: String,
    what: String,
    cure: String,
}

impl LoadError {
    pub(super) fn new(source: &Source, what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { handler: source.to_string(), what: what.into(), cure: cure.into() }
    }

    /// That of a binary which does not validate.
    pub(super) fn invalid(source: &Source, error: &wasmtime::Error) -> Self {
        Self::new(
            source,
            format!("it is no valid WASM: {error:#}"),
            "build it again; the file may be damaged or cut short",
        )
    }

    /// That of sound WASM which needs more than any sandbox has.
    pub(super) fn too_large(source: &Source, error: &wasmtime::Error) -> Self {
        Self::new(
            source,
            format!("it needs more than a sandbox has: {error:#}"),
            "build it with smaller tables, or of fewer parts; the file is sound, and no key raises this limit",
        )
    }

    pub(super) fn grant(path: &Path, error: &io::Error) -> Self {
        Self::new(
            &path.into(),
            format!("the folder in allow.dirs cannot be opened: {error}"),
            "create it, or let hostler's user read it",
        )
    }

    pub(super) fn link(source: &Source, error: &wasmtime::Error) -> Self {
        let what = format!("its imports do not fit: {error:#}");
        let wit = match () {
            () if what.contains(messaging::PACKAGE) => messaging::WIT.to_owned(),
            () if what.contains(wasmcloud::PACKAGE) => wasmcloud::WIT.to_owned(),
            () => format!("wit/ of this hostler (hostler:consumer@{VERSION}, WASI 0.2 or preview 1)"),
        };
        Self::new(source, what, format!("build it against {wit}"))
    }

    pub(super) fn web(source: &Source, error: &str) -> Self {
        let cure = "put CA certificates where OpenSSL looks for them, or name their file in SSL_CERT_FILE";
        Self::new(source, format!("what allow.http grants cannot be set up: {error}"), cure)
    }

    pub(super) fn needs_memory(source: &Source, least: u64, memory: u64) -> Self {
        let (least, memory) = (bytesize::ByteSize(least), bytesize::ByteSize(memory));
        Self::new(
            source,
            format!("it starts with {least} of memory, but limits.memory is {memory}"),
            "raise limits.memory, give the container more memory, or build it with a smaller initial memory",
        )
    }

    pub(super) fn only_hooks(source: &Source) -> Self {
        Self::new(source, "it exports hooks, but no handler", "name it under `hooks`, and a handler under `handler`")
    }

    pub(super) fn no_hooks(source: &Source) -> Self {
        let hooks = "message-start, message-end, processing-timeout or state-changed";
        Self::new(
            source,
            "it exports no hook",
            format!("export one of hostler:consumer/{hooks}, or drop the key `hooks`"),
        )
    }
}

/// Reads a handler and compiles it unless it is compiled already.
///
/// # Errors
/// [`LoadError`] for a file that is missing, not what its pin says, no WASM, damaged, or no handler.
pub(super) fn read(engine: &Engine, source: &Source, pin: Option<&[u8; 32]>) -> Result<Artifact, LoadError> {
    contain(source, || read_uncontained(engine, source, pin))
}

fn read_uncontained(engine: &Engine, source: &Source, pin: Option<&[u8; 32]>) -> Result<Artifact, LoadError> {
    let unreadable = |error: io::Error| {
        LoadError::new(source, error.to_string(), "name a file that exists and that hostler's user can read")
    };
    let mut contents = Contents::open(source)?;
    if let Some(pin) = pin {
        // What is checked is what is loaded, whatever becomes of the file.
        let bytes = contents.all().map_err(unreadable)?;
        check_pin(source, &bytes, pin)?;
        contents = bytes.into();
    }
    foreign::refuse(source, &contents)?;
    let code = match compiled::is_compiled(&contents).map_err(unreadable)? {
        true => compiled::load(engine, source, &contents, pin.is_some() || source.is_trusted())?,
        false => build::build(engine, source, &contents.all().map_err(unreadable)?)?,
    };
    match code {
        Code::Component(component) => recognise_component(engine, source, component),
        Code::Module(module) => recognise_module(source, module),
    }
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
        "deploy the file that was meant, or set its pin (sha256; hooks_sha256 for hooks) to the new one's",
    ))
}

/// The binary form of a `.wasm` or `.wat` file.
pub(super) fn to_binary<'a>(source: &Source, bytes: &'a [u8]) -> Result<std::borrow::Cow<'a, [u8]>, LoadError> {
    if bytes.is_empty() {
        return Err(LoadError::new(source, "the file is empty", "build it again"));
    }
    wat::parse_bytes(bytes).map_err(|error| {
        LoadError::new(
            source,
            format!("it is neither WASM nor its text form: {error}"),
            "name a .wasm, .wat or .cwasm file",
        )
    })
}

/// Whether a WASM binary is a component: bytes 6 and 7 of its header are the layer, 1 for components
/// (component model, Binary.md).
pub(super) fn is_component(binary: &[u8]) -> bool {
    binary.get(6..8) == Some(&[1, 0])
}

/// The contracts of handlers that are no commands, in the order in which they are looked for: the export, the version that
/// this host speaks, and where its WIT is to be had.
const CONTRACTS: [(Role, &str, &str, &str); 3] = [
    (Role::Handler, HANDLER, VERSION, WIT),
    (Role::Messaging, messaging::HANDLER, messaging::VERSION, messaging::WIT),
    (Role::Wasmcloud, wasmcloud::HANDLER, wasmcloud::VERSION, wasmcloud::WIT),
];

/// How the SDKs mark the function that is exported, for who forgot it.
const SDKS: &str = "with an SDK: `#[handler]` above the function in Rust, `@hostler.handler` above it in Python, \
                    `export default` in JavaScript, `hostler.Run(handle)` in `main` in Go";

fn recognise_component(engine: &Engine, source: &Source, component: Component) -> Result<Artifact, LoadError> {
    let exports = |interface| self::interface(engine, &component, interface).is_some();
    if let Some((role, ..)) = CONTRACTS.iter().find(|(_, interface, ..)| exports(interface)) {
        return Ok(Artifact::Component(component, *role));
    }
    let names = export_names(engine, &component);
    for (_, interface, version, wit) in CONTRACTS {
        if let Some(other) = names.iter().find(|name| is_another(name, interface)) {
            let cure = format!("build it against {wit} ({interface}@{version})");
            return Err(LoadError::new(
                source,
                format!("it exports `{other}`, which this hostler does not speak"),
                cure,
            ));
        }
    }
    if exports(RUN) {
        return Ok(Artifact::Component(component, Role::Run));
    }
    if !HookSet::find(engine, &component, source)?.is_empty() {
        return Ok(Artifact::Component(component, Role::Hooks));
    }
    let found = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let cure = format!("export {HANDLER}@{VERSION} or {RUN}@0.2; {SDKS}");
    Err(LoadError::new(source, format!("it is a component that exports no handler (it exports {found})"), cure))
}

/// The names of a component's exports.
fn export_names(engine: &Engine, component: &Component) -> Vec<String> {
    component.component_type().exports(engine.inner()).map(|(name, _)| name.to_owned()).collect()
}

/// Whether an export that is not the one of a contract is meant as such: the same interface in another version, or, of a
/// package that is not ours, an interface of another draft.
fn is_another(export: &str, interface: &str) -> bool {
    let name = export.split('@').next().unwrap_or_default();
    let package = interface.split('/').next().filter(|_| interface != HANDLER);
    name == interface || package.is_some_and(|package| name.split('/').next() == Some(package))
}

fn recognise_module(source: &Source, module: Module) -> Result<Artifact, LoadError> {
    if let Some(start) = module.get_export("_start").as_ref().and_then(ExternType::func) {
        return match (start.params().len(), start.results().len()) {
            (0, 0) => Ok(Artifact::Command(module)),
            _ => {
                let what = "its `_start` takes parameters or gives results, which that of a command does not";
                Err(LoadError::new(source, what, "build it as a command (a program with `main`)"))
            }
        };
    }
    let cure = format!(
        "build it as a command (a program with `main`), or as a component that exports hostler:consumer/handler; {SDKS}"
    );
    Err(LoadError::new(source, "it is a core module without the function `_start`", cure))
}

/// The full name of the export `interface` in a version that this host speaks: the same minor version, as semver has it
/// for 0.x; or, of a draft, that version itself.
pub(super) fn interface(engine: &Engine, component: &Component, interface: &str) -> Option<String> {
    let spoken = |version: &str| match interface {
        messaging::HANDLER => version == messaging::VERSION,
        RUN | wasmcloud::HANDLER => version.starts_with("0.2."),
        _ => version.starts_with("0.1."),
    };
    export_names(engine, component).into_iter().find(|name| match name.split_once('@') {
        Some((name, version)) => name == interface && spoken(version),
        None => name == interface,
    })
}

/// Finds a function of an exported interface.
pub(super) fn find(engine: &Engine, component: &Component, name: &str, function: &str) -> Option<ComponentExportIndex> {
    let full = interface(engine, component, name)?;
    let instance = component.get_export_index(None, full.as_str())?;
    component.get_export_index(Some(&instance), function)
}
