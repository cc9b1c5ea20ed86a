//! The queue's file is moved away, or another one is put in its place, while its companions stay where they are.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rusqlite::Connection;

use super::PATIENCE;
use crate::support::hostler::{Depth, Host, Said, World, until};

const JOBS: &str = "[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'";

/// Commands that open the queue, each in its own way.
const COMMANDS: [&[&str]; 6] = [
    &["send", "jobs", "--body", "late"],
    &["queues"],
    &["dlq", "ls", "jobs"],
    &["peek", "jobs"],
    &["receive", "jobs", "--ack"],
    &["run"],
];

/// Starts a host that consumes nothing, and sends messages that only its `-wal` file holds.
fn paused_host(world: &World) -> Host {
    world.provision();
    assert_eq!(world.output(&["pause", "--all"]).code, 0);
    let host = world.started();
    world.send("jobs", ["one", "two", "three"]);
    host
}

/// The present companions: inode and size of each.
fn companions(world: &World) -> [(u64, u64); 2] {
    ["queue.db-wal", "queue.db-shm"].map(|name| {
        let file = std::fs::metadata(world.path(name)).unwrap();
        (file.ino(), file.len())
    })
}

fn shift(world: &World, from: &str, to: &str) {
    std::fs::rename(world.path(from), world.path(to)).unwrap();
}

/// Asserts that every command is refused, names the files, and leaves them unchanged.
fn refused(world: &World, fault: &str, cure: &str) {
    let before = companions(world);
    for args in COMMANDS {
        let said = world.output(args);
        assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{args:?}: {said:?}");
        for part in ["queue.db`", "queue.db-wal`", "queue.db-shm`", fault, cure] {
            assert!(said.stderr.contains(part), "{part}, {args:?}: {said:?}");
        }
        assert_eq!(companions(world), before, "{args:?}");
    }
}

/// The bodies of all messages, which are removed.
fn consumed(world: &World) -> BTreeSet<String> {
    let received = world.output(&["receive", "jobs", "--ack", "--max", "100"]);
    assert_eq!(received.code, 0, "{received:?}");
    received.stdout.lines().map(str::to_owned).collect()
}

fn bodies<const N: usize>(bodies: [&str; N]) -> BTreeSet<String> {
    bodies.map(str::to_owned).into()
}

#[test]
fn commands_leave_the_companions_of_a_moved_file_alone_and_work_once_it_is_back() {
    let world = World::new(JOBS);
    let mut host = paused_host(&world);
    shift(&world, "queue.db", "away.db");
    refused(&world, "was moved or removed while a hostler has it open", "move that file back");
    assert!(!world.path("queue.db").exists(), "nothing is created");
    shift(&world, "away.db", "queue.db");
    world.send("jobs", ["four"]);
    assert_eq!(world.output(&["resume", "--all"]).code, 0);
    host.settled(4);
    assert_eq!((host.stop(), world.depth("jobs")), (0, Depth::default()));
}

#[test]
fn a_host_that_is_killed_while_its_file_is_away_loses_nothing() {
    let world = World::new(JOBS);
    let host = paused_host(&world);
    shift(&world, "queue.db", "away.db");
    host.kill();
    refused(&world, "is missing or empty", "move that file back");
    assert!(!world.path("queue.db").exists(), "nothing is created");
    // An empty file is no better than none.
    std::fs::write(world.path("queue.db"), "").unwrap();
    refused(&world, "is missing or empty", "to give up the messages in");
    shift(&world, "away.db", "queue.db");
    world.send("jobs", ["four"]);
    assert_eq!(consumed(&world), bodies(["one", "two", "three", "four"]));
}

#[test]
fn another_file_in_the_place_of_an_open_one_is_refused() {
    let world = World::new(JOBS);
    world.send("jobs", ["other"]);
    // The command may have left the message in the `-wal` file.
    Connection::open(world.path("queue.db")).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    shift(&world, "queue.db", "other.db");
    let mut host = paused_host(&world);
    shift(&world, "queue.db", "away.db");
    shift(&world, "other.db", "queue.db");
    refused(&world, "is another file than the one", "put the former file back");
    shift(&world, "away.db", "queue.db");
    assert_eq!(host.stop(), 0);
    assert_eq!(consumed(&world), bodies(["one", "two", "three"]));
}

#[test]
fn an_open_file_is_not_opened_by_another_name() {
    let world = World::new(JOBS);
    let host = paused_host(&world);
    shift(&world, "queue.db", "away.db");
    let path = world.path("away.db");
    let said = Said::new(world.command(&["queues"]).env("HOSTLER_QUEUE__EMBEDDED__PATH", path).output().unwrap());
    assert!(said.code == 69 && said.stderr.contains("under the path that it had before it was moved"), "{said:?}");
    shift(&world, "away.db", "queue.db");
    host.kill();
    assert_eq!(world.depth("jobs").visible, 3);
}

