//! Handlers' files that are damaged: each is refused as a bad handler, or works; none takes hostler down.

use std::fs;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hostler_handler::{Bounds, Call, Outcome, Output};
use hostler_types::message::{Attributes, Message};
use hostler_wasm::{self as handler, Definition, Engine, Fetched, Grants, LoadError, Loaded, Pool, Source};
use tokio::runtime::{Builder, Runtime};

use crate::support::guests::{component, core_module};
use crate::support::hostler::{World, announce};
use crate::support::toolchains::{built, here};

/// Truncations of each artifact, and flips of one byte.
const TRIALS: usize = 200;

/// Number of bytes of flipped files to compile per artifact, so that large ones do not take minutes. The others are cut short by
/// a byte as well: all of such a file is read, and nothing compiled. `HOSTLER_DAMAGED=whole` has all compiled, which takes
/// long for the large ones even in a release build (`tests/proofs.sh damaged`).
fn compiled() -> usize {
    if damages_all() {
        usize::MAX
    } else if cfg!(debug_assertions) {
        256 << 10
    } else {
        8 << 20
    }
}

/// Returns true if all flipped files of all templates are to be compiled.
pub fn damages_all() -> bool {
    std::env::var("HOSTLER_DAMAGED").is_ok_and(|how| how == "whole")
}

/// Linear memory of a sandbox, in bytes.
const MEMORY: u64 = 128 << 20;

/// Time after which a guest that still works is stopped.
const TIMEOUT: Duration = Duration::from_millis(20);

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::keeping_functions(Pool { sandboxes: 8 }).unwrap());

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

fn load(bytes: Vec<u8>) -> Result<Loaded, LoadError> {
    load_with(&ENGINE, bytes)
}

/// Loads a handler that grants nothing.
pub fn load_with(engine: &Engine, bytes: Vec<u8>) -> Result<Loaded, LoadError> {
    let definition = Definition {
        consumer: "damaged".into(),
        source: Source::Fetched(Fetched { reference: "damaged".into(), bytes: Bytes::from(bytes), pinned: false }),
        sha256: None,
        hooks: None,
        hooks_sha256: None,
        grants: Grants::default(),
        messages_per_instance: 1,
        batches: false,
        reply_from_stdout: false,
        metrics: None,
    };
    handler::load(engine, &definition)
}

/// Returns true if a file still works: it loads, links and runs on a message for a moment. Otherwise, its error has a cure.
fn works(bytes: Vec<u8>) -> bool {
    match load(bytes).and_then(|loaded| loaded.handler(MEMORY)) {
        Ok(handler) => {
            run(handler, TIMEOUT);
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("\n  cure: "), "{error}");
            false
        }
    }
}

/// Runs it on a message for so long at most; `None`: it was stopped.
pub fn run(handler: Arc<dyn hostler_handler::Handler>, within: Duration) -> Option<Outcome> {
    let message = Message {
        id: "1".into(),
        body: Bytes::from_static(b"{}"),
        attributes: Attributes::default(),
        enqueued_at: SystemTime::UNIX_EPOCH,
        group: None,
        routing_key: None,
        claim: None,
        trace: None,
    };
    let call = Call::new(Arc::new(message), "damaged".into(), 1, Bounds::new(within), Output::new(1024));
    let stop = call.bounds.stop.clone();
    RUNTIME.block_on(async move {
        let mut guest = tokio::spawn(async move { hostler_handler::run(&*handler, &call).await });
        match tokio::time::timeout(within, &mut guest).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => {
                stop.force();
                guest.await.unwrap()
            }
        }
    })
}

