//! Makes a copy of the consumer, or of the SQS driver, for each planted fault.
//!
//! `HOSTLER_PLANTED` says for which: `all`, or for a few that are spread over the list, which is the default and quick to build.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

include!("faults.rs");

/// How many are planted by default, at most.
const FEW: usize = 3;

fn main() {
    let source = Path::new("../../src");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed=faults.rs");
    println!("cargo:rerun-if-changed=build.rs");
    for part in ["consumer", "queue/sqs"] {
        println!("cargo:rerun-if-changed={}", source.join(part).display());
    }
    println!("cargo:rerun-if-env-changed=HOSTLER_PLANTED");
    let all = env::var("HOSTLER_PLANTED").is_ok_and(|planted| planted == "all");
    let step = if all { 1 } else { FAULTS.len().div_ceil(FEW) };
    let (mut modules, mut systems) = (String::new(), String::new());
    FAULTS.iter().for_each(|fault| check(source, fault));
    for (number, fault) in FAULTS.iter().enumerate().step_by(step) {
        let part = if fault.file.starts_with("consumer") { "consumer" } else { "queue/sqs" };
        let (copy, name) = (out.join(format!("m{number}")), format!("m{number}"));
        let _ = fs::remove_dir_all(&copy);
        plant(&source.join(part), &copy, source, fault);
        let path = copy.join("mod.rs");
        writeln!(modules, "#[allow(warnings)]\n#[path = {path:?}]\nmod {name};").unwrap();
        let (consumer, sqs) = match part {
            "consumer" => (format!("crate::{name}"), "hostler::queue::sqs".to_owned()),
            _ => ("hostler::consumer".to_owned(), format!("crate::{name}")),
        };
        writeln!(systems, "    ({number}, crate::simulation::run::system!({consumer}, {sqs})),").unwrap();
    }
    let list = format!(
        "{modules}\nfn systems() -> Vec<(usize, crate::simulation::run::System)> {{\n    vec![\n{systems}    ]\n}}\n"
    );
    fs::write(out.join("mutants.rs"), list).unwrap();
}

/// Every fault can be planted, whether or not it is now: its text is in its file once.
fn check(source: &Path, fault: &Fault) {
    let text = fs::read_to_string(source.join(fault.file)).unwrap();
    let found = text.matches(fault.old).count();
    assert_eq!(found, 1, "{}: {} has this {found} times, not once: {}", fault.name, fault.file, fault.old);
}

/// Copies a folder; what lies outside of it is hostler's own, and the fault is planted.
fn plant(from: &Path, to: &Path, source: &Path, fault: &Fault) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            plant(&path, &copy, source, fault);
            continue;
        }
        let mut text = fs::read_to_string(&path).unwrap();
        if path == source.join(fault.file) {
            text = text.replace(fault.old, fault.new);
        }
        let text = text.replace("pub(in crate::queue::sqs)", "pub").replace("crate::", "hostler::");
        fs::write(copy, text).unwrap();
    }
}
