//! Resources: what a container's limits make of slots and sandboxes, and that no guest gets the container killed.
//!
//! The kernel's own cgroups are what is tested against, where one can be made; elsewhere those tests say that they did not
//! run.

use std::process::Command;

use crate::support::cgroup::Cgroup;
use crate::support::guests::{command, component};
use crate::support::hostler::{Depth, Host, PATIENCE, World, announce};

const MIB: u64 = 1 << 20;

/// A consumer of `work` with these keys.
fn work(keys: &str) -> World {
    World::new(&format!("[consumers.work]\nchannel = 'work'\n{keys}\nretry = {{ requeues = 0, delays = 0 }}"))
}

fn handler(guest: &str) -> String {
    format!("handler = '{}'", command(guest).display())
}

/// Runs a command of hostler's in the group, to its end: exit code, standard output, standard error.
fn output(group: &Cgroup, command: &Command) -> (Option<i32>, String, String) {
    let output = group.around(command).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn guests_that_take_all_they_can_get_do_not_get_the_container_killed() {
    for (keys, slots, memory) in [("", 3, 16 * MIB), ("concurrency = 4", 4, 11 * MIB)] {
        let Some(group) = Cgroup::new(128 * MIB, 64) else { return };
        let world = work(&format!("{}\n{keys}", handler("main-hogs")));
        world.send("work", (0..24).map(|_| "x"));
        let mut host = Host::start(group.around(&world.command(&["run"])));
        let plan = host.wait_for(PATIENCE, |line| line["message"] == "resources");
        assert_eq!((plan["slots"].as_u64(), plan["memory"].as_u64()), (Some(slots), Some(memory)), "{plan}");
        assert_eq!(plan["limit"], 128 * MIB);
        let lines = host.settled(24);
        for line in &lines {
            assert_eq!((&line["outcome"], &line["disposition"]), (&"trapped".into(), &"dead-letter".into()), "{line}");
            assert!(line["reason"].as_str().unwrap().starts_with("out of memory: limits.memory is "), "{line}");
        }
        assert_eq!(host.stop(), 0);
        assert_eq!(group.kills(), 0);
        let peak = group.peak().unwrap_or(u64::MAX);
        announce(&format!("{slots} slots of {} MiB used {} MiB at most", memory / MIB, peak / MIB));
        assert!(peak > slots * memory, "the guests did not all hold their memory at once: {peak}");
        assert_eq!(world.depth("work"), Depth { dead_lettered: 24, ..Depth::default() });
    }
}

#[test]
fn the_example_works_in_a_small_container() {
    let Some(group) = Cgroup::new(128 * MIB, 64) else { return };
    let flights = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights");
    let keys = "concurrency = 4\nallow.dirs = [{ host = 'totals', guest = '/totals', mode = 'rw' }]";
    let world = work(&format!("handler = '{flights}/flights.wasm'\n{keys}"));
    let sample = format!("{flights}/sample.jsonl");
    assert_eq!(world.output(&["send", "work", "--lines", "--file", &sample]).code, 0);
    let mut host = Host::start(group.around(&world.command(&["run"])));
    let lines = host.settled(1000);
    assert_eq!(lines.iter().filter(|line| line["outcome"] == "ack").count(), 971);
    assert_eq!(host.stop(), 0);
    assert_eq!(group.kills(), 0);
    announce(&format!("the example used {} MiB at most", group.peak().unwrap_or(0) / MIB));
}

#[test]
fn few_processes_are_enough() {
    let Some(group) = Cgroup::new(512 * MIB, 10) else { return };
    let keys = "concurrency = 16\nallow.dirs = [{ host = '.', guest = '/' }]";
    let world = work(&format!("{}\n{keys}", handler("main-reads-file")));
    world.send("work", (0..100).map(|_| "hostler.toml"));
    let mut host = Host::start(group.around(&world.command(&["run"])));
    assert!(host.settled(100).iter().all(|line| line["outcome"] == "ack"));
    assert_eq!(host.stop(), 0);
}

#[test]
fn what_cannot_fit_is_refused_with_the_arithmetic() {
    let Some(group) = Cgroup::new(128 * MIB, 64) else { return };
    let keys = "concurrency = 4\nlimits.memory = '64MiB'";
    let world = work(&format!("{}\n{keys}", handler("main-hogs")));
    let (code, _, run) = output(&group, &world.command(&["run"]));
    assert_eq!(code, Some(64), "{run}");
    let (code, _, check) = output(&group, &world.command(&["check"]));
    assert_eq!(code, Some(64), "{check}");
    for part in [
        "the sandboxes may need 444 MiB, but the memory limit is 128 MiB (cgroup, ",
        "40 MiB  hostler itself",
        "404 MiB  consumers.work: 4 slots × 101 MiB (1 sandbox of 64 MiB, 37 MiB beside)",
        "less memory per sandbox (consumers.work.limits.memory = ",
        "or a memory limit of at least 444 MiB",
    ] {
        assert!(check.contains(part), "{part}:\n{check}");
        assert!(run.contains(part), "{part}:\n{run}");
    }
    let (code, out, _) = output(&group, &world.command(&["check", "--config", "hostler.toml"]));
    assert_eq!((code, out.contains("memory    ok")), (Some(64), false), "{out}");

    world.config(&format!("[consumers.work]\nchannel = 'work'\n{}", handler("main-hogs")));
    let (code, out, err) = output(&group, &world.command(&["check"]));
    assert_eq!(code, Some(0), "{err}");
    let wanted = "memory    ok  work: 3 slots of 16 MiB (the memory limit is 128 MiB: cgroup, ";
    assert!(out.contains(wanted), "{out}");
}

/// On any machine, and with no cgroup: nobody has so much.
#[test]
fn what_no_machine_has_is_refused() {
    let world = work(&format!("{}\nconcurrency = 1024\nlimits.memory = '4GiB'", handler("main-hogs")));
    let said = world.output(&["check"]);
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.stderr.contains("consumers.work: 1024 slots × 6149 MiB (1 sandbox of 4096 MiB"), "{said:?}");
    let mut host = world.start();
    assert_eq!(host.wait_exit(PATIENCE), 64);
}

