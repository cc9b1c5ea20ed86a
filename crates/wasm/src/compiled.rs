//! Handlers that are compiled ahead of time. `hostler compile` writes the `.cwasm` file, and hostler verifies the file
//! before use.
//!
//! A file consists of these parts, in order:
//!
//! - the name `hostler` (7 bytes),
//! - the format version (1 byte),
//! - the length of the header (4 bytes, little endian),
//! - the header (JSON),
//! - the code,
//! - the WASM that the code was compiled from (optional).
//!
//! The engine trusts compiled code. hostler therefore uses the code only if the header names this version of hostler
//! and the digest of the code matches. The engine then checks its own version, its settings and the CPU. If the code is
//! intact but cannot run on this machine, hostler compiles the WASM in the file instead. hostler refuses a damaged
//! file. The operator is responsible for where the file comes from.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasmtime::Module;
use wasmtime::component::Component;

use super::bulk::in_pieces;
use super::componentize::{componentized, is_component, to_binary};
use super::contain::contain;
use super::demand;
use super::engine::{Engine, base_config};
use super::foreign;
use super::load_error::LoadError;
use super::source::{Contents, Source};
use hostler_telemetry::Progress;
use hostler_types::digest::{hex, sha256};

const NAME: &[u8; 7] = b"hostler";

/// Format version of the file. Version 1 contained no WASM.
const FORMAT: u8 = 2;

/// Size of the fixed part of the file in bytes: the name, the format version, and the length of the header.
const PREFIX: u64 = 12;

/// Maximum length of a header in bytes.
const MAX_HEADER: u64 = 4 * 1024;

/// Suggested fix for any fault in a compiled file.
const CURE: &str = "compile it again with `hostler compile` of the version that runs it";

/// Suggested fix for compiled code that was fetched without a pin.
const PIN: &str = "pin it: by the key sha256, or by @sha256:… in an oci:// reference; or name the .wasm file";

/// Magic number of ELF files. The engine's own artifacts are ELF files.
const ELF: &[u8] = b"\x7fELF";

#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of hostler that wrote the file.
    hostler: String,
    /// The target triple that the code was compiled for.
    target: String,
    /// The CPU baseline that the code requires.
    cpu_baseline: String,
    /// Set if the code is a component rather than a core module.
    component: bool,
    /// Initial linear memory of a sandbox in bytes, summed over all instances in the sandbox.
    #[serde(default)]
    memory: u64,
    /// Length and digest of the code, which follows the header.
    code: Part,
    /// Length and digest of the WASM, which follows the code. `None`: the file contains no WASM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Part>,
}

/// Digest and length in bytes of a part of the file.
#[derive(Serialize, Deserialize)]
struct Part {
    sha256: String,
    length: u64,
}

impl Part {
    fn of(bytes: &[u8]) -> Self {
        Self { sha256: hex(&sha256(bytes)), length: bytes.len() as u64 }
    }
}

/// Code that the engine has loaded.
pub(super) enum Code {
    Component(Component),
    Module(Module),
}

/// Code that the engine has loaded, and the initial memory of a sandbox that runs it.
pub(super) struct Built {
    pub(super) code: Code,
    /// Initial linear memory of a sandbox in bytes, summed over all instances in the sandbox.
    pub(super) memory: u64,
}

impl Built {
    pub(super) fn kind(&self) -> CodeKind {
        CodeKind { component: matches!(self.code, Code::Component(_)), memory: self.memory }
    }
}

/// The fields in a file's header that describe the code.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeKind {
    /// Set if the code is a component rather than a core module.
    component: bool,
    /// Initial linear memory of a sandbox in bytes, summed over all instances in the sandbox.
    memory: u64,
}

impl Code {
    /// Returns the code in the engine's own artifact format.
    pub(super) fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        match self {
            Self::Component(component) => component.serialize(),
            Self::Module(module) => module.serialize(),
        }
    }
}

