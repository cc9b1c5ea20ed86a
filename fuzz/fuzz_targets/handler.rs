//! Handlers' files: WASM in binary or text, damaged or hostile. Each is refused with a cure, or loads; what loads runs on a
//! message for 20 ms, and is gone when it is told to stop.

#![no_main]

use hostler_fuzz::guest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    match guest::load(file, false) {
        Ok(loaded) => {
            assert!(loaded.code_size() > 0);
            assert!(loaded.summary.imports.is_sorted());
            let _ = loaded.observes_states();
            let _ = guest::run(&loaded);
        }
        Err(error) => assert!(error.to_string().contains("\n  cure: "), "{error}"),
    }
});
