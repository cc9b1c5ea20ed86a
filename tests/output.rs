//! Output that cannot be written: what a command does all the same, and how it ends.

use std::fs::{self, File};
use std::process::Stdio;

use hostler_types::printable::acts;

use crate::support::hostler::{Said, World};

const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
";

/// Commands that print a result.
const COMMANDS: [&[&str]; 3] = [&["schema"], &["completions", "bash"], &["send", "jobs", "--body", "x"]];

/// A pipe that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn nothing_stops_because_nobody_reads_standard_error() {
    let world = World::new(JOBS);
    world.queue("elsewhere");
    let said = Said::new(world.command(&["send", "elsewhere", "--body", "x"]).stderr(unread()).output().unwrap());
    assert_eq!((said.code, said.stdout.trim_end().len()), (0, 36), "an id: {said:?}");
    assert_eq!(world.depth("elsewhere").visible, 1);
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let world = World::new(JOBS);
    world.provision();
    for args in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let said = Said::new(world.command(args).stdout(full).output().unwrap());
        assert_eq!(said.code, 70, "{args:?}: {said:?}");
        assert!(said.stderr.starts_with("hostler: cannot write to standard output: "), "{args:?}: {said:?}");
    }
    assert_eq!(world.depth("jobs").visible, 1, "sent is sent");
}

#[test]
fn a_result_that_nobody_reads_is_none() {
    let world = World::new(JOBS);
    world.provision();
    for args in COMMANDS {
        let said = Said::new(world.command(args).stdout(unread()).output().unwrap());
        assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{args:?}");
    }
}

/// File names, arguments and all that a handler brings are anybody's text.
#[test]
fn nothing_that_is_printed_makes_a_terminal_act() {
    let world = World::new("[consumers.jobs]\nchannel = 'jobs'\nhandler = 'imports.wat'");
    let imports = r#"(module (import "\u{1b}[31mX\u{202e}" "f" (func)) (memory (export "memory") 1)
        (func (export "_start") call 0))"#;
    fs::write(world.path("imports.wat"), imports).unwrap();
    fs::write(world.path("broken.wat"), "(module (\u{1b}[31m\u{9b}1m foo)").unwrap();
    let odd = "\u{1b}[31mred\u{9b}0m\u{7f}";
    for (args, shown) in [
        (&["check"][..], r"imports \u{1b}[31mX\u{202e}"),
        (&["invoke", "broken.wat", "--body", "x"], r"\u{1b}[31m\u{9b}1m foo"),
        (&["invoke", "broken.wat", "--json", "--body", "x"], r"\u{1b}[31m\u{9b}1m foo"),
        (&["compile", "broken.wat", "-o", "out.cwasm"], r"\u{1b}[31m\u{9b}1m foo"),
        (&["invoke", odd, "--body", "x"], r"\u{1b}[31mred\u{9b}0m\u{7f}"),
        (&["queues", odd], r"\u{1b}[31mred\u{9b}0m\u{7f}"),
        (&[odd], r"\u{1b}[31mred\u{9b}0m\u{7f}"),
        (&["check-consumer-health", odd], r"\u{1b}[31mred\u{9b}0m\u{7f}"),
        (&["check-consumer-health", "--file", odd, "--start-period", "1s"], r"\u{1b}[31mred\u{9b}0m\u{7f}"),
    ] {
        let said = world.output(args);
        let all = format!("{}{}", said.stdout, said.stderr);
        assert!(!all.contains(|char| char != '\n' && char != '\t' && acts(char)), "{args:?}: {all:?}");
        assert!(all.contains(shown), "{args:?}: {all:?}");
    }
    let text = "x\u{9b}31m\u{202e}\u{7f}ü\u{1b}";
    let said = world.output_with(&["invoke", "guests/main-complains.wat", "--json", "-"], text);
    assert!(!said.stdout.contains(|char| char != '\n' && acts(char)), "{said:?}");
    let answer: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(answer["stderr"].as_str().unwrap().contains(text), "{answer}");
}