/// The oldest CPU that compiled code must run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuBaseline {
    /// Every CPU of the architecture.
    Generic,
    /// x86-64-v2 (SSE4.2), which every x86-64 server since 2009 supports. Equal to `Generic` on other architectures.
    #[default]
    V2,
    /// x86-64-v3 (AVX2, BMI, FMA), which most x86-64 servers since 2015 support. Equal to `Generic` on other
    /// architectures.
    V3,
    /// All features of this machine's CPU.
    Native,
}

impl CpuBaseline {
    /// Names of the baselines as written on the command line.
    pub const NAMES: [&str; 4] = ["generic", "x86-64-v2", "x86-64-v3", "native"];

    /// All baselines, in the order of [`Self::NAMES`].
    const ALL: [Self; 4] = [Self::Generic, Self::V2, Self::V3, Self::Native];

    /// Returns the CPU features that the baseline adds to plain x86-64, as Cranelift names them (x86-64 psABI,
    /// micro-architecture levels).
    fn x86_flags(self) -> impl Iterator<Item = &'static str> {
        let v2 = "cmpxchg16b sse3 ssse3 sse41 sse42 popcnt";
        let (v2, v3) = match self {
            Self::Generic | Self::Native => ("", ""),
            Self::V2 => (v2, ""),
            Self::V3 => (v2, "avx avx2 bmi1 bmi2 lzcnt fma"),
        };
        v2.split_whitespace().chain(v3.split_whitespace())
    }
}

impl fmt::Display for CpuBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for CpuBaseline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::ALL.into_iter().zip(Self::NAMES);
        let mut named = all.filter(|(_, name)| *name == text).map(|(baseline, _)| baseline);
        named.next().ok_or_else(|| format!("write one of {}", Self::NAMES.join(", ")))
    }
}

/// The error for a handler that could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The handler is at fault.
    #[error(transparent)]
    Handler(#[from] LoadError),
    /// This build cannot compile for the target.
    #[error(
        "cannot compile for `{target}`: {why}\n  cure: leave --target out, or run `hostler compile` on a machine of that kind"
    )]
    Target {
        /// The requested target triple.
        target: String,
        /// The compiler's error message.
        why: String,
    },
}

/// Options for compiling a handler ahead of time.
#[derive(Debug, Clone, Copy)]
pub struct Recipe<'a> {
    /// The target triple. `None`: the target is this machine.
    pub target: Option<&'a str>,
    /// The oldest CPU that the code must run on.
    pub baseline: CpuBaseline,
    /// Set to include the WASM in the file. A machine that cannot run the compiled code can then compile the WASM.
    pub with_source: bool,
}

/// Compiles a `.wasm` or `.wat` handler and returns the bytes of the `.cwasm` file.
///
/// # Errors
/// [`CompileError`] names the handler or the target at fault.
pub fn compile(source: &Source, recipe: Recipe<'_>) -> Result<Vec<u8>, CompileError> {
    let baseline = recipe.baseline;
    // The code does not depend on the C library that hostler is linked with. The engine compares only the architecture
    // and the operating system.
    let here = ["gnu", "musl"].map(|library| format!("{}-unknown-linux-{library}", std::env::consts::ARCH));
    let target = recipe.target.unwrap_or(&here[0]).to_owned();
    let refused = |why: wasmtime::Error| CompileError::Target { target: target.clone(), why: format!("{why:#}") };
    let mut config = base_config();
    if baseline != CpuBaseline::Native {
        config.target(&target).map_err(refused)?;
        if target.starts_with("x86_64") {
            for flag in baseline.x86_flags() {
                // SAFETY: these flags allow the compiler to use additional instructions. The engine does not load code
                // with instructions that the CPU lacks.
                #[allow(unsafe_code, reason = "the CPU baseline is set by flags of the code generator")]
                unsafe {
                    config.cranelift_flag_enable(&format!("has_{flag}"));
                }
            }
        }
    } else if !here.contains(&target) {
        return Err(CompileError::Target { target, why: "the native baseline is for the machine at hand".into() });
    }
    let engine = wasmtime::Engine::new(&config).map_err(refused)?;

    let unreadable = |error: std::io::Error| LoadError::unreadable(source, &error);
    let contents = Contents::open(source)?;
    foreign::refuse(source, &contents)?;
    if is_compiled(&contents).map_err(unreadable)? {
        return Err(LoadError::new(source, "it is compiled already", "name the .wasm or .wat file").into());
    }
    let read = contents.all().map_err(unreadable)?;
    let _line = Progress::show(&format!("compiling {}", source.name()));
    let (binary, code, memory) = contain(source, || {
        let binary = componentized(&engine, source, to_binary(source, &read)?)?;
        let divided = in_pieces(Cow::Borrowed(&*binary));
        let code = if is_component(&divided) {
            engine.precompile_component(&divided)
        } else {
            engine.precompile_module(&divided)
        };
        let code = code.map_err(|error| LoadError::invalid(source, &error))?;
        let memory = demand::check(source, &binary)?;
        Ok((binary, code, memory))
    })?;
    let kind = CodeKind { component: is_component(&binary), memory };
    Ok(pack((&target, &baseline.to_string()), kind, &code, recipe.with_source.then_some(&*binary)))
}

