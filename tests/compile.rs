//! `hostler compile`, and the files that no handler can be: each is refused with its fault and a cure.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hostler_types::digest::{hex, sha256};

use crate::invoke::{answer, consumer};
use crate::support::guests::{command, component};
use crate::support::hostler::{Said, World};

fn compile(world: &World, handler: &Path, more: &[&str]) -> Said {
    world.output(&[&["compile", handler.to_str().unwrap(), "-o", "out.cwasm"], more].concat())
}

/// A folder in which `out.cwasm` is this handler, and its bytes.
fn compiled(handler: &Path) -> (World, Vec<u8>) {
    let world = World::new("");
    let said = compile(&world, handler, &[]);
    assert_eq!(said.code, 0, "{said:?}");
    let bytes = fs::read(world.path("out.cwasm")).unwrap();
    (world, bytes)
}

fn outcome(world: &World, handler: &str) -> String {
    answer(world, handler, &["--body", "0"])["outcome"].as_str().unwrap().to_owned()
}

/// Asserts that a handler with these bytes is refused, for this fault.
fn refused(world: &World, name: &str, bytes: &[u8], fault: &str) {
    fs::write(world.path(name), bytes).unwrap();
    check_refusal(&world.output(&["invoke", name, "--body", ""]), name, fault);
}

fn check_refusal(said: &Said, name: &str, fault: &str) {
    assert_eq!((said.code, said.stdout.as_str()), (65, ""), "{name}: {said:?}");
    let start = format!("hostler: handler {name}: ");
    let message = said.stderr.strip_prefix(&start).unwrap_or_else(|| panic!("{name}: {said:?}"));
    let (what, cure) = message.split_once("\n  cure: ").unwrap_or_else(|| panic!("{name} has no cure: {said:?}"));
    assert!(what.contains(fault) && cure.trim().len() > 10, "{name}, {fault}: {said:?}");
}

#[test]
fn compiles_components_commands_and_text() {
    let binary = wat::parse_file(command("main-exits")).unwrap();
    let world = World::new("");
    fs::write(world.path("main.wasm"), binary).unwrap();
    for handler in [component("acks"), command("main-exits"), world.path("main.wasm")] {
        let (world, bytes) = compiled(&handler);
        assert!(bytes.starts_with(b"hostler\x02"));
        assert_eq!(outcome(&world, "out.cwasm"), "ack");
    }
}

#[test]
fn compiles_for_the_cpu_that_is_asked_for() {
    let world = World::new("");
    let said = compile(&world, &component("acks"), &[]);
    assert!(said.stdout.starts_with("out.cwasm (") && said.stdout.ends_with(", x86-64-v2)\n"), "{said:?}");
    // Any machine that tests run on has AVX2.
    for baseline in ["generic", "x86-64-v2", "x86-64-v3", "native"] {
        let said = compile(&world, &component("acks"), &["--cpu-baseline", baseline]);
        assert!(said.code == 0 && said.stdout.ends_with(&format!(", {baseline})\n")), "{said:?}");
        assert_eq!(outcome(&world, "out.cwasm"), "ack");
    }
    let said = compile(&world, &component("acks"), &["--cpu-baseline", "v9"]);
    assert!(said.code == 2 && said.stderr.contains("write one of generic, x86-64-v2, x86-64-v3, native"), "{said:?}");
}