/// A file that cannot be opened shows no locks, as one that was put in the place of an open one does.
#[test]
fn a_file_without_permission_is_not_taken_for_another_one() {
    let world = World::new(JOBS);
    let host = paused_host(&world);
    let hostler = env!("CARGO_BIN_EXE_hostler");
    // Root opens any file, but not without these two capabilities.
    let without = ["--bounding-set", "--inh-caps"].map(|set| format!("{set}=-dac_override,-dac_read_search"));
    for name in ["queue.db", "queue.db-shm"] {
        let mode = |mode| std::fs::set_permissions(world.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o000);
        let mut command = if rustix::process::getuid().is_root() {
            world.program("setpriv", &[&without[0], &without[1], hostler, "queues"])
        } else {
            world.command(&["queues"])
        };
        let said = Said::new(command.output().unwrap());
        mode(0o600);
        let told = ["cannot open the queue", &format!("{name}`: Permission denied"), "must be writable for this user"];
        assert!(said.code == 69 && told.iter().all(|part| said.stderr.contains(part)), "{name}: {said:?}");
    }
    host.kill();
    assert_eq!(consumed(&world), bodies(["one", "two", "three"]));
}

/// The host reads and writes its removed `-wal`, which nobody else finds.
#[test]
fn commands_refuse_a_queue_whose_log_was_removed_under_a_host() {
    let both = "or because both were removed";
    let alone = "was removed or replaced while a hostler has it open: stop that hostler with SIGTERM";
    for (names, told) in [(&["queue.db-wal"][..], alone), (&["queue.db-wal", "queue.db-shm"], both)] {
        let world = World::new(JOBS);
        let mut host = paused_host(&world);
        for name in names {
            std::fs::remove_file(world.path(name)).unwrap();
        }
        for args in COMMANDS {
            let said = world.output(args);
            let named = said.stderr.contains("queue.db-wal`") && said.stderr.contains(told);
            assert!(said.code == 69 && named, "{args:?}: {said:?}");
            assert!(!world.path("queue.db-wal").exists(), "nothing is created, {args:?}");
        }
        assert_eq!(host.stop(), 0);
        assert_eq!(consumed(&world), bodies(["one", "two", "three"]), "{names:?}");
    }
}

/// Its end waits for the queue's thread, which closes the file.
#[test]
fn a_host_that_stops_leaves_nothing_in_the_log_even_if_that_was_removed() {
    for names in [&[][..], &["queue.db-wal", "queue.db-shm"]] {
        for _ in 0..3 {
            let world = World::new(JOBS);
            let mut host = paused_host(&world);
            for name in names {
                std::fs::remove_file(world.path(name)).unwrap();
            }
            assert_eq!(host.stop(), 0);
            assert!(!world.path("queue.db-wal").exists(), "{names:?}");
            assert_eq!(consumed(&world), bodies(["one", "two", "three"]), "{names:?}");
        }
    }
}

/// The number of messages in the queue's file alone, as it is now.
fn saved(world: &World) -> Option<i64> {
    std::fs::copy(world.path("queue.db"), world.path("copy.db")).unwrap();
    let copy = Connection::open(world.path("copy.db")).unwrap();
    copy.query_row("SELECT count(*) FROM content", [], |row| row.get(0)).ok()
}

#[test]
fn a_host_that_receives_nothing_saves_the_messages_of_a_removed_log() {
    let world = World::new(JOBS);
    let host = paused_host(&world);
    for name in ["queue.db-wal", "queue.db-shm"] {
        std::fs::remove_file(world.path(name)).unwrap();
    }
    until("the messages are in the file", PATIENCE, || (saved(&world) == Some(3)).then_some(()));
    host.kill();
    assert_eq!(consumed(&world), bodies(["one", "two", "three"]));
}

#[test]
fn a_host_whose_log_is_removed_becomes_unhealthy() {
    let times = "\nprocessing_timeout = '1s'\nhealthcheck_timeout = '2s'";
    let world = World::new(&format!("{JOBS}{times}"));
    let host = world.started();
    // A host whose first receives are refused ends.
    world.send("jobs", ["x"]);
    host.settled(1);
    std::fs::remove_file(world.path("queue.db-wal")).unwrap();
    host.wait_for(PATIENCE, |line| line.to_string().contains("so that it writes the messages into the queue"));
    let unhealthy = || (world.output(&["check-consumer-health"]).code == 1).then_some(());
    until("an unhealthy verdict", PATIENCE, unhealthy);
}
