//! Folders of many files: a listing is complete, and takes no more of the host than it shows of the folder at a time.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use super::{GRANT, is_settled};
use crate::http::HOSTILE;
use crate::invoke::consumer;
use crate::support::guests::command;
use crate::support::hostler::{Host, PATIENCE, World};

/// So many that a listing of all of them takes megabytes.
const FILES: usize = 20_000;

/// Maximum growth of the host's memory by listings, in KiB.
const MOST: u64 = 64 * 1024;

fn world(handler: &Path, keys: &str, files: usize) -> World {
    let world = World::new(&format!(
        "[consumers.work]\nchannel = 'work'\nhandler = '{}'\nprocessing_timeout = '60s'\n{GRANT}\n\
         retry = {{ requeues = 0, delays = 0 }}\n{keys}",
        handler.display()
    ));
    fs::create_dir(world.path("granted")).unwrap();
    for file in 0..files {
        fs::write(world.path("granted").join(format!("file-{file}")), "").unwrap();
    }
    world
}

/// The memory that a host has, in KiB, from where its peak is counted anew: to compile a guest takes more than any of this.
fn start(host: &Host) -> u64 {
    fs::write(format!("/proc/{}/clear_refs", host.pid), "5").unwrap();
    peak(host)
}

/// The most memory that a host has had since then, in KiB.
fn peak(host: &Host) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn listings_that_a_guest_keeps_hold_little() {
    let world = world(&HOSTILE, "concurrency = 1\nlimits.memory = '64MiB'", FILES);
    let host = world.started();
    let before = start(&host);
    let said = world.output_with(&["send", "work", "--lines", "-", "--attr", "do=listings"], "240\n");
    assert_eq!(said.code, 0, "{said:?}");
    let line = host.wait_for(PATIENCE, |line| is_settled(line, "work"));
    assert!(line["reason"].as_str().unwrap().contains(&format!("240 listings of {FILES} entries")), "{line}");
    let more = peak(&host) - before;
    assert!(more < MOST, "{more} KiB more");
}

#[test]
fn listings_of_preview_1_hold_little() {
    let world = world(&command("main-lists"), "concurrency = 16", FILES);
    let host = world.started();
    let before = start(&host);
    world.send("work", std::iter::repeat_n("x", 16));
    let acked = |line: &Value| line["outcome"] == "ack";
    let lines = host.settled(16);
    assert!(lines.iter().all(acked), "{lines:#?}");
    let more = peak(&host) - before;
    assert!(more < MOST, "{more} KiB more");
}

#[test]
fn a_listing_of_preview_1_has_every_entry_as_it_is() {
    const FEW: usize = 2_000;
    let world = world(&command("main-lists"), "reply = 'stdout'", FEW);
    fs::create_dir(world.path("granted/folder")).unwrap();
    symlink("file-0", world.path("granted/link")).unwrap();
    let said = world.output(&["invoke", "work", "--json", "--body", ""]);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    let listed = String::from_utf8(crate::invoke::reply(&answer)).unwrap();
    let names = (0..FEW).map(|file| format!("file-{file}")).chain(["folder", "link"].map(String::from));
    assert_eq!(listed.lines().map(String::from).collect::<BTreeSet<_>>(), names.collect());
    assert_eq!(listed.lines().count(), FEW + 2, "none is listed twice");
}

/// Without any folder there is nothing to ask for. The runtimes of Go, Python and JavaScript look for folders all the same.
#[test]
fn a_search_for_folders_is_told_once_and_only_of_a_handler_that_fails_with_it() {
    for (bodies, expected) in [(["x", "x"], 1), (["0", "x"], 0)] {
        let world = consumer(&command("main-looks-for-folders"), "retry = { requeues = 0, delays = 0 }");
        let mut host = world.started();
        for (count, body) in (1..).zip(bodies) {
            world.send("one", [body]);
            let settled = host.settled(count).pop().unwrap();
            assert_eq!(settled["outcome"], if body == "x" { "failed" } else { "ack" }, "{settled}");
        }
        assert_eq!(host.stop(), 0);
        let log = host.lines();
        let told = log.iter().filter(|line| line.to_string().contains("looked for folders; none is granted"));
        assert_eq!(told.count(), expected, "{bodies:?}: {log:?}");
    }
}
