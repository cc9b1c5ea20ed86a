//! Limits of the process that a container or a shell sets: none of them ends the host without a word, or for one guest's sake.

use serde_json::Value;

use super::is_settled;
use crate::support::guests::command;
use crate::support::hostler::{Host, World};

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
