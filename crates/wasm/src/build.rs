//! Turns WASM into native code for this engine: compiles it, or loads code that an earlier run of hostler stored in the
//! cache.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use wasmtime::Module;
use wasmtime::component::Component;

use super::bulk::in_pieces;
use super::cache::Cache;
use super::compiled::{self, Built, Code};
use super::componentize::{componentized, is_component, to_binary};
use super::demand;
use super::engine::Engine;
use super::load_error::LoadError;
use super::source::Source;
use hostler_telemetry::{PROGRESS, Progress};
use hostler_types::digest::{hex, sha256};

/// Size in bytes from which a binary counts as large. Compiling a large binary may take a second or more.
const LARGE: usize = 2 << 20;

/// First words of the log line about the start of a long compilation.
pub const COMPILING: &str = "compiling a large handler";

/// The log line about the end of a long compilation. Its first field is `handler`.
pub const COMPILED: &str = "compiled";

/// Format version of cache entries that contain code. Must be increased if hostler changes how it rewrites binaries
/// before compilation, or which data it stores with the code. In entries of version 1 and later, bulk memory operations
/// are split into pieces. Entries of version 3 also contain the initial memory of the sandbox.
const SHAPE: u32 = 3;

/// Returns the native code for `wasm`, a handler in binary or text form. Uses the engine's cache, if it has one.
pub(super) fn build(engine: &Engine, source: &Source, wasm: &[u8]) -> Result<Built, LoadError> {
    let binary = to_binary(source, wasm)?;
    let Some(cache) = engine.cache() else {
        return compile_slowly(engine, source, &binary);
    };
    let name = entry(engine, &binary);
    if let Some(built) = cached(engine, cache, &name) {
        tracing::info!(handler = %source, "compiled code is from the cache");
        return Ok(built);
    }
    let built = compile_slowly(engine, source, &binary)?;
    match built.code.serialize() {
        Ok(bytes) => {
            let made_for = (std::env::consts::ARCH, "native");
            cache.put(&name, &compiled::pack(made_for, built.kind(), &bytes, None));
        }
        Err(error) => tracing::warn!(handler = %source, reason = format!("{error:#}"), "cannot cache compiled code"),
    }
    Ok(built)
}

/// Compiles a binary. If standard error is a terminal, shows a line there during the compilation. If the binary is
/// large, logs the start and the end of the compilation.
fn compile_slowly(engine: &Engine, source: &Source, binary: &[u8]) -> Result<Built, LoadError> {
    let _line = Progress::show(&format!("compiling {}", source.name()));
    if binary.len() < LARGE {
        return compile(engine, source, binary);
    }
    let size = bytesize::ByteSize(binary.len() as u64);
    let hint = match engine.cache() {
        Some(_) => "the next start takes the code from host.cache_dir",
        None => "`hostler compile` does it ahead of time, and host.cache_dir keeps the code for the next start",
    };
    tracing::info!(target: PROGRESS, handler = %source, %size, hint, "{COMPILING}, which can take half a minute");
    let begun = Instant::now();
    let built = compile(engine, source, binary)?;
    let seconds = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    tracing::info!(target: PROGRESS, handler = %source, seconds, "{COMPILED}");
    Ok(built)
}

fn compile(engine: &Engine, source: &Source, binary: &[u8]) -> Result<Built, LoadError> {
    let engine = engine.inner();
    let binary = in_pieces(componentized(engine, source, Cow::Borrowed(binary))?);
    let code = if is_component(&binary) {
        Component::from_binary(engine, &binary).map(Code::Component)
    } else {
        Module::from_binary(engine, &binary).map(Code::Module)
    };
    let code = code.map_err(|error| {
        if is_sound(engine, &binary) {
            LoadError::too_large(source, &error)
        } else {
            LoadError::invalid(source, &error)
        }
    })?;
    let memory = demand::check(source, &binary)?;
    Ok(Built { code, memory })
}

/// Returns `true` if `binary`, which could not be loaded, is nevertheless valid WASM. Tries to precompile the binary,
/// because, unlike loading, precompiling does not check the limits of the sandbox pool.
fn is_sound(engine: &wasmtime::Engine, binary: &[u8]) -> bool {
    if is_component(binary) {
        engine.precompile_component(binary).is_ok()
    } else {
        engine.precompile_module(binary).is_ok()
    }
}

fn cached(engine: &Engine, cache: &Cache, name: &str) -> Option<Built> {
    let bytes = cache.get(name)?;
    match compiled::load_own(engine, bytes.into()) {
        Ok(built) => Some(built),
        Err(why) => {
            cache.discard(name, &why);
            None
        }
    }
}

/// Returns the name of the cache entry for the code of `binary`. The name contains the SHA-256 of the binary, hostler's
/// version, and a hash of everything that affects the code that the engine generates, including the CPU's instruction
/// set.
fn entry(engine: &Engine, binary: &[u8]) -> String {
    let mut engine_hash = DefaultHasher::new();
    engine.inner().precompile_compatibility_hash().hash(&mut engine_hash);
    let digest = hex(&sha256(binary));
    format!("code-{digest}-{SHAPE}-{}-{:016x}", env!("CARGO_PKG_VERSION"), engine_hash.finish())
}