#[test]
fn refuses_a_target_that_it_cannot_compile_for() {
    let world = World::new("");
    for target in ["mips-unknown-none", "no such target", "armv7-unknown-linux-gnueabihf"] {
        let said = compile(&world, &component("acks"), &["--target", target]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains(&format!("`{target}`")) && said.stderr.contains("cure: "), "{said:?}");
    }
    let other = if cfg!(target_arch = "x86_64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };
    let said = compile(&world, &component("acks"), &["--target", other, "--cpu-baseline", "native"]);
    assert!(said.code == 2 && said.stderr.contains("native"), "{said:?}");
    assert!(!world.path("out.cwasm").exists());
}

#[test]
fn leaves_nothing_where_it_cannot_write() {
    let world = World::new("");
    fs::create_dir(world.path("out.cwasm")).unwrap();
    let said = compile(&world, &component("acks"), &[]);
    assert!(said.code == 1 && said.stderr.contains("cannot write out.cwasm: "), "{said:?}");
    assert!(!world.path("out.cwasm.tmp").exists());
}

#[test]
fn replaces_its_output_in_one_step() {
    let (world, first) = compiled(&component("acks"));
    let inode = |name: &str| fs::metadata(world.path(name)).unwrap().ino();
    fs::hard_link(world.path("out.cwasm"), world.path("loaded")).unwrap();
    let said = compile(&world, &component("retries"), &[]);
    assert_eq!(said.code, 0, "{said:?}");
    // Whoever has the first file open keeps all of it.
    assert_eq!(fs::read(world.path("loaded")).unwrap(), first);
    assert_ne!(inode("loaded"), inode("out.cwasm"));
    assert_eq!(outcome(&world, "out.cwasm"), "retry");

    let second = fs::read(world.path("out.cwasm")).unwrap();
    fs::write(world.path("bad.wasm"), "no wasm").unwrap();
    check_refusal(
        &world.output(&["compile", "bad.wasm", "-o", "out.cwasm"]),
        "bad.wasm",
        "neither WASM nor its text form",
    );
    assert_eq!(fs::read(world.path("out.cwasm")).unwrap(), second);
    let mut names: Vec<_> = fs::read_dir(world.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["bad.wasm", "guests", "hostler.toml", "loaded", "out.cwasm"], "nothing is left behind");
}

#[test]
fn says_where_it_cannot_write_and_what_it_cannot_compile() {
    let (world, _) = compiled(&component("acks"));
    let said = world.output(&["compile", "guests/main-exits.wat", "-o", "no/such/folder"]);
    assert!(said.code == 1 && said.stderr.contains("cannot write no/such/folder"), "{said:?}");
    let again = world.output(&["compile", "out.cwasm", "-o", "again.cwasm"]);
    check_refusal(&again, "out.cwasm", "it is compiled already");
    check_refusal(&world.output(&["compile", "missing", "-o", "x"]), "missing", "No such file");
    for bytes in [&b""[..], b"\0asm", b"\0asm\x01\0\0\0\xff"] {
        fs::write(world.path("bad.wasm"), bytes).unwrap();
        check_refusal(&world.output(&["compile", "bad.wasm", "-o", "x"]), "bad.wasm", "");
    }
    assert!(!world.path("x").exists());
}

#[test]
fn refuses_files_that_are_no_wasm() {
    let world = World::new("");
    refused(&world, "empty.wasm", b"", "the file is empty");
    refused(&world, "text.wasm", b"#!/bin/sh\nexit 0\n", "neither WASM nor its text form");
    refused(&world, "binary.wasm", b"\xff\xfe\x00\x01", "neither WASM nor its text form");
    refused(&world, "open.wat", b"(module", "neither WASM nor its text form");
    refused(&world, "wrong.wat", b"(module (func (result i32)))", "not valid WASM");
    refused(&world, "magic.wasm", b"\0asm", "not valid WASM");
    refused(&world, "module.wasm", b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\x0f", "not valid WASM");
    refused(&world, "component.wasm", b"\0asm\x0d\0\x01\0\x07\xff\xff\xff\xff\x0f", "not valid WASM");

    let whole = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights/flights.wasm")).unwrap();
    refused(&world, "half.wasm", &whole[..whole.len() / 2], "not valid WASM");
    refused(&world, "end.wasm", &whole[..whole.len() - 1], "not valid WASM");

    check_refusal(&world.output(&["invoke", "guests", "--body", ""]), "guests", "Is a directory");
    fs::remove_file(world.path("hostler.toml")).unwrap();
    let said = world.output(&["invoke", "missing.wasm", "--body", ""]);
    assert!(said.code == 65 && said.stderr.contains("`missing.wasm` is neither a file nor a consumer"), "{said:?}");
    assert!(said.stderr.contains("\n  cure: "), "{said:?}");
}

#[test]
fn refuses_wasm_that_is_no_handler() {
    for (path, fault) in [
        (command("no-start"), "a core module without the function `_start`"),
        (component("exports-nothing"), "a component that exports no handler (it exports nothing)"),
        (
            component("later-contract"),
            "it exports `hostler:consumer/handler@0.2.0`, which this hostler does not support",
        ),
        (component("hook-end-traps"), "it exports hooks, but no handler"),
    ] {
        let path = path.to_str().unwrap();
        check_refusal(&World::new("").output(&["invoke", path, "--body", ""]), path, fault);
    }
    // Who forgot to mark the function is told how the SDKs do.
    for path in [command("no-start"), component("exports-nothing")] {
        let said = World::new("").output(&["invoke", path.to_str().unwrap(), "--body", ""]);
        assert!(
            ["#[handler]", "@hostler.handler", "export default"].iter().all(|mark| said.stderr.contains(mark)),
            "{said:?}"
        );
    }
    // Hooks that are none.
    for hooks in [component("acks"), command("main-exits"), component("exports-nothing")] {
        let hooks = hooks.to_str().unwrap();
        let world = consumer(&component("acks"), &format!("hooks = '{hooks}'"));
        check_refusal(&world.output(&["invoke", "one", "--body", ""]), hooks, "");
    }
}

#[test]
fn refuses_a_handler_of_the_config_at_every_command_that_loads_it() {
    let world = consumer(Path::new("missing.wasm"), "");
    for command in [&["invoke", "one", "--body", ""][..], &["check"], &["run"]] {
        let said = world.output(command);
        let text = format!("{}{}", said.stdout, said.stderr);
        assert!(said.code == 65 && text.contains("missing.wasm") && text.contains("No such file"), "{said:?}");
        assert!(text.contains("cure: "), "{said:?}");
    }
}

#[test]
fn loads_only_the_file_that_is_pinned() {
    let handler = component("acks");
    let pin = hex(&sha256(&fs::read(&handler).unwrap())).to_uppercase();
    assert_eq!(outcome(&consumer(&handler, &format!("sha256 = '{pin}'")), "one"), "ack");

    let other = component("retries");
    let said = consumer(&other, &format!("sha256 = '{pin}'")).output(&["invoke", "one", "--body", ""]);
    check_refusal(&said, other.to_str().unwrap(), &format!("but the config pins {}", pin.to_lowercase()));

    let hooks = component("hooks-inside");
    let pinned = |pin: &str| consumer(&handler, &format!("hooks = '{}'\nhooks_sha256 = '{pin}'", hooks.display()));
    assert_eq!(outcome(&pinned(&hex(&sha256(&fs::read(&hooks).unwrap()))), "one"), "ack");
    let said = pinned(&pin).output(&["invoke", "one", "--body", ""]);
    check_refusal(&said, hooks.to_str().unwrap(), &format!("but the config pins {}", pin.to_lowercase()));
}

/// Compiled code that a guest writes over a handler, or into the cache, would run outside of its sandbox at the next start.
#[test]
fn no_guest_may_write_to_where_code_is_loaded_from() {
    let world = |head: &str, lines: &str| {
        let consumer = "[consumers.one]\nchannel = 'one'\nhandler = 'code/acks.wasm'";
        let world = World::new(&format!("{head}\n{consumer}\n{lines}"));
        fs::create_dir(world.path("code")).unwrap();
        fs::copy(component("acks"), world.path("code/acks.wasm")).unwrap();
        world
    };
    let grant =
        |host: &str, mode: &str| format!("allow.dirs = [{{ host = '{host}', guest = '/d', mode = '{mode}' }}]\n");
    let other = "[consumers.two]\nchannel = 'two'\nhandler = 'code/acks.wasm'\nhooks = 'open/hooks.cwasm'";
    for (head, lines, key) in [
        ("", grant("open", "rw") + other, "consumers.two.hooks"),
        ("host.cache_dir = 'open/cache'", grant("open", "rw"), "host.cache_dir"),
    ] {
        let world = world(head, &lines);
        for command in [&["invoke", "one", "--body", ""][..], &["check"], &["run"]] {
            let said = world.output(command);
            let text = format!("{}{}", said.stdout, said.stderr);
            assert!(said.code == 64 && text.contains("consumers.one.allow.dirs") && text.contains(key), "{said:?}");
            assert!(text.contains("cure: "), "{said:?}");
        }
    }
    let said = world("", &grant("code", "rw")).output(&["check"]);
    assert!(said.code == 64 && said.stderr.contains("consumers.one.handler"), "not compiled, not pinned: {said:?}");
    let digest = hex(&sha256(&fs::read(component("acks")).unwrap()));
    let pin = format!(
        "sha256 = '{digest}'
"
    );
    for lines in [grant("code", "ro"), grant("open", "rw"), pin.clone() + &grant("code", "rw")] {
        assert_eq!(outcome(&world("", &lines), "one"), "ack", "{lines}");
    }
    // What is there in place of hooks is refused by their pin.
    let hooks = format!("{pin}hooks = 'code/hooks.cwasm'\n{}", grant("code", "rw"));
    assert_eq!(world("", &hooks).output(&["check"]).code, 64);
    let said = world("", &format!("hooks_sha256 = '{digest}'\n{hooks}")).output(&["check"]);
    assert!(said.code == 65 && format!("{said:?}").contains("No such file"), "{said:?}");
}

/// Offsets of the parts of a compiled file: its header, and its code.
fn parts(bytes: &[u8]) -> (usize, usize) {
    let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    (12, 12 + usize::try_from(length).unwrap())
}

/// Number of bytes of code.
fn code_length(bytes: &[u8]) -> usize {
    let (header, code) = parts(bytes);
    let header: serde_json::Value = serde_json::from_slice(&bytes[header..code]).unwrap();
    usize::try_from(header["code"]["length"].as_u64().unwrap()).unwrap()
}

/// The file with a text of its header replaced.
fn with_header(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let (header, code) = parts(bytes);
    let text = std::str::from_utf8(&bytes[header..code]).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replace(from, to);
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&bytes[..header - 4], &length, text.as_bytes(), &bytes[code..]].concat()
}

#[test]
fn refuses_a_compiled_file_that_is_cut_short() {
    let (world, bytes) = compiled(&component("acks"));
    let (header, code) = parts(&bytes);
    let lengths = [1, 6, 7, 8, 10, 12, header + 1, code - 1, code, code + 1, bytes.len() / 2, bytes.len() - 1];
    for length in lengths {
        let fault = if length < 7 { "neither WASM nor its text form" } else { "cut short" };
        refused(&world, "short.cwasm", &bytes[..length], fault);
    }
    refused(&world, "long.cwasm", &[&bytes[..], b"\0"].concat(), "cut short or damaged");
}

#[test]
fn refuses_a_compiled_file_that_is_damaged() {
    let (world, bytes) = compiled(&component("acks"));
    let (header, code) = parts(&bytes);
    for (at, fault) in [
        (0, "neither WASM nor its text form"),
        (7, "its format is 87"),
        (8, "damaged"),
        (11, "its header is too long"),
        (header, "its header is not JSON"),
        (code - 1, "its header is not JSON"),
        (code, "the digest of its code does not fit"),
        (code + code_length(&bytes) - 1, "the digest of its code does not fit"),
    ] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        refused(&world, "damaged.cwasm", &damaged, fault);
    }
}

