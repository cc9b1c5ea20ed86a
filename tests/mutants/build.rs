//! Makes a copy of the consumer, of a driver, of the retry service, or of schedules, for each planted fault.
//!
//! `HOSTLER_PLANTED` says for which: `all`; `few`, which are spread over the list, the default, and quick to build; or a word of the
//! names or files of those that are meant.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "faults.rs"]
mod faults;

use faults::{FAULTS, Fault};

/// A part that faults are planted in.
struct Part {
    /// Beginning of the names of its files in the list.
    begin: &'static str,
    folder: &'static str,
    /// Its name here.
    name: &'static str,
    /// The world in which its faults are looked for.
    kind: &'static str,
}

const fn part(begin: &'static str, folder: &'static str, name: &'static str, kind: &'static str) -> Part {
    Part { begin, folder, name, kind }
}

/// The consumer is in it four times: some of its faults matter only where the service pushes, where it keeps leases over a lost
/// connection, or with batches. The faults of the retry service and of schedules are looked for by their own tests.
const PARTS: [Part; 8] = [
    part("consumer/", "crates/consumer/src", CONSUMER, "Sqs"),
    part("push/consumer/", "crates/consumer/src", CONSUMER, "Push"),
    part("nats/consumer/", "crates/consumer/src", CONSUMER, "Nats"),
    part("batch/consumer/", "crates/consumer/src", CONSUMER, "Batch"),
    part("queue/sqs/", "crates/queue-sqs/src", SQS, "Sqs"),
    part("queue/embedded/", "crates/queue-embedded/src", EMBEDDED, "Embedded"),
    part("retry/", "crates/retry/src", "hostler_retry", OWN_TESTS),
    part("schedules/", "crates/schedules/src", "hostler_schedules", OWN_TESTS),
];

const OWN_TESTS: &str = "own tests";

const CONSUMER: &str = "hostler_consumer";
const SQS: &str = "hostler_queue_sqs";
const EMBEDDED: &str = "hostler_queue_embedded";

/// Maximum number of faults to plant by default.
const FEW: usize = 3;

fn main() {
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed=faults.rs");
    println!("cargo:rerun-if-changed=faults");
    println!("cargo:rerun-if-changed=build.rs");
    for part in PARTS {
        println!("cargo:rerun-if-changed={}", root(part.folder).display());
    }
    println!("cargo:rerun-if-env-changed=HOSTLER_PLANTED");
    let planted = env::var("HOSTLER_PLANTED").unwrap_or_else(|_| "few".to_owned());
    let is_meant = |number: usize, fault: &Fault| match planted.as_str() {
        "all" => true,
        "few" => number.is_multiple_of(FAULTS.len().div_ceil(FEW)),
        word => fault.is_named(word),
    };
    let (mut modules, mut systems, mut suites) = (String::new(), String::new(), String::new());
    FAULTS.iter().for_each(check);
    for (number, fault) in FAULTS.iter().enumerate().filter(|(number, fault)| is_meant(*number, fault)) {
        let (part, file) = place(fault);
        let (copy, name) = (out.join(format!("m{number}")), format!("m{number}"));
        let _ = fs::remove_dir_all(&copy);
        plant(&root(part.folder), &copy, &name, &file, fault);
        let path = copy.join("lib.rs");
        writeln!(modules, "#[allow(warnings)]\n#[path = {path:?}]\nmod {name};").unwrap();
        if part.kind == OWN_TESTS {
            let mut tests = Vec::new();
            open_tests(&copy, &name, &mut tests);
            // Two instances race in some tests of the stores.
            tests.retain(|test| !test.contains("::stores::"));
            writeln!(suites, "    ({number}, vec![{}]),", tests.join(", ")).unwrap();
            continue;
        }
        let own = |one: &str| if one == part.name { format!("crate::{name}") } else { one.to_owned() };
        let (names, kind) = ([CONSUMER, SQS, EMBEDDED].map(own).join(", "), part.kind);
        writeln!(systems, "    ({number}, Kind::{kind}, simulation::system!({names})),").unwrap();
    }
    let systems = format!("fn systems() -> Vec<(usize, Kind, System)> {{\n    vec![\n{systems}    ]\n}}\n");
    let suites = format!("fn suites() -> Vec<Suite> {{\n    vec![\n{suites}    ]\n}}\n");
    let list = format!("{modules}\n{systems}\n{suites}");
    fs::write(out.join("mutants.rs"), list).unwrap();
}

/// A path from hostler's root.
fn root(path: &str) -> PathBuf {
    Path::new("../..").join(path)
}

/// The part that a fault is for, and its file.
fn place(fault: &Fault) -> (Part, PathBuf) {
    let found = PARTS.into_iter().find_map(|part| {
        let file = root(part.folder).join(fault.file.strip_prefix(part.begin)?);
        Some((part, file))
    });
    found.unwrap_or_else(|| panic!("{}: {} is in no part", fault.name, fault.file))
}

/// Every fault can be planted, whether or not it is now: its text is in its file once.
fn check(fault: &Fault) {
    let text = fs::read_to_string(place(fault).1).unwrap();
    let found = text.matches(fault.old).count();
    assert_eq!(found, 1, "{}: {} has this {found} times, not once: {}", fault.name, fault.file, fault.old);
}

/// Copies a part, with the fault planted in its file, as a module of this name.
fn plant(from: &Path, to: &Path, name: &str, file: &Path, fault: &Fault) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            plant(&path, &copy, name, file, fault);
            continue;
        }
        let mut text = fs::read_to_string(&path).unwrap();
        if path == file {
            text = text.replace(fault.old, fault.new);
        }
        fs::write(copy, text.replace("crate::", &format!("crate::{name}::"))).unwrap();
    }
}

/// Makes the tests of a copy functions that anybody can call, and lists them. `module`: the path of the folder's module.
fn open_tests(folder: &Path, module: &str, tests: &mut Vec<String>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let module = if matches!(stem, "lib" | "mod") { module.to_owned() } else { format!("{module}::{stem}") };
        if path.is_dir() {
            open_tests(&path, &module, tests);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap().replace("#[cfg(test)]\n", "");
        let (mut open, mut module, mut kind) = (String::new(), module, "");
        for line in text.lines() {
            let code = line.trim_start();
            let name = |begin: &str| code.strip_prefix(begin)?.split('(').next();
            match (code, kind) {
                ("#[test]", _) => {
                    kind = "test";
                    continue;
                }
                _ if code.starts_with("#[tokio::test") => {
                    kind = if code.contains("start_paused") { "paused tokio::test" } else { "tokio::test" };
                    continue;
                }
                (_, "test") => {
                    let name = name("fn ").unwrap_or_else(|| panic!("{code}"));
                    tests.push(format!("({name:?}, crate::{module}::{name} as fn())"));
                }
                (_, "tokio::test" | "paused tokio::test") => {
                    let name = name("async fn ").unwrap_or_else(|| panic!("{code}"));
                    let is_paused = kind == "paused tokio::test";
                    tests.push(format!("({name:?}, || in_runtime({is_paused}, crate::{module}::{name}()))"));
                }
                ("mod tests {", _) => module.push_str("::tests"),
                _ => {}
            }
            let is_hidden = !kind.is_empty() || code.starts_with("mod ");
            kind = "";
            writeln!(open, "{}{line}", if is_hidden { "pub " } else { "" }).unwrap();
        }
        fs::write(path, open).unwrap();
    }
}
