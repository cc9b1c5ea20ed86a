//! Limits of the process that a container or a shell sets: none of them ends the host without a word, or for one guest's sake.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use rustix::process::getuid;
use serde_json::Value;

use super::is_settled;
use crate::support::guests::command;
use crate::support::hostler::{Host, Said, World};

/// A user that runs nothing.
const NOBODY_ELSE: u32 = 61_234;

fn config(hostile: &str, keys: &str) -> String {
    format!(
        "[consumers.neighbour]\nchannel = 'neighbour'\nhandler = '{}'\nconcurrency = 16\nretry = {{ requeues = 0, delays = 0 }}\n\
         [consumers.hostile]\nchannel = 'hostile'\nhandler = '{hostile}'\nretry = {{ requeues = 0, delays = 0 }}\n{keys}",
        command("main-exits").display()
    )
}

/// The kernel answers a write beyond the limit with a signal, which would end the host.
#[test]
fn a_file_beyond_the_limit_of_sizes_ends_nobody_but_its_guest() {
    let folder = "concurrency = 1\nallow.dirs = [{ host = 'granted', guest = '/', mode = 'rw' }]";
    let world = World::new(&config(&command("main-enlarges-file").display().to_string(), folder));
    world.send("hostile", ["large"]);
    let limited = ["-c", "ulimit -f 20000 && exec \"$0\" run", env!("CARGO_BIN_EXE_hostler")];
    let mut host = Host::start(world.program("/bin/sh", &limited));
    let line = host.settled(1).remove(0);
    // EFBIG, as WASI numbers it.
    assert!(
        line["outcome"] == "failed" && line["reason"].as_str().is_some_and(|reason| reason.contains("22")),
        "{line}"
    );
    world.send("neighbour", std::iter::repeat_n("0", 20));
    let lines = host.settled(21);
    let acked = |line: &&Value| is_settled(line, "neighbour") && line["outcome"] == "ack";
    assert_eq!(lines.iter().filter(acked).count(), 20, "{lines:#?}");
    assert_eq!(host.stop(), 0);
}

/// Where a thread cannot be started, the host says so before it takes anything.
#[test]
fn too_low_a_limit_of_processes_is_told_with_its_cure() {
    let exits = command("main-exits").display().to_string();
    let world = World::new(&config("guest.wat", "concurrency = 1").replace(&exits, "guest.wat"));
    // Another user reaches neither the repository nor a folder of this one.
    for (from, to) in [(exits.as_str(), "guest.wat"), (env!("CARGO_BIN_EXE_hostler"), "hostler")] {
        fs::copy(from, world.path(to)).unwrap();
    }
    fs::set_permissions(world.path(""), Permissions::from_mode(0o777)).unwrap();
    for limit in [2, 3, 6, 9] {
        let program = world.path("hostler");
        let limited = [format!("--nproc={limit}"), program.display().to_string(), "run".to_owned()];
        let mut command = world.program("prlimit", &limited.each_ref().map(String::as_str));
        // No limit binds root.
        if getuid().is_root() {
            command.uid(NOBODY_ELSE).gid(NOBODY_ELSE);
        }
        let said = Said::new(command.output().unwrap());
        assert_eq!(said.code, 70, "{limit}: {said:?}");
        assert!(said.stderr.contains("cure: raise the limit of processes"), "{limit}: {said:?}");
        assert!(!said.stderr.contains("panicked"), "{limit}: {said:?}");
    }
}
