//! Files that hang: what a guest loses by them is its own consumer's, and the log says so.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::is_settled;
use crate::support::guests::command;
use crate::support::hostler::{PATIENCE, World};

/// More operations that hang than the runtimes of a consumer have threads for files: 64 in each of three.
const MESSAGES: usize = 240;

#[test]
fn files_that_hang_take_their_own_consumer_s_threads_and_no_others() {
    let read = command("main-reads-file").display().to_string();
    let consumer = |name: &str, keys: &str| {
        format!(
            "[consumers.{name}]\nchannel = '{name}'\nhandler = '{read}'\nretry = {{ requeues = 0, delays = 0 }}\n\
             allow.dirs = [{{ host = '{name}', guest = '/' }}]\n{keys}\n"
        )
    };
    let hung = "concurrency = 40\nprocessing_timeout = '1s'\nlimits.memory = '1MiB'\nlimits.output = '1KiB'";
    let world = World::new(&format!(
        "host.shutdown_grace = '10s'\n{}{}",
        consumer("hung", hung),
        consumer("neighbour", "processing_timeout = '30s'")
    ));
    for folder in ["hung", "neighbour"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    fs::write(world.path("neighbour/file"), "text").unwrap();
    // A FIFO that nobody writes to: to open it never returns.
    assert!(Command::new("mkfifo").arg(world.path("hung/fifo")).status().unwrap().success());
    world.send("hung", std::iter::repeat_n("fifo", MESSAGES));
    let mut host = world.started();
    let told = host.wait_for(PATIENCE * 2, |line| line["threads"].as_u64().is_some());
    assert_eq!((&told["level"], &told["consumer"]), (&"WARN".into(), &"hung".into()), "{told}");
    assert!(told["cure"].as_str().unwrap().contains("FIFO"), "{told}");
    world.send("neighbour", std::iter::repeat_n("file", 20));
    let mut acks = 0;
    host.wait_for(PATIENCE, |line| {
        acks += usize::from(is_settled(line, "neighbour") && line["outcome"] == "ack");
        acks == 20
    });
    let lines = host.settled(MESSAGES + 20);
    let timed_out = |line: &&serde_json::Value| is_settled(line, "hung") && line["outcome"] == "timed-out";
    assert_eq!(lines.iter().filter(timed_out).count(), MESSAGES, "a message whose file hangs is stopped in time");
    assert_eq!(world.output(&["check-consumer-health"]).code, 0);
    let begun = std::time::Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(begun.elapsed() < Duration::from_secs(10), "it ends within its grace");
}