/// Returns the bytes of a compiled file. `made_for`: target and CPU baseline, which appear only in error messages.
/// `source`: WASM to include in the file, if any.
pub(super) fn pack(made_for: (&str, &str), kind: CodeKind, code: &[u8], source: Option<&[u8]>) -> Vec<u8> {
    let header = Header {
        hostler: env!("CARGO_PKG_VERSION").into(),
        target: made_for.0.into(),
        cpu_baseline: made_for.1.into(),
        component: kind.component,
        memory: kind.memory,
        code: Part::of(code),
        source: source.map(Part::of),
    };
    let header = serde_json::to_vec(&header).unwrap_or_default();
    let length = u32::try_from(header.len()).unwrap_or_default();
    [&NAME[..], &[FORMAT], &length.to_le_bytes(), &header, code, source.unwrap_or_default()].concat()
}

/// Returns `true` if a file starts as compiled code does: with the name `hostler`, or with the ELF magic number.
pub(super) fn is_compiled(contents: &Contents) -> std::io::Result<bool> {
    let start = contents.read(0..contents.length().min(NAME.len() as u64))?;
    Ok(start.starts_with(NAME) || start.starts_with(ELF))
}

/// The reason why compiled code is not used.
enum Fault {
    /// The file is damaged: the contents differ from the contents that hostler wrote.
    Damaged(String),
    /// The code is intact, but cannot be used on this machine. The fields are the reason and the fix.
    Unfit(String, &'static str),
}

/// The result of loading a compiled file.
pub(super) enum Found {
    Code(Built),
    /// The WASM in the file. Returned if this machine cannot use the compiled code.
    Wasm(Bytes),
}

/// Verifies and loads compiled code. If the code cannot be used on this machine, returns the WASM in the file instead.
/// `trusted`: `true` if the operator has vouched for the origin of the bytes (see [`Source::is_trusted`]).
pub(super) fn load(engine: &Engine, source: &Source, contents: &Contents, trusted: bool) -> Result<Found, LoadError> {
    let damaged = |what| LoadError::new(source, what, CURE);
    let file = File::open(contents).map_err(damaged)?;
    let loaded = if trusted {
        file.load(engine)
    } else {
        Err(Fault::Unfit("it is compiled code from elsewhere, and not pinned by a digest".into(), PIN))
    };
    let (reason, cure) = match loaded {
        Ok(built) => return Ok(Found::Code(built)),
        Err(Fault::Damaged(what)) => return Err(damaged(what)),
        Err(Fault::Unfit(reason, cure)) => (reason, cure),
    };
    let Some(wasm) = file.source().map_err(damaged)? else {
        return Err(LoadError::new(source, reason, cure));
    };
    tracing::warn!(handler = %source, reason, cure, "compiled code is not used: the WASM beside it is compiled instead");
    Ok(Found::Wasm(wasm))
}

/// Loads compiled code that hostler itself stored in the cache. The error is the reason why the code cannot be used.
pub(super) fn load_own(engine: &Engine, bytes: Bytes) -> Result<Built, String> {
    match File::open(&bytes.into())?.load(engine) {
        Ok(built) => Ok(built),
        Err(Fault::Damaged(what) | Fault::Unfit(what, _)) => Err(what),
    }
}

/// A compiled file: the header, and the byte ranges of the code and the WASM.
struct File<'a> {
    contents: &'a Contents,
    header: Header,
    code: Range<u64>,
    source: Range<u64>,
}

