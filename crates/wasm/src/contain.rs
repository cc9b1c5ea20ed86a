//! Catches panics of the libraries that read a handler's file. A panic is reported as a fault of the file.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::load_error::LoadError;
use super::source::Source;
use hostler_telemetry as telemetry;

/// Runs `step`, one of the steps in loading `source`. If `step` panics, returns the error for a file that cannot be
/// used.
pub(super) fn contain<T>(source: &Source, step: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    // Unwind safety: after a panic, only the result of the step and the state of the engine could be inconsistent. The
    // result is dropped, and the engine protects its state with locks.
    let ended = telemetry::expecting_panics(|| catch_unwind(AssertUnwindSafe(step)));
    ended.unwrap_or_else(|panic| {
        let what = format!("it cannot be read as WASM: {}", text(&*panic));
        Err(LoadError::new(source, what, "build it again; the file may be damaged or cut short"))
    })
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a library panicked without a text")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_panic_is_an_error_with_a_cure() {
        let source = Source::from(Path::new("a.wasm"));
        let failed = |step: fn() -> Result<(), LoadError>| contain(&source, step).unwrap_err().to_string();
        let said = failed(|| panic!("section {} is odd", 7));
        assert!(said.starts_with("handler a.wasm: it cannot be read as WASM: section 7 is odd\n  cure: "), "{said}");
        assert!(failed(|| panic!("odd")).contains("odd"));
        assert!(failed(|| std::panic::panic_any(7)).contains("without a text"));
        assert_eq!(contain(&source, || Ok(7)), Ok(7));
    }
}