#[test]
fn code_for_elsewhere_falls_back_to_the_wasm_beside_it() {
    let (world, bytes) = compiled(&component("acks"));
    let version = env!("CARGO_PKG_VERSION");
    let other = format!("{version}-next");
    let foreign = with_header(&bytes, &format!("\"{version}\""), &format!("\"{other}\""));
    let reason = format!("compiled by hostler {other}; this is {version}");
    // What another architecture's compiler would have written, as far as the engine looks before it refuses.
    let (_, code) = parts(&bytes);
    let end = code + code_length(&bytes);
    let (here, there) = if cfg!(target_arch = "x86_64") { ("x86_64-", "mips64-") } else { ("aarch64-", "sparc64-") };
    let mut away = bytes.clone();
    while let Some(at) = away[code..end].windows(here.len()).position(|window| window == here.as_bytes()) {
        away[code + at..code + at + here.len()].copy_from_slice(there.as_bytes());
    }
    let away = with_new_digest(&away);
    for (name, bytes, reason) in [("other.cwasm", &foreign, reason.as_str()), ("away.cwasm", &away, "cannot run it")] {
        fs::write(world.path(name), bytes).unwrap();
        let said = world.output(&["invoke", name, "--body", "0"]);
        assert!(said.code == 0 && said.stderr.starts_with("hostler: warning: compiled code is not used"), "{said:?}");
        assert!(said.stderr.contains(reason) && said.stderr.contains("hostler compile"), "{said:?}");
    }
    // Damage to the WASM is seen only where it is needed.
    let damaged = |bytes: &[u8]| [&bytes[..bytes.len() - 1], &[bytes[bytes.len() - 1] ^ 1]].concat();
    refused(&world, "both.cwasm", &damaged(&foreign), "the digest of its WASM does not fit");
    fs::write(world.path("unneeded.cwasm"), damaged(&bytes)).unwrap();
    assert_eq!(outcome(&world, "unneeded.cwasm"), "ack");
}

