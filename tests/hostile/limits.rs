//! Limits of the host: a guest that takes much of what all share leaves the others enough, and a limit that is reached is nobody's
//! failure but the host's.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::{GRANT, is_settled};
use crate::http::HOSTILE;
use crate::support::guests::{command, component};
use crate::support::hostler::{Depth, Host, PATIENCE, World, pid, until};

/// Instances of the component that has many.
const MANY: u8 = 80;

/// A guest with many core instances beside its own, so many times over.
pub fn with_instances(guest: &str, times: usize) -> Vec<u8> {
    // Of one more core module, which is empty.
    let (mut bytes, module) = with_module(guest, b"\0asm\x01\0\0\0");
    let instance = [0, module, 0];
    let instances = instance.repeat(MANY.into());
    let size = 1 + instances.len();
    assert!((128..16_384).contains(&size), "two bytes are for the size");
    for _ in 0..times {
        bytes.extend([2, (size & 0x7f | 0x80) as u8, (size >> 7) as u8, MANY]);
        bytes.extend(&instances);
    }
    bytes
}

/// A guest with one more core module, and its index.
fn with_module(guest: &str, module: &[u8]) -> (Vec<u8>, u8) {
    let mut bytes = fs::read(component(guest)).unwrap();
    let modules = sections(&bytes).into_iter().filter(|id| *id == 1).count();
    assert!(module.len() < 128, "one byte is for the size");
    bytes.extend([1, u8::try_from(module.len()).unwrap()]);
    bytes.extend(module);
    (bytes, u8::try_from(modules).unwrap())
}

/// The guest that waits, with many core instances beside its own.
pub fn many_instances() -> PathBuf {
    let bytes = with_instances("waits", 1);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let file = NamedTempFile::new_in(&folder).unwrap();
    fs::write(&file, bytes).unwrap();
    let path = folder.join("many-instances.wasm");
    file.persist(&path).unwrap();
    path
}

/// The ids of a component's sections.
fn sections(bytes: &[u8]) -> Vec<u8> {
    let (mut at, mut ids) = (8, Vec::new());
    while let Some(id) = bytes.get(at) {
        ids.push(*id);
        let (mut size, mut shift) = (0_usize, 0);
        loop {
            at += 1;
            size |= usize::from(bytes[at] & 0x7f) << shift;
            shift += 7;
            if bytes[at] & 0x80 == 0 {
                break;
            }
        }
        at += 1 + size;
    }
    ids
}

fn config(hostile: &str, keys: &str) -> String {
    format!(
        "[consumers.neighbour]\nchannel = 'neighbour'\nhandler = '{}'\nconcurrency = 16\nretry = {{ requeues = 0, delays = 0 }}\n\
         [consumers.hostile]\nchannel = 'hostile'\nhandler = '{hostile}'\nprocessing_timeout = '10m'\nlease = '10m'\n{keys}",
        command("main-exits").display()
    )
}

/// The neighbour's messages are done with at their first attempt, each by an ack.
fn neighbour_works(world: &World, host: &Host, count: usize) {
    world.send("neighbour", std::iter::repeat_n("0", count));
    let lines = host.settled(count);
    let acked = |line: &&Value| is_settled(line, "neighbour") && line["outcome"] == "ack" && line["attempt"] == 1;
    assert_eq!(lines.iter().filter(acked).count(), count, "{lines:#?}");
}

#[test]
fn a_component_of_many_instances_takes_no_neighbour_s_place() {
    let world = World::new(&config(&many_instances().display().to_string(), "concurrency = 16"));
    world.send("hostile", std::iter::repeat_n("x", 16));
    let host = world.started();
    until("all of its slots to be taken", PATIENCE, || (in_flight(&world, "hostile") == 16).then_some(()));
    neighbour_works(&world, &host, 40);
    assert_eq!(in_flight(&world, "hostile"), 16);
}

/// Number of messages in flight, by the health file.
fn in_flight(world: &World, consumer: &str) -> u64 {
    shown(world, consumer, "in_flight")
}

fn shown(world: &World, consumer: &str, field: &str) -> u64 {
    let text = fs::read(world.path("health.json")).unwrap_or_default();
    let file: Value = serde_json::from_slice(&text).unwrap_or_default();
    let consumers = file["consumers"].as_array().cloned().unwrap_or_default();
    consumers.iter().find(|one| one["name"] == consumer).and_then(|one| one[field].as_u64()).unwrap_or(0)
}

