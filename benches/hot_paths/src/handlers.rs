//! Cost of a sandbox and a call per message. The handler itself does almost nothing.

use std::path::{Path, PathBuf};

use hostler_handler::Outcome;

use crate::call::Caller;
use crate::{Result, Step};

/// Path of a component that rejects the body.
const COMPONENT: &str = "examples/flights/flights.wasm";
/// A component that returns ok(ack), which consists of zeroes. It never frees its lists, because it is called once.
const ACKS: &str = r#"(module
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32) (i32.const 16))
  (memory (export "memory") 1)
  (global $heap (mut i32) (i32.const 4096))
  (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
    (global.get $heap)
    (global.set $heap (i32.and (i32.add (i32.add (global.get $heap) (local.get $size)) (i32.const 7)) (i32.const -8)))))"#;
/// A preview-1 command that does nothing.
const COMMAND: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

pub fn component_fresh() -> Result<Step> {
    step(&root().join(COMPONENT), 1)
}

/// Measures a component without imports that acks in very few instructions, so that only the cost of the host remains.
pub fn component_without_imports() -> Result<Step> {
    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve.push_path(root().join("wit"))?;
    let world = resolve.select_world(&[package], Some("consumer"))?;
    let mut module = wat::parse_str(ACKS)?;
    wit_component::embed_component_metadata(&mut module, &resolve, world, wit_component::StringEncoding::UTF8)?;
    let component = wit_component::ComponentEncoder::default().module(&module)?.encode()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("acks.wasm");
    std::fs::write(&path, component)?;
    step(&path, 1)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn component_reused() -> Result<Step> {
    step(&root().join(COMPONENT), u32::MAX)
}

pub fn command_fresh() -> Result<Step> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("empty.wat");
    std::fs::write(&path, COMMAND)?;
    step(&path, 1)
}

fn step(path: &Path, messages_per_instance: u32) -> Result<Step> {
    let caller = Caller::load(path, messages_per_instance, "{}")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(Box::new(move || {
        let outcome = runtime.block_on(caller.call());
        assert!(matches!(outcome, Some(Outcome::DeadLetter(_) | Outcome::Ack)), "{outcome:?}");
    }))
}