/// The file with the digest in its header made that of its code again.
fn with_new_digest(bytes: &[u8]) -> Vec<u8> {
    let (header, code) = parts(bytes);
    let told: serde_json::Value = serde_json::from_slice(&bytes[header..code]).unwrap();
    let digest = hex(&sha256(&bytes[code..code + code_length(bytes)]));
    with_header(bytes, told["code"]["sha256"].as_str().unwrap(), &digest)
}

#[test]
fn code_for_elsewhere_is_refused_without_the_wasm() {
    let world = World::new("");
    assert_eq!(compile(&world, &component("acks"), &[]).code, 0);
    let with = fs::read(world.path("out.cwasm")).unwrap();
    assert_eq!(compile(&world, &component("acks"), &["--no-source"]).code, 0);
    let bytes = fs::read(world.path("out.cwasm")).unwrap();
    assert!(bytes.len() < with.len() && outcome(&world, "out.cwasm") == "ack");

    let version = env!("CARGO_PKG_VERSION");
    let other = format!("{version}-next");
    let foreign = with_header(&bytes, &format!("\"{version}\""), &format!("\"{other}\""));
    refused(&world, "other.cwasm", &foreign, &format!("compiled by hostler {other}; this is {version}"));
    // A component that says it is a module.
    let kind = with_header(&bytes, "\"component\":true", "\"component\":false");
    refused(&world, "kind.cwasm", &kind, "this machine cannot run it");
    let kind = with_header(&with, "\"component\":true", "\"component\":false");
    refused(&world, "kind.cwasm", &kind, "its code is of another kind than its WASM");
    // The engine's own artifact, as `wasmtime compile` writes it.
    let (_, code) = parts(&bytes);
    assert!(bytes[code..].starts_with(b"\x7fELF"));
    refused(&world, "engine.cwasm", &bytes[code..], "not by `hostler compile`");
}