impl<'a> File<'a> {
    /// Reads the header and checks the length of the file. Fails if the file is damaged, has another format version, or
    /// was written by another tool.
    fn open(contents: &'a Contents) -> Result<Self, String> {
        let short = |_| "the compiled file is cut short".to_owned();
        if contents.read(0..contents.length().min(4)).map_err(short)?.starts_with(ELF) {
            return Err("it is compiled code, but not by `hostler compile`".into());
        }
        let prefix = contents.read(0..PREFIX).map_err(short)?;
        let format = prefix.get(NAME.len()).copied().unwrap_or_default();
        if format != FORMAT {
            return Err(format!(
                "the compiled file is damaged, or from another version of hostler: its format is {format}"
            ));
        }
        let length = prefix.last_chunk::<4>().map_or(u64::MAX, |length| u32::from_le_bytes(*length).into());
        if length > MAX_HEADER {
            return Err("the compiled file is damaged: its header is too long".into());
        }
        let code = PREFIX + length;
        let header = contents.read(PREFIX..code).map_err(short)?;
        let header: Header = serde_json::from_slice(&header).map_err(|error| {
            format!("the compiled file is damaged: its header is not JSON that hostler wrote: {error}")
        })?;
        let source = code.saturating_add(header.code.length);
        let end = source.saturating_add(header.source.as_ref().map_or(0, |source| source.length));
        if end != contents.length() {
            let (found, told) = (contents.length(), end);
            return Err(format!("the compiled file is cut short or damaged: it has {found} bytes instead of {told}"));
        }
        Ok(Self { contents, header, code: code..source, source: source..end })
    }

    fn load(&self, engine: &Engine) -> Result<Built, Fault> {
        let header = &self.header;
        if header.hostler != env!("CARGO_PKG_VERSION") {
            let what = format!("it was compiled by hostler {}; this is {}", header.hostler, env!("CARGO_PKG_VERSION"));
            return Err(Fault::Unfit(what, CURE));
        }
        let code = self.part(&header.code, &self.code, "code").map_err(Fault::Damaged)?;
        let unfit = |error: wasmtime::Error| {
            let (target, baseline) = (&header.target, &header.cpu_baseline);
            let what = format!("this machine cannot run it (compiled for {target}, {baseline}): {error:#}");
            Fault::Unfit(what, CURE)
        };
        // SAFETY: the digest shows that the code is unchanged since this version of hostler compiled the handler. The
        // engine checks its own version, its settings and the CPU. The operator has vouched for the origin of the code
        // by naming the file or its digest. Code in the cache was written by hostler itself.
        #[allow(unsafe_code, reason = "compiled code cannot be verified, only recognised")]
        let code = unsafe {
            if header.component {
                Component::deserialize(engine.inner(), &code).map(Code::Component).map_err(unfit)
            } else {
                Module::deserialize(engine.inner(), &code).map(Code::Module).map_err(unfit)
            }
        };
        Ok(Built { code: code?, memory: header.memory })
    }

    /// Returns the WASM. `None`: the file contains no WASM.
    fn source(&self) -> Result<Option<Bytes>, String> {
        let Some(part) = &self.header.source else { return Ok(None) };
        let wasm = self.part(part, &self.source, "WASM")?;
        if is_component(&wasm) == self.header.component {
            Ok(Some(wasm))
        } else {
            Err("the compiled file is damaged: its code is of another kind than its WASM".into())
        }
    }

    /// Reads a part of the file and verifies its digest. `name`: name of the part for the error message.
    fn part(&self, part: &Part, range: &Range<u64>, name: &str) -> Result<Bytes, String> {
        let bytes = self.contents.read(range.clone()).map_err(|error| error.to_string())?;
        if hex(&sha256(&bytes)) == part.sha256 {
            Ok(bytes)
        } else {
            Err(format!("the compiled file is damaged: the digest of its {name} does not fit"))
        }
    }
}
