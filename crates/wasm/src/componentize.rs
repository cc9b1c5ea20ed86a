//! Converts a core module into a component if the module contains a description of its exports. Compilers produce such
//! modules for targets without component support, for example `wasm32-unknown-unknown`. The resulting component imports
//! no WASI, so it is cheap to instantiate.

use std::borrow::Cow;

use wasmtime::Module;
use wit_component::{ComponentEncoder, metadata};

use super::load_error::LoadError;
use super::source::Source;

/// Prefix of the names of the custom sections in which a module describes its exports (crate `wit-component`, module
/// `metadata`).
const METADATA: &[u8] = b"component-type";

/// Returns the binary to compile. If `binary` is a core module that contains a description of its exports, returns the
/// component into which the module was converted. Returns any other binary unchanged.
///
/// # Errors
/// [`LoadError`] if the module is damaged or cannot be converted.
pub(super) fn componentized<'a>(
    engine: &wasmtime::Engine,
    source: &Source,
    binary: Cow<'a, [u8]>,
) -> Result<Cow<'a, [u8]>, LoadError> {
    // Most modules are commands without metadata. The compiler validates them later.
    if is_component(&binary) || !contains(&binary, METADATA) {
        return Ok(binary);
    }
    // Validates first, because the metadata reader panics on invalid modules.
    Module::validate(engine, &binary).map_err(|error| LoadError::invalid(source, &error))?;
    if !matches!(metadata::decode(&binary), Ok((Some(_), _))) {
        return Ok(binary);
    }
    let encoded = ComponentEncoder::default().validate(true).module(&binary).and_then(|mut encoder| encoder.encode());
    encoded.map(Cow::Owned).map_err(|error| {
        LoadError::new(
            source,
            format!("it is a core module that cannot be converted into the component that it describes: {error:#}"),
            "build it for wasm32-wasip2, or for wasm32-unknown-unknown if it needs no WASI",
        )
    })
}

/// First bytes of a Git LFS pointer, which takes the place of a file that is stored elsewhere (Git LFS, spec.md).
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns the binary form of a `.wasm` or `.wat` file.
pub(super) fn to_binary<'a>(source: &Source, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, LoadError> {
    if bytes.is_empty() {
        return Err(LoadError::new(source, "the file is empty", "build it again"));
    }
    wat::parse_bytes(bytes).map_err(|error| {
        if bytes.starts_with(LFS_POINTER) {
            let cure = "run `git lfs pull`, and deploy the file that this fetches";
            return LoadError::new(source, "it is a pointer of Git LFS, not the file itself", cure);
        }
        let what = "it is neither WASM nor its text form";
        // The text form of WASM starts with a parenthesis or a comment. For any other text, the parser's error would
        // not help.
        if !bytes.trim_ascii_start().starts_with(b"(") && !bytes.trim_ascii_start().starts_with(b";;") {
            return LoadError::new(
                source,
                what,
                "compile the handler for WASI, and name the .wasm, .wat or .cwasm file",
            );
        }
        LoadError::new(source, format!("{what}: {error}"), "name a .wasm, .wat or .cwasm file")
    })
}

/// Returns `true` if a WASM binary is a component. Bytes 6 and 7 of the header contain the layer, which is 1 for a
/// component (component model specification, Binary.md).
pub(super) fn is_component(binary: &[u8]) -> bool {
    binary.get(6..8) == Some(&[1, 0])
}

fn contains(binary: &[u8], part: &[u8]) -> bool {
    binary.windows(part.len()).any(|window| window == part)
}
