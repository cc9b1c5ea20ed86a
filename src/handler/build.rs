//! WASM → code of the engine at hand: compiled, or taken from the cache of an earlier start.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use wasmtime::Module;
use wasmtime::component::Component;

use super::artifact::{LoadError, is_component, to_binary};
use super::bulk::in_pieces;
use super::cache::Cache;
use super::compiled::{self, Code};
use super::componentize::componentized;
use super::engine::Engine;
use super::source::Source;
use crate::digest::{hex, sha256};

/// Changes whenever a binary is changed in another way before it is compiled. 1: bulk memory operations in pieces.
const SHAPE: u32 = 1;

/// The code of a WASM binary or text.
pub(super) fn build(engine: &Engine, source: &Source, wasm: &[u8]) -> Result<Code, LoadError> {
    let binary = to_binary(source, wasm)?;
    let Some(cache) = engine.cache() else { return compile(engine, source, &binary) };
    let name = entry(engine, &binary);
    if let Some(code) = cached(engine, cache, &name) {
        tracing::info!(handler = %source, "compiled code is from the cache");
        return Ok(code);
    }
    let code = compile(engine, source, &binary)?;
    match code.serialize() {
        Ok(bytes) => {
            let made_for = (std::env::consts::ARCH, "native");
            cache.put(&name, &compiled::pack(made_for, matches!(code, Code::Component(_)), &bytes, None));
        }
        Err(error) => tracing::warn!(handler = %source, reason = format!("{error:#}"), "compiled code is not kept"),
    }
    Ok(code)
}

fn compile(engine: &Engine, source: &Source, binary: &[u8]) -> Result<Code, LoadError> {
    let bad = |error: wasmtime::Error| {
        LoadError::new(
            source,
            format!("it is no valid WASM: {error:#}"),
            "build it again; the file may be damaged or cut short",
        )
    };
    let binary = in_pieces(componentized(source, Cow::Borrowed(binary))?);
    match is_component(&binary) {
        true => Component::from_binary(engine.inner(), &binary).map(Code::Component).map_err(bad),
        false => Module::from_binary(engine.inner(), &binary).map(Code::Module).map_err(bad),
    }
}

fn cached(engine: &Engine, cache: &Cache, name: &str) -> Option<Code> {
    let bytes = cache.get(name)?;
    match compiled::load_own(engine, bytes.into()) {
        Ok(code) => Some(code),
        Err(why) => {
            cache.discard(name, &why);
            None
        }
    }
}

/// The name of the entry that holds this binary's code: by its digest, by the version of hostler, and by all that the
/// engine says shapes its code, the CPU's instructions included.
fn entry(engine: &Engine, binary: &[u8]) -> String {
    let mut engine_hash = DefaultHasher::new();
    engine.inner().precompile_compatibility_hash().hash(&mut engine_hash);
    let digest = hex(&sha256(binary));
    format!("code-{digest}-{SHAPE}-{}-{:016x}", env!("CARGO_PKG_VERSION"), engine_hash.finish())
}
