//! Mistakes about handlers and what they are granted.

use std::fs;

use super::Page;
use crate::support::guests::component;
use crate::support::hostler::World;

/// A module as Go makes it for browsers, without `GOOS=wasip1`.
const GO_FOR_BROWSERS: &str = r#"(module
    (import "gojs" "runtime.wasmExit" (func (param i32)))
    (func (export "run") (param i32 i32))
    (func (export "resume"))
    (memory (export "mem") 1))"#;

/// A consumer of this handler, whose table is open.
fn with(handler: &str, keys: &str) -> World {
    World::new(&format!("[consumers.mails]\nchannel = 'mails'\nhandler = '{handler}'\n{keys}"))
}

#[test]
fn mistakes_about_handlers() {
    let mut page = Page::new("handlers.md", "Mistakes about handlers")
        .hiding(r"\b[\d.]+ [KMGT]iB\b", "SIZE")
        .hiding(r"pause_ms=\d+", "pause_ms=MS")
        .hiding(r"\b[0-9a-f]{64}\b", "DIGEST");
    page.run("The handler is missing", &with("build/mails.wasm", ""), &["check"]);
    let bytes = |mistake: &str, page: &mut Page, name: &str, bytes: &[u8]| {
        let world = with(name, "");
        fs::write(world.path(name), bytes).unwrap();
        page.run(mistake, &world, &["check"]);
    };
    bytes("The handler is a script", &mut page, "handler.py", b"def handle(message):\n    return 'ack'\n");
    let native = fs::read("/proc/self/exe").unwrap();
    bytes("The handler is a native program", &mut page, "handler", &native[..4096]);
    let module = wat::parse_str("(module (memory 1) (func (export \"_start\") (nop)))").unwrap();
    bytes("The handler was cut off", &mut page, "cut.wasm", &module[..module.len() - 3]);
    bytes("The handler is an empty file", &mut page, "empty.wasm", b"");
    bytes("The handler is a broken .wat file", &mut page, "broken.wat", b"(module (func (export \"_start\") (nop))");
    bytes("The handler is Go for browsers", &mut page, "go.wasm", &wat::parse_str(GO_FOR_BROWSERS).unwrap());
    let library = wat::parse_str("(module (func (export \"handle\") (param i32) (result i32) (i32.const 0)))").unwrap();
    bytes("The handler is a library for no host", &mut page, "library.wasm", &library);
    bytes("The compiled handler is none", &mut page, "handler.cwasm", b"nothing that was compiled");
    page.run("The handler is a folder", &with("guests", ""), &["check"]);
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    bytes("The handler was not fetched from Git LFS", &mut page, "handler.wasm", lfs);
    for (mistake, guest) in [
        ("The handler has no known export", "exports-nothing"),
        ("The handler exports another type", "handle-other-type"),
        ("The handler is for a later contract", "later-contract"),
    ] {
        bytes(mistake, &mut page, "handler.wasm", &fs::read(component(guest)).unwrap());
    }
    let digest = format!("sha256 = '{}'", "0".repeat(64));
    page.run("The handler has another digest", &with("guests/run-tell.wat", &digest), &["check"]);
    page.run("The scheme of a handler is unknown", &with("https://example.com/a.wasm", ""), &["check"]);
    let registry = with("oci://127.0.0.1:1/mails:1", "");
    page.run("The registry of a handler cannot be reached", &registry, &["check"]);
    let much = "limits.memory = '1MiB'";
    let world = with("handler.wasm", much);
    fs::copy(component("wants-much-memory"), world.path("handler.wasm")).unwrap();
    page.run("The handler needs more memory than its limit", &world, &["check"]);
    page.compare();
}

#[test]
fn mistakes_about_grants_and_limits() {
    let mut page = Page::new("grants.md", "Mistakes about grants and limits")
        .hiding(r"\b[\d.]+ [KMGT]iB\b", "SIZE")
        .hiding(r"concurrency = \d+\)", "concurrency = N)")
        .hiding(r"\(MemTotal[^)]*\)|\(/sys[^)]*\)", "(LIMIT)")
        .hiding(r#""\d+[KMG]iB""#, "SIZE")
        .hiding(r" +SIZE", " SIZE");
    let acks = |keys: &str| with("guests/run-tell.wat", keys);
    let much = acks("concurrency = 1024\nlimits.memory = '4GiB'");
    page.run("The sandboxes do not fit into the memory", &much, &["check"]);
    let missing = acks("allow.dirs = [{ host = 'templates', guest = '/templates' }]");
    page.run("A granted folder is missing", &missing, &["check"]);
    let queue = acks("allow.dirs = [{ host = '.', guest = '/data', mode = 'rw' }]");
    page.run("A granted folder holds the queue", &queue, &["check"]);
    let proc = acks("allow.dirs = [{ host = '/proc', guest = '/proc' }]");
    page.run("A granted folder is the system's", &proc, &["check"]);
    page.compare();
}

#[test]
fn mistakes_with_invoke_and_compile() {
    let mut page = Page::new("invoke.md", "Mistakes with invoke, compile and new").hiding(r"\b[\d.]+ ?ms\b", "MS");
    let world = with("guests/run-tell.wat", "");
    let mut run = |mistake: &str, args: &[&str]| page.run(mistake, &world, args);
    run("The consumer of invoke is misspelt", &["invoke", "mials", "--body", "x"]);
    run("The file of invoke is missing", &["invoke", "build/mails.wasm", "--body", "x"]);
    run("The body is not in the file", &["invoke", "mails", "--file", "message.json"]);
    fs::copy(component("calls-unknown"), world.path("handler.wasm")).unwrap();
    run("The handler calls an unknown import", &["invoke", "handler.wasm", "--body", "x"]);
    run("The output of compile is missing", &["compile", "guests/run-tell.wat"]);
    run("The folder of the output is missing", &["compile", "guests/run-tell.wat", "-o", "build/acks.cwasm"]);
    run("The CPU is unknown", &["compile", "guests/run-tell.wat", "-o", "acks.cwasm", "--cpu-baseline", "avx"]);
    run("The target is unknown", &["compile", "guests/run-tell.wat", "-o", "acks.cwasm", "--target", "arm"]);
    run("The language is unknown", &["new", "mails", "--lang", "java"]);
    run("The language is missing", &["new", "mails"]);
    run("The name of a project has capitals", &["new", "OrderMails", "--lang", "rust"]);
    fs::create_dir(world.path("mails")).unwrap();
    fs::write(world.path("mails/notes"), "").unwrap();
    page.run("The folder of a project is taken", &world, &["new", "mails", "--lang", "rust"]);
    page.compare();
}
