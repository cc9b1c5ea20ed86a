//! Output on a terminal: logs as text, and a line while a handler is compiled. `script` creates the terminal.

use std::fs;

use crate::support::hostler::{Said, World};

/// Runs a hostler command in a terminal; what it shows there.
fn shown(world: &World, command: &str) -> String {
    let line = format!("'{}' {command}", env!("CARGO_BIN_EXE_hostler"));
    let said = Said::new(
        world.program("script", &["--quiet", "--return", "--command", &line, "typescript"]).output().unwrap(),
    );
    said.stdout
}

#[test]
fn a_terminal_gets_its_logs_as_text_unless_the_config_says_otherwise() {
    // Without its handler, the host ends at once.
    let consumer = "[consumers.one]\nchannel = 'one'\nhandler = 'missing.wasm'";
    let world = World::new(consumer);
    let text = shown(&world, "run");
    assert!(text.contains("ERROR") && text.contains("missing.wasm") && !text.contains("{\"timestamp\""), "{text}");
    world.config(&format!("telemetry.log = 'json'\n{consumer}"));
    let json = shown(&world, "run");
    assert!(json.contains("{\"timestamp\"") && json.contains("missing.wasm"), "{json}");
}

#[test]
fn a_terminal_shows_that_a_handler_is_compiled() {
    let world = World::new("");
    // Large enough to take a while on any machine.
    let body = "(local.set 0 (i32.mul (i32.add (local.get 0) (i32.const 7)) (local.get 0)))".repeat(200);
    let function = |n: usize| format!("(func (export \"f{n}\") (param i32) (result i32) {body} (local.get 0))");
    let functions: String = (0..600).map(function).collect();
    let module = format!("(module (memory (export \"memory\") 1) (func (export \"_start\")) {functions})");
    fs::write(world.path("large.wat"), module).unwrap();
    let text = shown(&world, "compile large.wat -o large.cwasm");
    assert!(text.contains("\r\u{1b}[Kcompiling large.wat, 0 s\r"), "{text:?}");
    let (_, end) = text.rsplit_once("compiling large.wat").unwrap();
    let (_, end) = end.rsplit_once("\u{1b}[K").unwrap();
    assert!(end.trim().starts_with("large.cwasm ("), "{text:?}");
    let said = world.output(&["compile", "large.wat", "-o", "large.cwasm"]);
    assert!(said.code == 0 && said.stderr.is_empty(), "{said:?}");
}
