//! `hostler top --once` beside a running host.

use crate::support::hostler::{PATIENCE, World};

const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
";

#[test]
fn once_shows_what_a_host_does() {
    let world = World::new(JOBS);
    world.send("jobs", ["1", "2", "3"]);
    let host = world.started();
    host.settled(3);
    // The health file follows within its tick.
    crate::support::hostler::until("the health file", PATIENCE, || {
        let said = world.output(&["top", "--once"]);
        assert_eq!(said.code, 0, "{said:?}");
        let row = said.stdout.lines().find(|line| line.starts_with("jobs"))?.to_owned();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert!(said.stdout.starts_with("CONSUMER"), "{said:?}");
        assert!(said.stdout.ends_with("healthy\n"), "{said:?}");
        assert_eq!(said.stderr, "hostler: no metrics: telemetry.prometheus is not set\n");
        let done = cells.iter().rev().nth(5)?;
        (*done == "3").then_some(())
    });
}

#[test]
fn once_shows_the_last_failures() {
    let world = World::new(
        "[consumers.jobs]
         channel = 'jobs'
         handler = 'guests/main-traps.wat'
         retry.requeues = 0
         retry.delays = 0",
    );
    world.send("jobs", ["1"]);
    let host = world.started();
    host.settled(1);
    crate::support::hostler::until("the health file", PATIENCE, || {
        let said = world.output(&["top", "--once"]);
        let failure = said.stdout.lines().find(|line| line.contains(" ago, jobs, "))?.to_owned();
        assert!(failure.contains(": trapped, dead-letter: "), "{said:?}");
        Some(())
    });
    // And the check reads the file as before.
    assert_eq!(world.verdict()["status"], "healthy");
}

#[test]
fn without_a_host_it_says_where_it_looked() {
    let world = World::new(JOBS);
    let said = world.output(&["top", "--once", "--file", "none.json"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(said.stderr.contains("none.json"), "{said:?}");
}

#[test]
fn a_screen_needs_a_terminal() {
    let world = World::new(JOBS);
    let host = world.started();
    let said = world.output(&["top"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("--once"), "{said:?}");
    drop(host);
}

#[test]
fn counts_of_a_queue_say_how_old_they_are() {
    let world = World::new(&format!("telemetry.prometheus = '127.0.0.1:{}'\n{JOBS}", free_port()));
    world.send("jobs-dlq", ["1", "2"]);
    let host = world.started();
    crate::support::hostler::until("a look at the queue", PATIENCE, || {
        let said = world.output(&["top", "--once"]);
        let header: Vec<&str> = said.stdout.lines().next()?.split_whitespace().collect();
        let row = said.stdout.lines().find(|line| line.starts_with("jobs"))?.to_owned();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(header[9..], ["VISIBLE", "DEAD", "OLDEST", "COUNTED"], "{said:?}");
        let [dead, _, counted, ago] = cells[cells.len() - 4..] else { return None };
        (dead == "2" && counted.ends_with('s') && ago == "ago").then_some(())
    });
    drop(host);
}

/// A port that nobody has now.
fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
