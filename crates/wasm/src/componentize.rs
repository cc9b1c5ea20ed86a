//! Conversion of core modules that describe their exports into components. Compilers produce such modules for targets without
//! components, such as `wasm32-unknown-unknown`. Such a component imports no WASI, and is the cheapest to instantiate.

use std::borrow::Cow;

use wasmtime::Module;
use wit_component::{ComponentEncoder, metadata};

use super::load_error::LoadError;
use super::source::Source;

/// The prefix of the names of custom sections in which a module describes its exports (`wit-component`, metadata).
const METADATA: &[u8] = b"component-type";

/// Returns the binary to compile: the component for a core module that describes one, any other binary unchanged.
///
/// # Errors
/// [`LoadError`] if a module describes its exports, but is damaged or cannot be made a component.
pub(super) fn componentized<'a>(
    engine: &wasmtime::Engine,
    source: &Source,
    binary: Cow<'a, [u8]>,
) -> Result<Cow<'a, [u8]>, LoadError> {
    // Most modules are commands without metadata. They are validated when they are compiled.
    if is_component(&binary) || !contains(&binary, METADATA) {
        return Ok(binary);
    }
    // The reader of the metadata panics on invalid modules.
    Module::validate(engine, &binary).map_err(|error| LoadError::invalid(source, &error))?;
    if !matches!(metadata::decode(&binary), Ok((Some(_), _))) {
        return Ok(binary);
    }
    let encoded = ComponentEncoder::default().validate(true).module(&binary).and_then(|mut encoder| encoder.encode());
    encoded.map(Cow::Owned).map_err(|error| {
        LoadError::new(
            source,
            format!("it is a core module that cannot be made the component which it says it is: {error:#}"),
            "build it for wasm32-wasip2, or for wasm32-unknown-unknown if it needs no WASI",
        )
    })
}

/// Returns the binary form of a `.wasm` or `.wat` file.
pub(super) fn to_binary<'a>(source: &Source, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, LoadError> {
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

/// Returns `true` if a WASM binary is a component: bytes 6 and 7 of its header are the layer, 1 for components (component
/// model, Binary.md).
pub(super) fn is_component(binary: &[u8]) -> bool {
    binary.get(6..8) == Some(&[1, 0])
}

fn contains(binary: &[u8], part: &[u8]) -> bool {
    binary.windows(part.len()).any(|window| window == part)
}
