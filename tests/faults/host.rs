//! Faults of the machine that the host runs on: disks, descriptors, and its being stopped.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use rusqlite::Connection;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use super::{WORK, accounted, drained, is, is_empty};
use crate::support::hostler::{Depth, Host, PATIENCE, Said, World, pid, until};
use crate::support::mounts::Mounts;
use crate::support::proxy::{Line, Proxy};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Returns true if a log line, or the output of a command, contains all of these parts.
fn has(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

/// Waits for an error or a warning with all of these parts.
fn complains(host: &Host, parts: &[&str]) -> Value {
    host.wait_for(PATIENCE, |line| line["level"] != "INFO" && has(&line.to_string(), parts))
}

/// One host is stopped in the middle of its messages; another has them when their leases end, and the first one, when it
/// goes on, has nothing to say about them any more.
fn stopped_for_longer_than_a_lease(world: &World) {
    let mut stopped = world.started();
    world.send("work", ["w1900"; 4]);
    until("they are in flight", PATIENCE, || (world.depth("work").in_flight == 4).then_some(()));
    stopped.signal(Signal::STOP);
    let mut other = world.started();
    let lines = other.settled(4);
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 2), "{lines:?}");
    assert_eq!(world.depth("work"), Depth::default());
    stopped.signal(Signal::CONT);
    let lines = stopped.settled(4);
    assert!(lines.iter().all(|line| line["disposition"] == "none"), "{lines:?}");
    assert_eq!(other.stop(), 0);
    world.send("work", ["ack"; 10]);
    stopped.settled(14);
    assert_eq!(stopped.stop(), 0);
    assert_eq!(world.depth("work"), Depth::default());
}

#[test]
fn a_host_that_was_stopped_for_longer_than_a_lease_embedded() {
    stopped_for_longer_than_a_lease(&World::new(WORK));
}

#[test]
fn a_host_that_was_stopped_for_longer_than_a_lease_sqs() {
    stopped_for_longer_than_a_lease(&Aws::new(Kind::Fauxqs, WORK));
}

/// A world with a small file system of its own in the folder `small`, which holds its health file or its queue.
fn small(head: &str) -> Option<(World, Mounts)> {
    let world = World::with(head, Vec::new(), WORK);
    fs::create_dir(world.path("small")).unwrap();
    let mounts = Mounts::new(&world, "mount -t tmpfs -o size=2m none small")?;
    Some((world, mounts))
}

const HEALTH_IN_SMALL: &str = "
    host.health_file = 'small/health.json'
    queue.embedded.path = 'queue.db'
";

const QUEUE_IN_SMALL: &str = "
    host.health_file = 'health.json'
    queue.embedded.path = 'small/queue.db'
";

/// Takes what room there is in it, and no more than that anywhere else.
const FILL: &str = "head -c 4000000 /dev/zero >small/filler 2>/dev/null || true";

/// Waits until the health check in a namespace ends so, and says this.
fn verdict(world: &World, mounts: &Mounts, code: i32, says: &str) {
    until("the verdict", PATIENCE, || {
        let mut check = mounts.hostler(world, &["check-consumer-health", "--start-period", "0s"]);
        let said = Said::new(check.output().unwrap());
        (said.code == code && (said.stdout + &said.stderr).contains(says)).then_some(())
    });
}

/// While nothing can be written where the health file is, the host works on, says so with the cure, and counts as unhealthy.
fn health_file(spoil: &str, cure: &[&str], mend: &str) {
    let Some((world, mounts)) = small(HEALTH_IN_SMALL) else { return };
    let mut host = Host::start(mounts.hostler(&world, &["run"]));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    verdict(&world, &mounts, 0, "healthy");
    mounts.run(&world, spoil);
    complains(&host, &[&["cannot write the health file", "small/health.json"], cure].concat());
    world.send("work", ["ack"; 20]);
    host.settled(20);
    verdict(&world, &mounts, 1, "has written nothing for");
    mounts.run(&world, mend);
    verdict(&world, &mounts, 0, "healthy");
    accounted(20, &drained(&mut host));
}