#[test]
fn code_for_either_c_library_loads() {
    let world = World::new("");
    for library in ["gnu", "musl"] {
        let target = format!("{}-unknown-linux-{library}", std::env::consts::ARCH);
        for baseline in ["x86-64-v2", "native"] {
            let said = compile(&world, &component("acks"), &["--target", &target, "--cpu-baseline", baseline]);
            assert_eq!(said.code, 0, "{said:?}");
            let said = world.output(&["invoke", "out.cwasm", "--body", "0"]);
            assert!(said.code == 0 && said.stderr.is_empty(), "{said:?}");
        }
    }
}

#[test]
fn no_damage_to_a_file_takes_the_host_down() {
    let (world, whole) = (World::new(""), fs::read(component("tells-message")).unwrap());
    for at in (0..whole.len()).step_by(whole.len() / 60) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        fs::write(world.path("damaged.wasm"), &damaged).unwrap();
        let said = world.output(&["invoke", "damaged.wasm", "--body", "", "--attr", "a=b", "--attr", "c=d"]);
        assert!([0, 1, 65].contains(&said.code) && !said.stderr.contains("panicked"), "byte {at}: {said:?}");
    }
}

#[test]
fn to_compile_a_large_handler_is_announced() {
    let world = World::new("[consumers.one]\nchannel = 'one'\nhandler = 'large.wat'\n");
    let data = "x".repeat(3 << 20);
    let large =
        format!("(module (memory (export \"memory\") 64) (data (i32.const 0) \"{data}\") (func (export \"_start\")))");
    fs::write(world.path("large.wat"), large).unwrap();
    for args in [&["check"][..], &["invoke", "one", "--body", "x"]] {
        let said = world.output(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        assert!(said.stderr.contains("hostler: compiling a large handler"), "{args:?}: {said:?}");
        assert!(said.stderr.contains("hostler: compiled"), "{args:?}: {said:?}");
    }
    let host = world.started();
    let lines = host.lines();
    let place = |start: &str| {
        lines.iter().position(|line| line["message"].as_str().is_some_and(|text| text.starts_with(start))).unwrap()
    };
    assert!(place("compiling a large handler") < place("compiled"), "{lines:?}");
    // A small one takes no time worth a word.
    let said = world.output(&["invoke", "guests/main-exits.wat", "--body", "0"]);
    assert!(!said.stderr.contains("compiling"), "{said:?}");
}
