//! Detects native programs by their first bytes. For a native program, the error suggests building for WASI. Without
//! the detection, the error would report a damaged file.

use super::load_error::LoadError;
use super::source::{Contents, Source};

/// Value of the operating-system field in the header of the engine's own ELF artifacts (`ELFOSABI_WASMTIME`).
const ENGINE: u8 = 200;

/// Offset of the operating-system field in an ELF header (`EI_OSABI`).
const SYSTEM: usize = 7;

/// Suggested fix: build the program for WASI.
const CURE: &str = "build it for WASI: Go with GOOS=wasip1 GOARCH=wasm, Rust with --target wasm32-wasip1, C with the clang of \
                    the WASI SDK";

/// Returns an error if `contents` is a native program. `source`: source of `contents`, for the error message.
pub(super) fn refuse(source: &Source, contents: &Contents) -> Result<(), LoadError> {
    let start = contents.read(0..contents.length().min(SYSTEM as u64 + 1));
    let start = start.map_err(|error| LoadError::unreadable(source, &error))?;
    match kind(&start) {
        Some(kind) => Err(LoadError::new(source, format!("it is a native {kind} program, not WASM"), CURE)),
        None => Ok(()),
    }
}

/// Returns the format of a native program, detected from the first bytes of the file. `None`: the file is not a native
/// program.
fn kind(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x7f, b'E', b'L', b'F', ..] if start.get(SYSTEM) != Some(&ENGINE) => Some("ELF"),
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => Some("Mach-O"),
        [b'M', b'Z', ..] => Some("Windows"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_first_bytes() {
        for (start, expected) in [
            (&b"\x7fELF\x02\x01\x01\x00"[..], Some("ELF")),
            (b"\x7fELF", Some("ELF")),
            (b"\x7fELF\x02\x01\x01\xc8", None),
            (b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", Some("Mach-O")),
            (b"MZ\x90\x00", Some("Windows")),
            (b"\0asm\x01\0\0\0", None),
            (b"(module)", None),
            (b"", None),
        ] {
            assert_eq!(kind(start), expected, "{start:?}");
        }
    }
}
