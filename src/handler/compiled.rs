//! Handlers compiled ahead of time: the `.cwasm` file, written by `hostler compile` and checked before it is believed.
//!
//! The file is a magic, the length of a JSON header (4 bytes, little endian), the header, and the code. Compiled code is
//! trusted by the engine, so it is used only when its header names this version of hostler and its digest fits; the
//! engine then checks its own version, its settings and the CPU. The operator vouches for where the file came from.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmtime::Module;
use wasmtime::component::Component;

use super::artifact::{LoadError, is_component, to_binary};
use super::engine::{Engine, base_config};

const MAGIC: &[u8; 8] = b"hostler\x01";

/// The longest header that is believed, in bytes.
const MAX_HEADER: usize = 4 * 1024;

/// How to mend any fault of such a file.
const CURE: &str = "make it again with `hostler compile` of the version that runs it";

/// The first bytes of the engine's own artifacts, which are ELF files.
const ELF: &[u8] = b"\x7fELF";

#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of hostler that wrote it.
    hostler: String,
    /// What the code is for.
    target: String,
    /// The CPU that the code needs.
    cpu_baseline: String,
    /// Whether the code is a component, and not a core module.
    component: bool,
    /// The SHA-256 of the code.
    sha256: String,
}

/// Loaded code.
pub(super) enum Code {
    Component(Component),
    Module(Module),
}

/// The least CPU that compiled code may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuBaseline {
    /// What every CPU of the architecture has.
    Generic,
    /// x86-64-v2 (SSE4.2): any x86-64 server since 2009. On other architectures the same as generic.
    #[default]
    V2,
    /// x86-64-v3 (AVX2, BMI, FMA): most x86-64 servers since 2015. On other architectures the same as generic.
    V3,
    /// All that the CPU at hand has.
    Native,
}

impl CpuBaseline {
    /// The names that the command line takes.
    pub const NAMES: [&str; 4] = ["generic", "x86-64-v2", "x86-64-v3", "native"];

    /// Cranelift's names for what the baseline adds to plain x86-64 (x86-64 psABI, micro-architecture levels).
    fn x86_flags(self) -> &'static [&'static str] {
        const V3: [&str; 12] = [
            "has_cmpxchg16b",
            "has_sse3",
            "has_ssse3",
            "has_sse41",
            "has_sse42",
            "has_popcnt",
            "has_avx",
            "has_avx2",
            "has_bmi1",
            "has_bmi2",
            "has_lzcnt",
            "has_fma",
        ];
        match self {
            Self::Generic | Self::Native => &[],
            Self::V2 => V3.split_at(6).0,
            Self::V3 => &V3,
        }
    }
}

impl fmt::Display for CpuBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::V2 => "x86-64-v2",
            Self::V3 => "x86-64-v3",
            Self::Native => "native",
        })
    }
}

impl FromStr for CpuBaseline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "generic" => Ok(Self::Generic),
            "x86-64-v2" => Ok(Self::V2),
            "x86-64-v3" => Ok(Self::V3),
            "native" => Ok(Self::Native),
            _ => Err(format!("`{text}` is none of {}", Self::NAMES.join(", "))),
        }
    }
}

/// Why a handler was not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The handler is at fault.
    #[error(transparent)]
    Handler(#[from] LoadError),
    /// The target is none that this build can compile for.
    #[error(
        "cannot compile for `{target}`: {why}\n  cure: leave --target out, or run `hostler compile` on a machine of that kind"
    )]
    Target {
        /// The target as asked for.
        target: String,
        /// The compiler's words.
        why: String,
    },
}

