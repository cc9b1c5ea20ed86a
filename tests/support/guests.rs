//! Guests in `tests/guests`. Each is a tiny program with one behaviour, described by its first line.
//!
//! A command guest is used as a core module. A component guest is written as its core module. Its world is defined in comments
//! (`;; world:` for items of the world, `;; package:` for an additional package), and is the world of the contract without such
//! comments.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// World of a guest that names no world.
const CONSUMER: &str = "include hostler:consumer/consumer@0.1.0;";

/// Code that a component needs to receive lists, unless the component has its own: memory, and an allocator that never frees.
const ALLOCATOR: &str = r#"
  (memory (export "memory") 1)
  (global $heap (mut i32) (i32.const 4096))
  (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
    (global.get $heap)
    (global.set $heap (i32.and (i32.add (i32.add (global.get $heap) (local.get $size)) (i32.const 7)) (i32.const -8))))
)"#;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn source(name: &str) -> PathBuf {
    here("tests/guests").join(name).with_extension("wat")
}

/// Returns the path of a guest that is a core module in text form.
pub fn command(name: &str) -> PathBuf {
    source(name)
}

/// Builds a guest as a component in the build folder. Concurrent builds produce the same file.
pub fn component(name: &str) -> PathBuf {
    let module = core_module(&fs::read_to_string(source(name)).unwrap());
    let encoded = ComponentEncoder::default().module(&module).and_then(|encoder| encoder.validate(true).encode());
    let bytes = encoded.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name).with_extension("wasm");
    // An unchanged file is not replaced, because a host that is starting may be reading it.
    if fs::read(&path).is_ok_and(|made| made == bytes) {
        return path;
    }
    let file = NamedTempFile::new_in(&folder).unwrap();
    fs::write(&file, bytes).unwrap();
    file.persist(&path).unwrap();
    path
}

/// Returns the core module of a component in binary form, with its world embedded.
pub fn core_module(text: &str) -> Vec<u8> {
    embed(text).unwrap_or_else(|error| panic!("{error:?} in {text}"))
}

fn embed(text: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let comments = |mark: &str| text.lines().filter_map(|line| line.strip_prefix(mark)).collect::<Vec<_>>();
    let worlds = comments(";; world:");
    let world = if worlds.is_empty() { CONSUMER.into() } else { worlds.join("\n") };
    let own = comments(";; package:").join("\n");
    let mut packages = own.clone();
    for name in ["wasi", "messaging", "wasmcloud"] {
        let text = fs::read_to_string(here("tests/guests").join(name).with_extension("wit"))?;
        // A guest may define its own version of one of these packages.
        if !text.lines().filter(|line| line.starts_with("package ")).any(|package| own.contains(package)) {
            packages += &text;
        }
    }

    let mut resolve = Resolve::default();
    resolve.push_path(here("wit"))?;
    let package = format!("package test:guest;\n{packages}\nworld guest {{ {world} }}");
    let package = resolve.push_str("guest.wit", &package)?;
    let world = resolve.select_world(&[package], Some("guest"))?;

    let allocates = text.contains("cabi_realloc");
    let closed = text.trim_end().strip_suffix(')').filter(|_| !allocates);
    let mut module = wat::parse_str(closed.map_or(text.into(), |open| [open, ALLOCATOR].concat()))?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    Ok(module)
}

/// A guest without a test would suggest that its behaviour is tested.
#[test]
fn every_guest_has_its_test() {
    let mut tests = String::new();
    let mut folders = vec![here("tests")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "rs") => {
                    tests += &fs::read_to_string(path).unwrap();
                }
                false => {}
            }
        }
    }
    for path in fs::read_dir(here("tests/guests")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        // A guest is used by its name or by its path in a config. Files other than guests (`.wit`) serve all guests.
        let used = [format!("\"{name}\""), format!("guests/{name}.wat")].iter().any(|form| tests.contains(form));
        assert!(
            used || path.extension().is_some_and(|extension| extension == "wit"),
            "no test uses {}",
            path.display()
        );
    }
}

/// The first line describes the behaviour of the guest.
#[test]
fn every_guest_says_what_it_does() {
    for path in fs::read_dir(here("tests/guests")).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(";; ") || text.starts_with("// "), "{}", path.display());
    }
}