#[test]
fn a_full_disk_under_the_health_file() {
    health_file(FILL, &["No space left", "free space on that file system"], "rm small/filler");
}

#[test]
fn a_read_only_disk_under_the_health_file() {
    let cure = ["Read-only file system", "mount a writable tmpfs there", "host.health_file"];
    health_file("mount -o remount,ro small", &cure, "mount -o remount,rw small");
}

#[test]
fn a_full_disk_under_the_queue() {
    let Some((world, mounts)) = small(QUEUE_IN_SMALL) else { return };
    let hostler = |args: &[&str]| Said::new(mounts.hostler(&world, args).output().unwrap());
    let send = |body: &str| hostler(&["send", "work", "--body", body]);
    let mut host = Host::start(mounts.hostler(&world, &["run"]));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    is(&world, "healthy");
    for _ in 0..40 {
        assert_eq!(send("w1000").code, 0);
    }
    host.settled(10);
    mounts.run(&world, FILL);
    complains(&host, &["small/queue.db` is full", "free some space"]);
    let refused = until("there is no room", PATIENCE, || Some(send(&"w".repeat(9_000))).filter(|said| said.code != 0));
    assert!(refused.code == 69 && has(&refused.stderr, &["small/queue.db` is full", "free some space"]), "{refused:?}");
    is(&world, "unhealthy");
    mounts.run(&world, "rm small/filler");
    is(&world, "healthy");
    until("the queue is empty", PATIENCE, || {
        let rows: Value = serde_json::from_str(&hostler(&["queues", "--json", "work"]).stdout).unwrap();
        (Depth::of(&rows[0]) == Depth::default()).then_some(())
    });
    accounted(40, &drained(&mut host));
}

#[test]
fn a_read_only_disk_under_the_queue() {
    let Some((world, mounts)) = small(QUEUE_IN_SMALL) else { return };
    let said = |args: &[&str]| Said::new(mounts.hostler(&world, args).output().unwrap());
    assert_eq!(said(&["send", "work", "--body", "ack"]).code, 0);
    mounts.run(&world, "mount -o remount,ro small");
    for args in [&["run"][..], &["send", "work", "--body", "ack"], &["queues"], &["check"]] {
        let said = said(args);
        assert!(said.code == 69 && has(&said.stderr, &["small/queue.db", "writable"]), "{args:?}: {said:?}");
    }
    mounts.run(&world, "mount -o remount,rw small");
    let mut host = Host::start(mounts.hostler(&world, &["run"]));
    accounted(1, &host.settled(1));
    assert_eq!(host.stop(), 0);
}

/// Changes how many descriptors a host may have.
fn descriptors(host: &Host, limit: Option<u64>) -> Option<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(pid(host.pid)), Resource::Nofile, Rlimit { current: limit, maximum }).unwrap().current
}

#[test]
fn without_a_descriptor_left_it_lives_and_says_so() {
    let world = Aws::new(Kind::Fauxqs, WORK);
    let proxy = Proxy::before(&world.server.endpoint());
    let mut command = world.command(&["run"]);
    command.env("HOSTLER_QUEUE__SQS__ENDPOINT_URL", proxy.endpoint());
    let mut host = Host::start(command);
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    is(&world, "healthy");
    world.send("work", ["w200"; 100]);
    host.settled(20);
    let before = descriptors(&host, Some(0));
    // What is connected would stay so.
    proxy.cut();
    proxy.set(Line::Good);
    complains(&host, &["receive failed", "Too many open files"]);
    complains(&host, &["cannot write the health file", "Too many open files"]);
    is(&world, "unhealthy");
    descriptors(&host, before);
    is(&world, "healthy");
    is_empty(&world);
    accounted(100, &drained(&mut host));
}

