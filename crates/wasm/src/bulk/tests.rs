//! Modules whose bulk operations are split, run by the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::{Engine, Instance, Memory, Store, UpdateDeadline};

use super::*;

const MODULE_TEXT: &str = "(module (import \"x\" \"y\" (func)) (memory (export \"memory\") 64)
    (func (export \"fill\") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 1) (local.get 2)))
    (func (export \"copy\") (param i32 i32 i32) (memory.copy (local.get 0) (local.get 1) (local.get 2)))
    (func (export \"both\") (memory.fill (i32.const 1) (i32.const 2) (i32.const 3)) (memory.copy (i32.const 1) (i32.const 2) (i32.const 3))))";

/// A module with `fill` and `copy` as in [`MODULE_TEXT`], but with 64-bit addresses in its memory.
const LONG_TEXT: &str = "(module (import \"x\" \"y\" (func)) (memory (export \"memory\") i64 64)
    (func (export \"fill\") (param i32 i32 i32)
        (memory.fill (i64.extend_i32_u (local.get 0)) (local.get 1) (i64.extend_i32_u (local.get 2))))
    (func (export \"copy\") (param i32 i32 i32) (memory.copy
        (i64.extend_i32_u (local.get 0)) (i64.extend_i32_u (local.get 1)) (i64.extend_i32_u (local.get 2)))))";

/// A module with a second memory, which has 64-bit addresses. `fill` and `copy` change the second memory, and then
/// copy all of it to the first memory.
const MIXED_TEXT: &str = "(module (import \"x\" \"y\" (func)) (memory (export \"memory\") 64) (memory i64 64)
    (func (export \"fill\") (param i32 i32 i32)
        (memory.fill 1 (i64.extend_i32_u (local.get 0)) (local.get 1) (i64.extend_i32_u (local.get 2))) (call 3))
    (func (export \"copy\") (param i32 i32 i32)
        (memory.copy 1 0 (i64.extend_i32_u (local.get 0)) (local.get 1) (local.get 2)) (call 3))
    (func (memory.copy 0 1 (i32.const 0) (i64.const 0) (i32.const 4194304))))";

/// An instance of a module. `looks` counts how often the engine has checked whether the guest must stop.
struct Run {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
    looks: Arc<AtomicUsize>,
}

fn run(binary: &[u8]) -> Run {
    let mut config = wasmtime::Config::new();
    config.epoch_interruption(true).wasm_multi_memory(true).wasm_memory64(true);
    let engine = Engine::new(&config).unwrap();
    let mut store = Store::new(&engine, ());
    let looks = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&looks);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        // With a deadline of 0, the engine calls this function at each check.
        Ok(UpdateDeadline::Continue(0))
    });
    engine.increment_epoch();
    let mut linker = wasmtime::Linker::new(&engine);
    linker.func_wrap("x", "y", || {}).unwrap();
    let module = wasmtime::Module::new(&engine, binary).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    Run { store, instance, memory, looks }
}

impl Run {
    fn call(&mut self, name: &str, (a, b, c): (u32, u32, u32)) -> std::result::Result<(), String> {
        let function = self.instance.get_typed_func::<(u32, u32, u32), ()>(&mut self.store, name).unwrap();
        function.call(&mut self.store, (a, b, c)).map_err(|error| error.root_cause().to_string())
    }
}

#[test]
fn pieces_do_the_same_as_the_whole() {
    [MODULE_TEXT, LONG_TEXT, MIXED_TEXT].iter().for_each(|text| compare(text));
}

/// Makes the same calls on the original module and on the rewritten module. Compares their memories after each
/// call.
fn compare(text: &str) {
    let binary = wat::parse_str(text).unwrap();
    let (mut whole, mut pieces) = (run(&binary), run(&divided(&binary).unwrap()));
    let (mib, end) = (1 << 20, 4 << 20);
    for at in (0..end).step_by(4096) {
        for one in [&mut whole, &mut pieces] {
            one.memory.data_mut(&mut one.store)[at..at + 4].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
        }
    }
    let (mib, end) = (mib as u32, u32::try_from(end).unwrap());
    let calls = [
        ("fill", (0, 7, 3 * mib + 1)),
        ("fill", (end - 2 * mib, 9, 2 * mib)),
        ("fill", (end - 2 * mib + 1, 1, 2 * mib)),
        ("fill", (u32::MAX, 1, 2 * mib)),
        ("fill", (0, 1, u32::MAX)),
        ("fill", (end + 1, 1, 0)),
        ("copy", (5, 3, 3 * mib)),
        ("copy", (3, 5, 3 * mib)),
        ("copy", (mib, 0, 3 * mib)),
        ("copy", (0, mib / 2, 2 * mib + 1)),
        ("copy", (mib, mib, 3 * mib)),
        ("copy", (mib + 1, 0, 3 * mib)),
        ("copy", (0, mib + 1, 3 * mib)),
        ("copy", (0, 10, mib)),
    ];
    for (name, arguments) in calls {
        let (one, other) = (whole.call(name, arguments), pieces.call(name, arguments));
        assert_eq!(one, other, "{name} {arguments:?}");
        let is_same = whole.memory.data(&whole.store) == pieces.memory.data(&pieces.store);
        assert!(is_same, "{name} {arguments:?}");
    }
}

/// Returns a module with a data segment of 3 MiB and one byte.
fn with_segment() -> Vec<u8> {
    let text = "(module (import \"x\" \"y\" (func)) (memory (export \"memory\") 64) (data \"SEGMENT\")
        (func (export \"init\") (param i32 i32 i32) (memory.init 0 (local.get 0) (local.get 1) (local.get 2))))";
    wat::parse_str(text.replace("SEGMENT", &("abc".repeat(1 << 20) + "d"))).unwrap()
}

#[test]
fn a_segment_is_copied_in_pieces() {
    let binary = with_segment();
    let (mut whole, mut pieces) = (run(&binary), run(&divided(&binary).unwrap()));
    let mib = 1 << 20;
    for (arguments, traps) in [
        ((5, 0, 3 * mib + 1), false),
        ((0, 1, 3 * mib), false),
        ((2 * mib - 1, mib, 2 * mib + 1), false),
        ((2 * mib + 1, mib, 2 * mib), true),
        ((0, 2, 3 * mib), true),
        ((0, u32::MAX, 2 * mib), true),
        ((0, 0, u32::MAX), true),
    ] {
        let (one, other) = (whole.call("init", arguments), pieces.call("init", arguments));
        assert_eq!((one.is_err(), &one), (traps, &other), "{arguments:?}");
        let is_same = whole.memory.data(&whole.store) == pieces.memory.data(&pieces.store);
        assert!(traps || is_same, "{arguments:?}");
    }
    assert!(pieces.looks.load(Ordering::Relaxed) >= whole.looks.load(Ordering::Relaxed) + 3);
}

#[test]
fn a_guest_is_looked_at_in_the_midst_of_an_operation() {
    let binary = wat::parse_str(MODULE_TEXT).unwrap();
    let looks = |binary: &[u8], name| {
        let mut run = run(binary);
        let before = run.looks.load(Ordering::Relaxed);
        run.call(name, (0, 1, 4_000_000)).unwrap();
        run.looks.load(Ordering::Relaxed) - before
    };
    for name in ["fill", "copy"] {
        assert!(looks(&binary, name) < 3);
        assert!(looks(&divided(&binary).unwrap(), name) >= 3, "{name}");
    }
}

#[test]
fn memories_of_every_kind_and_modules_in_components_are_covered() {
    let text = "(module (memory i64 1) (memory 1) (memory (export \"memory\") 1)
        (func (memory.fill 0 (i64.const 0) (i32.const 1) (i64.const 2)))
        (func (memory.copy 0 1 (i64.const 0) (i32.const 1) (i32.const 2)))
        (func (memory.copy 1 0 (i32.const 0) (i64.const 1) (i32.const 2)))
        (func (memory.copy 0 0 (i64.const 0) (i64.const 1) (i64.const 2))))";
    let module = divided(&wat::parse_str(text).unwrap()).unwrap();
    run(&module);
    let component = format!("(component (component {}) {MODULE_TEXT})", text.replace("(module", "(core module"));
    let component = component.replace(") (module", ") (core module");
    let component = divided(&wat::parse_str(component).unwrap()).unwrap();
    let mut config = wasmtime::Config::new();
    config.wasm_multi_memory(true).wasm_memory64(true);
    wasmtime::component::Component::from_binary(&Engine::new(&config).unwrap(), &component).unwrap();
}

#[test]
fn what_has_none_or_is_damaged_is_left_as_it_is() {
    let plain = wat::parse_str("(module (func))").unwrap();
    assert_eq!(divided(&plain), None);
    assert_eq!(divided(b""), None);
    let binary = wat::parse_str(MODULE_TEXT).unwrap();
    for length in 0..binary.len() {
        let _ = divided(&binary[..length]);
    }
}
