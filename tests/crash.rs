//! `kill -9`, of a host and of a sender: no message vanishes, and the queue works on.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::support::hostler::{Depth, PATIENCE, World, until};

/// A consumer whose handler leaves a file named as the body for each message, and refuses those that begin with `d`.
const MARKS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-mark.wat'
    lease = '2s'
    retry.requeues = 20
    allow.dirs = [{ host = 'marks', guest = '/marks', mode = 'rw' }]
";

fn marks(world: &World) -> BTreeSet<String> {
    let files = fs::read_dir(world.path("marks")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn body(number: usize) -> String {
    if number.is_multiple_of(100) { format!("d{number}") } else { number.to_string() }
}

#[test]
fn a_killed_host_loses_no_message() {
    const SENT: usize = 10_000;
    let world = World::new(MARKS);
    world.send("jobs", (0..SENT).map(body));
    for _ in 0..5 {
        let host = world.start();
        host.settled(1_200);
        host.kill();
        let depth = world.depth("jobs");
        let left = (depth.visible + depth.delayed + depth.in_flight + depth.dead_lettered) as usize;
        assert!(left + marks(&world).len() >= SENT, "{depth:?}");
    }
    let left = world.depth("jobs");
    assert!(left.visible > 0, "killed with work to do: {left:?}");

    let mut host = world.start();
    until("the queue is empty", PATIENCE, || {
        let depth = world.depth("jobs");
        (depth == Depth { dead_lettered: depth.dead_lettered, ..Depth::default() }).then_some(())
    });
    assert_eq!(host.stop(), 0);
    let (refused, done): (BTreeSet<_>, _) = (0..SENT).map(body).partition(|body| body.starts_with('d'));
    assert!(marks(&world) == done, "every message that can be done is done");
    assert_eq!(world.depth("jobs"), Depth { dead_lettered: refused.len() as u64, ..Depth::default() });
}

#[test]
fn a_killed_sender_leaves_a_whole_beginning() {
    let world = World::new(MARKS);
    let mut sender = world.command(&["send", "jobs", "--lines", "-"]);
    let mut sender = sender.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || (1..).take_while(|n| writeln!(input, "{n}").is_ok()).count());
    until("some are sent", PATIENCE, || (world.depth("jobs").visible >= 2_000).then_some(()));
    sender.kill().unwrap();
    sender.wait().unwrap();
    feeding.join().unwrap();

    let kept = world.depth("jobs").visible;
    world.send("jobs", ["after"]);
    let mut host = world.start();
    let lines = host.settled(kept as usize + 1);
    assert_eq!(host.stop(), 0);
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1));
    let beginning: BTreeSet<_> = (1..=kept).map(|n| n.to_string()).chain(["after".to_owned()]).collect();
    assert!(marks(&world) == beginning, "the first {kept} messages, whole, and what was sent after");
    assert_eq!(world.depth("jobs"), Depth::default());
}