/// So that a guest which opens all it can leaves something to its neighbours.
#[test]
fn it_may_have_as_many_descriptors_as_it_may_take() {
    let world = World::new(WORK);
    let program = ["--nofile=256:3000", env!("CARGO_BIN_EXE_hostler"), "run"];
    let mut host = Host::start(world.program("prlimit", &program));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    let limits = fs::read_to_string(format!("/proc/{}/limits", host.pid)).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().take(2).collect::<Vec<_>>(), ["3000", "3000"], "{limits}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn with_few_descriptors_it_works_or_says_why_not() {
    let world = World::new(WORK);
    let (mut worked, mut refused) = (0, 0);
    for limit in [6, 14, 30, 48, 59, 60, 64, 80] {
        world.send("work", ["ack"]);
        let mut host = Host::start(
            world.program("prlimit", &[&format!("--nofile={limit}"), env!("CARGO_BIN_EXE_hostler"), "run"]),
        );
        let begun = until("it works, or ends", PATIENCE, || {
            let lines = host.lines();
            let settled = lines.iter().any(|line| line["outcome"] == "ack");
            let ended = fs::read_to_string(format!("/proc/{}/stat", host.pid)).is_ok_and(|stat| stat.contains(") Z "));
            (settled || ended).then_some(settled)
        });
        if begun {
            worked += 1;
            assert_eq!(host.stop(), 0, "with {limit}");
        } else {
            refused += 1;
            assert!([64, 70].contains(&host.wait_exit(PATIENCE)), "{limit}");
            let args = [&format!("--nofile={limit}"), env!("CARGO_BIN_EXE_hostler"), "run"];
            let said = Said::new(world.program("prlimit", &args).output().unwrap());
            assert!(has(&said.stderr, &["open files", "cure: raise"]), "{limit}: {said:?}");
        }
    }
    assert!(worked > 0 && refused > 0, "{worked} worked, {refused} were refused");
}

/// Overwrites the file's middle: pages of messages, not those that say what there is.
fn damage(world: &World) {
    let path = world.path("queue.db");
    // From the log of changes into the file.
    let db = Connection::open(&path).unwrap();
    db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    drop(db);
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    assert!(pages > 100, "{pages} pages");
    file.write_all_at(&vec![0xa5; 40 * 4096], pages / 2 * 4096).unwrap();
}

/// Error text for a damaged queue.
const DAMAGED: [&str; 3] = ["queue.db` is damaged", "put a sound copy in its place", "move it away"];

#[test]
fn a_queue_that_was_damaged_meanwhile_is_named_and_left_as_it_is() {
    let world = World::new(WORK);
    world.send("work", (0..2_000).map(|n| format!("ack {n} {}", "x".repeat(1_000))));
    damage(&world);
    let before = fs::read(world.path("queue.db")).unwrap();
    let mut host = world.start();
    let line = complains(&host, &DAMAGED);
    if line["exit_code"].is_null() {
        // What is not damaged is handled, up to where it is.
        is(&world, "unhealthy");
        assert_eq!(host.stop(), 0);
    } else {
        assert_eq!((host.wait_exit(PATIENCE), &line["exit_code"]), (69, &69.into()));
    }
    let acked = host.lines().iter().filter(|line| line["disposition"] == "ack").count();
    assert!(acked < 2_000);
    if acked == 0 {
        assert!(fs::read(world.path("queue.db")).unwrap() == before);
    }
}

#[test]
fn a_queue_that_is_damaged_under_it_makes_it_unhealthy() {
    let world = World::new(WORK);
    world.send("work", (0..2_000).map(|n| format!("w20 {n} {}", "x".repeat(1_000))));
    let mut host = world.started();
    is(&world, "healthy");
    host.settled(100);
    damage(&world);
    complains(&host, &DAMAGED);
    is(&world, "unhealthy");
    assert_eq!(host.stop(), 0);
    let acked = host.lines().iter().filter(|line| line["disposition"] == "ack").count();
    assert!(acked < 2_000);
}
