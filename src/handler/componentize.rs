//! Components out of core modules that say what they export: what a compiler leaves for a target that knows no components,
//! such as `wasm32-unknown-unknown`. Such a component imports no WASI, and is the cheapest to instantiate.

use std::borrow::Cow;

use wit_component::{ComponentEncoder, metadata};

use super::artifact::{LoadError, is_component};
use super::source::Source;

/// What is to be compiled of a binary: the component that a core module holds; any other binary as it is.
///
/// # Errors
/// [`LoadError`] where a module says what it exports, but cannot be made a component.
pub(super) fn componentized<'a>(source: &Source, binary: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, LoadError> {
    // What is no valid module is for the compiler to refuse.
    if is_component(&binary) || !matches!(metadata::decode(&binary), Ok((Some(_), _))) {
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
