//! Limits of the process that a container or a shell sets: none of them ends the host without a word, or for one guest's sake.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use rustix::process::getuid;
use serde_json::Value;

use super::{GRANT, is_settled};
use crate::http::HOSTILE;
use crate::support::guests::command;
use crate::support::hostler::{Host, PATIENCE, Said, World};

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

/// If a thread cannot be started, the host reports that before it takes any message.
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

/// Limits that are too low for a runtime, a thread, a sandbox or the allocator, as shells set them, and what the refusal names.
const TOO_LOW: [(&str, &[&str]); 4] = [
    ("-n", &["6", "7", "8", "9", "16", "32"]),
    ("-v", &["300000", "400000", "1000000", "4000000"]),
    ("-d", &["20000", "40000", "80000", "140000"]),
    ("-s", &["128", "256"]),
];

/// Ends of a program before its own first instruction: the kernel cannot load it (SIGSEGV), or the C library cannot start in it.
const NOT_STARTED: [i32; 2] = [-11, 127];

/// Each of these ended the host by a panic, by SIGABRT, or not at all, or let it start although no guest could.
#[test]
fn limits_that_leave_too_little_are_refused_with_their_cure() {
    let world = World::new(&config("guest.wat", "concurrency = 1"));
    fs::write(world.path("guest.wat"), r#"(module (memory (export "memory") 1) (func (export "_start")))"#).unwrap();
    for (flag, values) in TOO_LOW {
        for value in values {
            for args in [&["run"][..], &["check"], &["invoke", "guest.wat", "--body", "x"]] {
                let said = limited(&world, flag, value, args);
                assert_eq!(said.code, 70, "{flag} {value} {args:?}: {said:?}");
                let named = said.stderr.contains(&format!("`ulimit {flag}`")) && said.stderr.contains("cure: raise it");
                assert!(named && !said.stderr.contains("panicked"), "{flag} {value} {args:?}: {said:?}");
            }
        }
    }
    for value in ["6", "8", "16"] {
        let said = limited(&world, "-n", value, &["send", "neighbour", "--body", "x"]);
        assert!(said.code == 70 && said.stderr.contains("cure: raise it"), "{value}: {said:?}");
    }
    // Little above what the kernel needs to load the program, an allocation before the check ended it by SIGABRT.
    let lowest = (3_000..6_000).step_by(20).map(|limit: u32| limit.to_string());
    let loaded =
        lowest.into_iter().find(|limit| !NOT_STARTED.contains(&limited(&world, "-d", limit, &["--help"]).code));
    let loaded = loaded.expect("a program that 6 MB of data are enough for");
    for (flag, value) in [("-d", &*loaded), ("-d", "4000"), ("-v", "80000")] {
        for args in [&["--help"][..], &["queues"], &["check-consumer-health"]] {
            let said = limited(&world, flag, value, args);
            let told = format!(
                "hostler: the limit of {} of this process",
                if flag == "-d" { "data" } else { "address space" }
            );
            assert!(said.code == 70 && said.stderr.starts_with(&told), "{flag} {value} {args:?}: {said:?}");
            assert!(
                said.stderr.contains("cure: raise it") && said.stdout.is_empty(),
                "{flag} {value} {args:?}: {said:?}"
            );
        }
    }
    // What needs no sandbox works with less.
    let said = limited(&world, "-v", "400000", &["send", "neighbour", "--body", "x"]);
    assert_eq!(said.code, 0, "{said:?}");
    // And just above, guests run.
    for (flag, value) in [("-v", "6000000"), ("-d", "280000"), ("-n", "60"), ("-s", "512")] {
        let said = limited(&world, flag, value, &["invoke", "guest.wat", "--body", "x"]);
        assert!(said.code == 0 && said.stdout.contains("outcome   ack"), "{flag} {value}: {said:?}");
    }
}

/// An allocation that the kernel refuses ends the process by its exit code, and does not leave it waiting for itself.
#[test]
fn memory_that_runs_out_is_exit_code_70() {
    let world = World::new(&config("guest.wat", "concurrency = 1").replace("concurrency = 16", "concurrency = 1"));
    // Its parts take several times as much as may be had.
    fs::write(world.path("guest.wat"), format!("(module {})", "(func)".repeat(2_000_000))).unwrap();
    for args in ["check", "run"] {
        let said = limited(&world, "-d", "270000", &[args]);
        assert_eq!(said.code, 70, "{args}: {said:?}");
        assert!(said.stderr.contains("memory allocation of"), "{args}: {said:?}");
        assert!(said.stderr.contains("cure: lift it by `ulimit -d unlimited`"), "{args}: {said:?}");
    }
}

fn limited(world: &World, flag: &str, value: &str, args: &[&str]) -> Said {
    let script = format!("ulimit {flag} {value} && exec \"$0\" \"$@\"");
    let words = [&["-c", &script, env!("CARGO_BIN_EXE_hostler")], args].concat();
    // A host that starts all the same would stay.
    let mut command = world.program("timeout", &[&["20", "/bin/bash"], &*words].concat());
    command.env("RUST_BACKTRACE", "1");
    Said::new(command.output().unwrap())
}

/// A descriptor is what the health file needs for each of its writes: guests with folders must not have all.
#[test]
fn slots_whose_guests_could_take_all_descriptors_are_refused() {
    let keys = "concurrency = 16\nallow.dirs = [{ host = 'granted', guest = '/', mode = 'rw' }]";
    let world = World::new(&config(&command("main-exits").display().to_string(), keys));
    fs::create_dir(world.path("granted")).unwrap();
    for limit in (40..=120).step_by(20) {
        for args in [["check"], ["run"]] {
            let said = limited(&world, "-n", &limit.to_string(), &args);
            assert_eq!(said.code, 64, "{limit} {args:?}: {said:?}");
            let text = format!("the process may have {limit} files open, and needs 188: 88 for hostler itself");
            // Below, fewer slots would not do.
            assert_eq!(said.stderr.contains("or lower concurrency"), limit > 88, "{limit}: {said:?}");
            assert!(said.stderr.contains(&text), "{limit}: {said:?}");
        }
    }
    assert_eq!(limited(&world, "-n", "200", &["check"]).code, 0);
    // With so many, guests that open all they can leave the host enough.
    let folder = format!("concurrency = 16\n{GRANT}");
    let world = World::new(&config(&HOSTILE.display().to_string(), &folder));
    fs::create_dir(world.path("granted")).unwrap();
    fs::write(world.path("granted/file"), "").unwrap();
    let said = world.output_with(&["send", "hostile", "--lines", "-", "--attr", "do=files"], "480\n".repeat(16));
    assert_eq!(said.code, 0, "{said:?}");
    let script = ["-c", "ulimit -n 188 && exec \"$0\" run", env!("CARGO_BIN_EXE_hostler")];
    let host = Host::start(world.program("/bin/bash", &script));
    let mut told = BTreeSet::new();
    host.wait_for(PATIENCE, |line| {
        if line["denied"].as_str().is_some_and(|what| what.contains("open files")) {
            told.insert(line["message_id"].to_string());
        }
        told.len() == 16
    });
    world.send("neighbour", std::iter::repeat_n("0", 20));
    let lines = host.settled(20);
    let acked = |line: &&Value| is_settled(line, "neighbour") && line["outcome"] == "ack";
    assert_eq!(lines.iter().filter(acked).count(), 20, "{lines:#?}");
    assert_eq!(world.output(&["check-consumer-health"]).code, 0);
    assert!(!host.lines().iter().any(|line| line["message"] == "cannot write the health file"));
}
