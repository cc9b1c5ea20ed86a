//! The Rust SDK: its own tests, whether it can be published, and hooks that are made with it. What handlers made with it
//! do is in `languages`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::invoke::{answer, reply};
use crate::support::hostler::World;
use crate::support::toolchains::without_own_flags;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Build folder that is kept between runs. Shared with the Rust project of `new`, which needs the same crates.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("new/rust/target")
}

/// Runs cargo in a folder of the repository; all that it said.
fn cargo(folder: &str, args: &str) -> String {
    let mut command = Command::new("cargo");
    command.args(args.split(' ')).current_dir(here(folder)).env("CARGO_TARGET_DIR", target());
    // What these tests are built with is not for others.
    without_own_flags(&mut command);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "cargo {args} in {folder}:\n{said}");
    said
}

#[test]
fn it_passes_its_own_tests_with_all_features_and_with_none() {
    for features in ["", " --no-default-features"] {
        let said = cargo("sdk/rust", &format!("test --workspace --locked{features}"));
        assert!(said.contains("Doc-tests hostler_guest") && !said.contains("warning"), "{said}");
    }
}

#[test]
fn it_can_be_published() {
    cargo("sdk/rust", "package --workspace --no-verify --allow-dirty --locked");
    let package = target().join("package/hostler-guest-0.1.0.crate");
    let listing = Command::new("tar").arg("tf").arg(package).output().unwrap().stdout;
    let listing = String::from_utf8(listing).unwrap();
    for file in ["README.md", "src/lib.rs", "wit/consumer.wit"] {
        assert!(listing.lines().any(|line| line == format!("hostler-guest-0.1.0/{file}")), "{file} in {listing}");
    }
}

/// Built for the target without WASI, the compiler leaves a core module; and the SDK's allocator is its own.
#[test]
fn it_makes_handlers_without_wasi() {
    cargo("tests/languages/rust", "build --locked --release --target wasm32-unknown-unknown --package conformance");
    let handler = target().join("wasm32-unknown-unknown/release/conformance.wasm");
    let handler = handler.to_str().unwrap();
    let world = World::new("");
    let said = world.output(&["invoke", handler, "--body", "no", "--attr", "do=dead-letter"]);
    assert!(said.code == 1 && said.stdout.contains("imports hostler:consumer/"), "{said:?}");
    assert!(!said.stdout.contains("wasi:"), "{said:?}");
    // Within the arena, at its end, and beyond it.
    for length in [0, 1, 1_000, 16_384, 32_768, 130_000, 262_144, 1_048_576] {
        let body: String = ('a'..='z').cycle().take(length).collect();
        std::fs::write(world.path("body"), &body).unwrap();
        let answer = answer(&world, handler, &["--file", "body", "--attr", "do=reply"]);
        assert!(reply(&answer) == body.as_bytes(), "{length} bytes");
    }
    assert_eq!(answer(&world, handler, &["--body", "", "--attr", "do=trap"])["outcome"], "trapped");
}

#[test]
fn hooks_alone_are_a_component() {
    cargo("tests/languages/rust", "build --locked --release --target wasm32-wasip2 --package hooks");
    let hooks = target().join("wasm32-wasip2/release/hooks.wasm");
    let world = World::new(&format!(
        "[consumers.jobs]
        channel = 'jobs'
        handler = 'guests/run-word.wat'
        hooks = '{}'
        processing_timeout = '1s'
        allow.send = ['audit']",
        hooks.display()
    ));
    let said = world.output(&["invoke", hooks.to_str().unwrap(), "--body", ""]);
    assert!(said.code == 65 && said.stderr.contains("it exports hooks, but no handler"), "{said:?}");

    for args in [["late", "locale=ü"], ["no", "refuse=not today"]] {
        assert_eq!(world.output(&["send", "jobs", "--body", args[0], "--attr", args[1]]).code, 0);
    }
    let mut host = world.started();
    let settled = host.settled(2);
    let reasons = |reason: &str| {
        let found = settled.iter().find(|line| line["reason"].as_str().is_some_and(|text| text.contains(reason)));
        found.unwrap_or_else(|| panic!("{reason} in {settled:?}")).clone()
    };
    let late = reasons("jobs was late: true");
    assert_eq!((&late["outcome"], &late["disposition"]), (&"timed-out".into(), &"dead-letter".into()));
    assert_eq!(reasons("message-start: not today")["outcome"], "failed");
    let audit = world.depth("audit");
    assert_eq!(audit.visible + audit.delayed, 1, "{audit:?}");
    assert_eq!(host.stop(), 0);
    let said: Vec<_> = host.lines().into_iter().filter(|line| line["target"] == "hostler::guest").collect();
    for text in ["start true", "initializing, now initialized", "listening, now processing"] {
        assert!(said.iter().any(|line| line["message"] == text), "{text} in {said:?}");
    }
}

#[test]
fn a_batch_handler_answers_for_each_message() {
    cargo("tests/languages/rust", "build --locked --release --target wasm32-wasip2 --package batch");
    let handler = target().join("wasm32-wasip2/release/batch.wasm");
    let world = World::new(&format!(
        "[consumers.work]
        channel = 'work'
        handler = '{}'
        concurrency = 1
        batch = {{ max = 10, wait = '300ms' }}
        retry = {{ requeues = 1, requeue_delay = '1h' }}",
        handler.display()
    ));
    let bodies = ["ack", "done", "reply", "panic", "never", "lost"];
    world.send("work", bodies);
    let mut host = world.start();
    let settled = host.settled(bodies.len());
    assert_eq!(host.stop(), 0);
    assert!(settled.iter().all(|line| line["attempt"] == 1 && line["batch"] == 6), "{settled:?}");
    let mut outcomes: Vec<_> = settled.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["ack", "ack", "dead-letter", "failed", "reply", "trapped"]);
    let failed = settled.iter().find(|line| line["outcome"] == "failed").unwrap();
    assert_eq!(failed["reason"], "lost: false");
}