#[test]
fn a_handler_that_starts_with_more_than_it_may_have_is_refused() {
    let world = work(&format!("handler = '{}'", component("wants-much-memory").display()));
    let wanted = "it starts with 256.0 MiB of memory, but limits.memory is 128.0 MiB";
    let said = world.output(&["check"]);
    assert!(said.code == 65 && said.stderr.contains(wanted), "{said:?}");
    let mut host = world.start();
    assert_eq!(host.wait_exit(PATIENCE), 65);
    assert!(host.lines().iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains(wanted))));
    let world = work(&format!("{}\nlimits.memory = '1MiB'", handler("main-passes-much")));
    let said = world.output(&["check"]);
    assert!(said.code == 65 && said.stderr.contains("it starts with 10.0 MiB of memory"), "{said:?}");
}

#[test]
fn what_a_guest_makes_the_host_hold_is_bounded() {
    let outcome = |guest: &str, keys: &str| {
        let world = work(&format!("{}\n{keys}", handler(guest)));
        let said = world.output(&["invoke", "work", "--body", "", "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
        (answer["outcome"].as_str().unwrap().to_owned(), answer["reason"].as_str().unwrap_or_default().to_owned())
    };
    // 48 is `nomem` of preview 1.
    let (_, reason) = outcome("main-passes-much", "limits.memory = '16MiB'");
    assert_eq!(reason, "exit code 48");
    assert_eq!(outcome("main-passes-much", "limits.memory = '32MiB'").0, "ack");
    let dirs = "allow.dirs = [{ host = '.', guest = '/' }]";
    let trapped = ("trapped".into(), "resource table has no free keys".into());
    assert_eq!(outcome("main-opens-much", dirs), trapped);
}