/// Cuts and flips an artifact at random places; each of them is refused, or works.
pub fn damage(name: &str, artifact: &[u8]) {
    let seed = std::env::var("HOSTLER_TEST_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    announce(&format!("damaged {name} ({} bytes): HOSTLER_TEST_SEED={seed}", artifact.len()));
    let mut random = fastrand::Rng::with_seed(seed);
    let most = compiled();
    let (mut compiled, mut working) = (0, 0);
    for _ in 0..TRIALS {
        works(artifact[..random.usize(..artifact.len())].to_vec());
    }
    for trial in 0..TRIALS {
        let mut bytes = artifact.to_vec();
        bytes[random.usize(..artifact.len())] ^= random.u8(1..);
        if (trial + 1) * artifact.len() > most {
            bytes.pop();
        } else {
            compiled += 1;
        }
        working += usize::from(works(bytes));
        if most == usize::MAX && (trial + 1) % 20 == 0 {
            announce(&format!("damaged {name}: {} of {TRIALS} flips, {working} of them work", trial + 1));
        }
    }
    announce(&format!("damaged {name}: {compiled} of {TRIALS} flips compiled, {working} work"));
}

/// The artifact that a template's toolchain makes.
fn artifact(language: &str, needs: &[&str]) -> Vec<u8> {
    fs::read(built(&format!("tests/languages/{language}"), needs).wasm).unwrap()
}

/// A core module that says what it exports, as Rust makes it for `wasm32-unknown-unknown`.
fn module(name: &str) -> Vec<u8> {
    core_module(&fs::read_to_string(here("tests/guests").join(name).with_extension("wat")).unwrap())
}

#[test]
fn a_damaged_module_with_metadata_is_refused_or_works() {
    damage("module", &module("hooks-inside"));
}

#[test]
fn a_module_is_refused_wherever_it_is_cut() {
    for name in ["acks", "sends", "hooks-inside"] {
        for artifact in [module(name), fs::read(component(name)).unwrap()] {
            assert!(works(artifact.clone()), "{name}");
            // Small ones at every 16 bytes, which meets each of their sections.
            for length in (0..artifact.len()).step_by(16) {
                works(artifact[..length].to_vec());
            }
        }
    }
    let rust = artifact("rust", &["sdk/rust", "wit"]);
    for length in (0..rust.len()).step_by(512) {
        assert!(!works(rust[..length].to_vec()), "the first {length} bytes load");
    }
}

/// The first of these panicked in the reader of the metadata before: a module that ends within its code.
#[test]
fn every_command_refuses_a_truncated_module_as_a_bad_handler() {
    let world = World::new("[consumers.one]\nchannel = 'one'\nhandler = 'cut.wasm'\n");
    let with_metadata = module("sends");
    let metadata = with_metadata.windows(14).position(|window| window == b"component-type").unwrap();
    let cuts = [
        artifact("c", &["sdk/c"])[..5_000].to_vec(),
        with_metadata[..metadata + 20].to_vec(),
        with_metadata[..with_metadata.len() - 1].to_vec(),
    ];
    for cut in cuts {
        let length = cut.len();
        fs::write(world.path("cut.wasm"), cut).unwrap();
        let commands: [&[&str]; 4] =
            [&["check"], &["invoke", "one", "--body", "x"], &["compile", "cut.wasm", "-o", "out.cwasm"], &["run"]];
        for args in commands {
            let said = world.output(args);
            assert_eq!(said.code, 65, "{args:?} of {length} bytes: {said:?}");
            assert!(said.stderr.contains("not valid WASM") && said.stderr.contains("cut short"), "{args:?}: {said:?}");
            assert!(!said.stderr.contains("panicked"), "{args:?}: {said:?}");
        }
    }
}

/// `check` and `invoke` refuse every handler that is too large for `run`, and the cure does not call the file damaged.
#[test]
fn check_and_invoke_refuse_what_run_refuses() {
    let parts = "(core instance (instantiate $m))".repeat(301);
    let cases = [
        ("table.wat", "(module (table 150000 funcref) (func (export \"_start\")))".to_owned()),
        ("parts.wat", format!("(component (core module $m) {parts})")),
    ];
    for (file, text) in cases {
        let world = World::new(&format!("[consumers.one]\nchannel = 'one'\nhandler = '{file}'\n"));
        fs::write(world.path(file), text).unwrap();
        for args in [&["check"][..], &["invoke", file, "--body", "x"], &["invoke", "one", "--body", "x"], &["run"]] {
            let said = world.output(args);
            assert_eq!(said.code, 65, "{file} {args:?}: {said:?}");
            assert!(said.stderr.contains("more than a sandbox has"), "{file} {args:?}: {said:?}");
            assert!(!said.stderr.contains("damaged"), "{file} {args:?}: {said:?}");
        }
    }
}

#[test]
fn a_native_program_is_named_with_the_way_to_build_it_for_wasi() {
    let world = World::new("[consumers.one]\nchannel = 'one'\nhandler = 'program'\n");
    fs::copy(env!("CARGO_BIN_EXE_hostler"), world.path("program")).unwrap();
    for args in [&["check"][..], &["invoke", "program", "--body", "x"], &["compile", "program", "-o", "a.cwasm"]] {
        let said = world.output(args);
        assert_eq!(said.code, 65, "{args:?}: {said:?}");
        for part in ["a native ELF program", "GOOS=wasip1 GOARCH=wasm", "--target wasm32-wasip1"] {
            assert!(said.stderr.contains(part), "{args:?} does not say {part}: {said:?}");
        }
    }
}
