//! Output that cannot be written: what a command does all the same, and how it ends.

use std::fs::File;
use std::process::Stdio;

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