#[test]
fn guests_that_open_many_files_leave_the_host_and_its_neighbours_enough() {
    let world = World::new(&config(&HOSTILE.display().to_string(), &format!("concurrency = 3\n{GRANT}")));
    fs::create_dir(world.path("granted")).unwrap();
    fs::write(world.path("granted/file"), "").unwrap();
    let said = world.output_with(&["send", "hostile", "--lines", "-", "--attr", "do=files"], "480\n480\n480\n");
    assert_eq!(said.code, 0, "{said:?}");
    let limited = ["-c", "ulimit -n 1024 && exec \"$0\" run", env!("CARGO_BIN_EXE_hostler")];
    let host = Host::start(world.program("/bin/sh", &limited));
    let refused = |line: &Value| line["denied"].as_str().is_some_and(|what| what.contains("open files"));
    let mut told = BTreeSet::new();
    host.wait_for(PATIENCE, |line| {
        if refused(line) {
            told.insert(line["message_id"].to_string());
        }
        told.len() == 3
    });
    neighbour_works(&world, &host, 100);
    // The health file is written anew, and tells it.
    until("the health file", PATIENCE, || (shown(&world, "neighbour", "processed") == 100).then_some(()));
    assert_eq!(in_flight(&world, "hostile"), 3);
    assert_eq!(world.output(&["check-consumer-health"]).code, 0);
}

/// The lowest descriptor that a process has free.
fn free_descriptor(process: u32) -> u64 {
    let open: BTreeSet<u64> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    (0..).find(|number| !open.contains(number)).unwrap()
}

#[test]
fn a_limit_of_the_host_spends_no_attempt() {
    let world = World::new(&format!(
        "[consumers.work]\nchannel = 'work'\nhandler = '{}'\nconcurrency = 1\nallow.dirs = [{{ host = '.', guest = '/' }}]\n\
         retry = {{ requeues = 0, delays = 0 }}",
        command("main-reads-file").display()
    ));
    world.send("work", ["hostler.toml"]);
    let host = world.started();
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    let before = prlimit(
        Some(pid(host.pid)),
        Resource::Nofile,
        Rlimit { current: Some(free_descriptor(host.pid)), maximum: getrlimit(Resource::Nofile).maximum },
    )
    .unwrap();
    world.send("work", ["hostler.toml"]);
    let told = host.wait_for(PATIENCE, |line| line["limit"] == "no free file descriptor");
    assert!(told["level"] == "WARN" && told["cure"].as_str().unwrap().contains("ulimit -n"), "{told}");
    let line = host.wait_for(PATIENCE, |line| line["outcome"] == "host-limit");
    assert_eq!((&line["disposition"], &line["attempt"]), (&"release".into(), &1.into()), "{line}");
    prlimit(Some(pid(host.pid)), Resource::Nofile, before).unwrap();
    let mut acks = 0;
    let line = host.wait_for(PATIENCE, |line| {
        acks += usize::from(line["outcome"] == "ack");
        acks == 2
    });
    assert_eq!(line["attempt"], 1, "the attempt was given back: {line}");
    until("an empty queue", PATIENCE, || (world.depth("work") == Depth::default()).then_some(()));
}

/// Each of three instances starts with 8 MiB. All of them together have more than their sandbox may: none could ever start.
#[test]
fn instances_that_together_start_with_more_than_a_sandbox_may_have_are_refused() {
    let (mut bytes, module) = with_module("acks", &wat::parse_str("(module (memory 128))").unwrap());
    bytes.extend([2, 10, 3, 0, module, 0, 0, module, 0, 0, module, 0]);
    let world = |file: &str, memory: &str| {
        let keys = format!("host.cache_dir = 'cache'\n[consumers.work]\nchannel = 'work'\nhandler = '{file}'");
        let world = World::new(&format!("{keys}\nlimits.memory = '{memory}'"));
        fs::write(world.path("sum.wasm"), &bytes).unwrap();
        let said = world.output(&["compile", "sum.wasm", "-o", "sum.cwasm"]);
        assert_eq!(said.code, 0, "{said:?}");
        world
    };
    for file in ["sum.wasm", "sum.cwasm"] {
        let refused = world(file, "16MiB");
        // The second time from the cache.
        for args in [&["check"][..], &["check"], &["run"], &["invoke", "work", "--body", "x"]] {
            let said = refused.output(args);
            let named = said.stderr.contains("of memory, but limits.memory is 16.0 MiB");
            assert!(said.code == 65 && named, "{file} {args:?}: {said:?}");
        }
        let said = world(file, "32MiB").output(&["invoke", "work", "--body", "x"]);
        assert!(said.code == 0 && said.stdout.contains("outcome   ack"), "{file}: {said:?}");
    }
}
