//! Overrides WASI functions, and checks that each function exists in the linker under its expected name. Many overrides
//! enforce limits on guests. Without the check, if an update of wasmtime-wasi renamed a function, the override would
//! have no effect, and guests would no longer be limited.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, LinkerInstance};

/// Overrides `functions` of `interface` in the linker. `add` adds the overriding functions.
///
/// # Errors
/// A function is missing from the linker. After an error, the linker must not be used.
pub(super) fn before<T: Send + 'static>(
    linker: &mut Linker<T>,
    interface: &str,
    functions: &[&str],
    add: impl FnOnce(&mut LinkerInstance<'_, T>) -> wasmtime::Result<()>,
) -> wasmtime::Result<()> {
    let mut instance = linker.instance(interface)?;
    for function in functions {
        // If adding the function succeeds, the linker had no function of that name.
        if instance.func_wrap(function, |_: StoreContextMut<'_, T>, (): ()| Ok(())).is_ok() {
            return Err(wasmtime::Error::msg(format!(
                "wasmtime-wasi has no {interface}#{function}, before which hostler puts a bound: its version has changed, and hostler's \
                 constants have to follow"
            )));
        }
    }
    linker.allow_shadowing(true);
    add(&mut linker.instance(interface)?)?;
    linker.allow_shadowing(false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_of_wasi_is_noticed() {
        let engine = wasmtime::Engine::default();
        let mut linker = Linker::<()>::new(&engine);
        linker
            .instance("wasi:x/y@0.2.12")
            .unwrap()
            .func_wrap("here", |_: StoreContextMut<'_, ()>, (): ()| Ok(()))
            .unwrap();
        before(&mut linker, "wasi:x/y@0.2.12", &["here"], |_| Ok(())).unwrap();
        let missing = before(&mut linker, "wasi:x/y@0.2.13", &["here"], |_| Ok(())).unwrap_err().to_string();
        assert!(missing.contains("wasi:x/y@0.2.13#here"), "{missing}");
        assert!(before(&mut linker, "wasi:x/y@0.2.12", &["here", "there"], |_| Ok(())).is_err());
    }
}