/// Compiles a `.wasm` or `.wat` handler into the bytes of a `.cwasm` file. `target` is a target triple; without it,
/// the machine at hand.
///
/// # Errors
/// [`CompileError`] names the handler or the target at fault.
pub fn compile(path: &Path, target: Option<&str>, baseline: CpuBaseline) -> Result<Vec<u8>, CompileError> {
    let host =
        format!("{}-unknown-linux-{}", std::env::consts::ARCH, if cfg!(target_env = "musl") { "musl" } else { "gnu" });
    let target = target.unwrap_or(&host).to_owned();
    let refused = |why: wasmtime::Error| CompileError::Target { target: target.clone(), why: format!("{why:#}") };
    let mut config = base_config();
    if baseline != CpuBaseline::Native {
        config.target(&target).map_err(refused)?;
        if target.starts_with("x86_64") {
            for flag in baseline.x86_flags() {
                // SAFETY: these flags let the compiler use instructions. The engine refuses to load code for
                // instructions that the CPU lacks.
                #[allow(unsafe_code, reason = "the CPU baseline is set by flags of the code generator")]
                unsafe {
                    config.cranelift_flag_enable(flag);
                }
            }
        }
    } else if target != host {
        return Err(CompileError::Target { target, why: "the native baseline is for the machine at hand".into() });
    }
    let engine = wasmtime::Engine::new(&config).map_err(refused)?;

    let read =
        std::fs::read(path).map_err(|error| LoadError::new(path, error.to_string(), "name a file that exists"))?;
    if is_compiled(&read) {
        return Err(LoadError::new(path, "it is compiled already", "name the .wasm or .wat file").into());
    }
    let binary = to_binary(path, &read)?;
    let component = is_component(&binary);
    let code = if component { engine.precompile_component(&binary) } else { engine.precompile_module(&binary) };
    let code =
        code.map_err(|error| LoadError::new(path, format!("it is no valid WASM: {error:#}"), "build it again"))?;

    let header = Header {
        hostler: env!("CARGO_PKG_VERSION").into(),
        target,
        cpu_baseline: baseline.to_string(),
        component,
        sha256: hex(&Sha256::digest(&code)),
    };
    let header = serde_json::to_vec(&header).unwrap_or_default();
    let length = u32::try_from(header.len()).unwrap_or_default();
    Ok([MAGIC, &length.to_le_bytes()[..], &header, &code].concat())
}

/// Whether a file is compiled code, by its first bytes: ours, or the engine's own kind.
pub(super) fn is_compiled(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(ELF)
}

/// Checks and loads compiled code.
pub(super) fn load(engine: &Engine, path: &Path, bytes: &[u8]) -> Result<Code, LoadError> {
    let (header, code) = open(bytes).map_err(|what| LoadError::new(path, what, CURE))?;
    let unfit = |error: wasmtime::Error| {
        let what =
            format!("this machine cannot run it (compiled for {}, {}): {error:#}", header.target, header.cpu_baseline);
        LoadError::new(path, what, CURE)
    };
    // SAFETY: the code is what this version of `hostler compile` wrote, as its digest shows, and the engine checks that
    // its own version, its settings and the CPU fit. The operator names the file and so vouches for its origin.
    #[allow(unsafe_code, reason = "compiled code cannot be verified, only recognised")]
    unsafe {
        match header.component {
            true => Component::deserialize(engine.inner(), code).map(Code::Component).map_err(unfit),
            false => Module::deserialize(engine.inner(), code).map(Code::Module).map_err(unfit),
        }
    }
}

/// Splits a file into its header and its code, if both are sound.
fn open(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
    if bytes.starts_with(ELF) {
        return Err("it is compiled code, but not by `hostler compile`".into());
    }
    let short = || "the compiled file is cut short".to_owned();
    let rest = bytes.get(MAGIC.len()..).ok_or_else(short)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err("the compiled file is damaged: its header is too long".into());
    }
    let (header, code) = rest.split_at_checked(length).ok_or_else(short)?;
    let header: Header = serde_json::from_slice(header)
        .map_err(|error| format!("the compiled file is damaged: its header is no JSON: {error}"))?;
    if header.hostler != env!("CARGO_PKG_VERSION") {
        return Err(format!("it was compiled by hostler {}; this is {}", header.hostler, env!("CARGO_PKG_VERSION")));
    }
    if header.sha256 != hex(&Sha256::digest(code)) {
        return Err("the compiled file is cut short or damaged: its digest does not fit".into());
    }
    Ok((header, code))
}

/// Lowercase hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
