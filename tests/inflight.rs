//! `inflight` and `cancel` beside a real host on the embedded queue.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::hostler::{Depth, PATIENCE, SECOND, Said, World, until};

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

/// The messages that the host says are in flight.
fn in_flight(world: &World) -> Vec<Value> {
    let said = world.output(&["inflight", "--json"]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

/// The messages in flight, once there are so many.
fn until_in_flight(world: &World, count: usize) -> Vec<Value> {
    until("they are in flight", PATIENCE, || Some(in_flight(world)).filter(|messages| messages.len() == count))
}

fn id(message: &Value) -> String {
    message["message_id"].as_str().unwrap().to_owned()
}

fn refused(said: &Said, code: i32, part: &str) {
    assert!(said.code == code && said.stdout.is_empty() && said.stderr.contains(part), "{part}: {said:?}");
}

#[test]
fn a_looping_message_is_listed_and_cancelled_and_dead_lettered_as_the_policy_says() {
    let world = World::new(&format!("{WORK}retry = {{ requeues = 1, requeue_delay = '0s', delays = 0 }}"));
    let mut host = world.started();
    assert_eq!(world.output(&["inflight"]).stderr, "no message is in flight\n");
    world.send("work", ["l"]);
    let message = until_in_flight(&world, 1).remove(0);
    assert_eq!(
        (&message["consumer"], &message["attempt"], &message["state"]),
        (&json!("work"), &json!(1), &json!("running"))
    );
    let time = |name: &str| message[name].as_f64().unwrap();
    assert!(time("age_seconds") > 0.0 && time("lease_left_seconds") > 0.0, "{message}");
    assert!((time("age_seconds") + time("time_left_seconds") - 60.0).abs() < 0.1, "{message}");
    let table = world.output(&["inflight"]).stdout;
    assert!(table.starts_with("CONSUMER ") && table.contains(&id(&message)), "{table}");

    let id = id(&message);
    for attempt in 1..=2 {
        until("the attempt runs", PATIENCE, || (in_flight(&world).first()?["attempt"] == attempt).then_some(()));
        let asked = Instant::now();
        let said = world.output(&["cancel", &id]);
        assert_eq!(said.stdout, format!("work: {id} is being stopped (attempt {attempt})\n"), "{said:?}");
        assert_eq!(said.code, 0);
        let settled = host.settled(attempt).pop().unwrap();
        assert!(asked.elapsed() < 20 * SECOND, "{:?}", asked.elapsed());
        assert_eq!((&settled["message_id"], &settled["outcome"]), (&json!(id), &json!("failed")), "{settled}");
        assert_eq!(settled["disposition"], ["release", "dead-letter"][attempt - 1]);
        assert!(settled["reason"].as_str().unwrap().starts_with("cancelled by an operator"), "{settled}");
    }
    assert_eq!(world.depth("work"), Depth { dead_lettered: 1, ..Depth::default() });
    refused(&world.output(&["cancel", &id]), 1, &format!("no message {id} is in flight"));
    assert_eq!(fs::read_dir(world.path("health.json.requests")).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_fifo_group_goes_on_in_order_after_its_head_was_cancelled() {
    let world = World::new(&format!("{WORK}ordered = true\nretry = {{ requeues = 0, delays = 0 }}"));
    let mut host = world.started();
    for body in ["l", "ack", "ack"] {
        assert_eq!(world.output(&["send", "work", "--group", "g", "--body", body]).code, 0);
    }
    let head = id(&until_in_flight(&world, 1)[0]);
    assert_eq!(world.output(&["cancel", &head]).code, 0);
    until("all are done", PATIENCE, || {
        (world.depth("work") == Depth { dead_lettered: 1, ..Depth::default() }).then_some(())
    });
    let lines: Vec<_> = host.lines().into_iter().filter(|line| line.get("outcome").is_some()).collect();
    assert_eq!((&lines[0]["message_id"], &lines[0]["disposition"]), (&json!(head), &json!("dead-letter")));
    let acked = lines.iter().filter(|line| line["outcome"] == "ack").count();
    assert_eq!(acked, 2, "{lines:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_message_is_cancelled_while_its_consumer_is_paused_and_while_the_host_drains() {
    let world = World::new(&format!("host.shutdown_grace = '60s'\n{WORK}retry = {{ requeues = 0, delays = 0 }}"));
    let mut host = world.started();
    world.send("work", ["l", "l"]);
    let messages = until_in_flight(&world, 2);
    assert_eq!(world.output(&["pause", "work"]).code, 0);
    host.wait_for(PATIENCE, |line| line["message"] == "paused; receiving no more messages");
    assert_eq!(world.output(&["cancel", &id(&messages[0])]).code, 0);
    host.settled(1);
    host.signal(Signal::TERM);
    host.wait_for(PATIENCE, |line| line["message"] == "draining");
    assert_eq!(world.output(&["cancel", &id(&messages[1])]).code, 0);
    let settled = host.settled(2);
    assert!(settled.iter().all(|line| line["outcome"] == "failed"), "{settled:?}");
    assert_eq!(host.wait_exit(PATIENCE), 0, "nothing was abandoned");
}

#[test]
fn of_several_consumers_with_the_same_message_one_is_named() {
    let consumer = |name: &str| {
        format!(
            "[consumers.{name}]\nchannel = 'news.{name}'\nhandler = 'guests/run-word.wat'\n\
             retry = {{ requeues = 0, delays = 0 }}\n"
        )
    };
    let world = World::new(&format!("{}{}", consumer("one"), consumer("two")));
    let host = world.started();
    assert_eq!(world.output(&["send", "news", "--body", "l"]).code, 0);
    let messages = until_in_flight(&world, 2);
    let first = id(&messages[0]);
    if first == id(&messages[1]) {
        refused(&world.output(&["cancel", &first]), 2, "several consumers process");
        assert_eq!(in_flight(&world).len(), 2, "nothing was cancelled");
    }
    refused(
        &world.output(&["cancel", &first, "--consumer", "tow"]),
        2,
        "there is no consumer `tow`: the host has one, two",
    );
    let consumer = messages[0]["consumer"].as_str().unwrap();
    assert_eq!(world.output(&["cancel", &first, "--consumer", consumer]).code, 0);
    assert_eq!(host.settled(1)[0]["consumer"], consumer);
    assert_eq!(in_flight(&world).len(), 1, "the other goes on");
    refused(&world.output(&["cancel", &first, "--consumer", consumer]), 1, "in flight at consumer");
}

#[test]
fn without_a_host_that_answers_it_says_why() {
    let world = World::new(WORK);
    refused(&world.output(&["inflight"]), 1, "there is no health file");
    refused(&world.output(&["cancel"]), 2, "<ID>");
    let mut host = world.started();
    world.send("work", ["l"]);
    let id = id(&until_in_flight(&world, 1)[0]);
    host.signal(Signal::STOP);
    let said = world.output(&["cancel", &id]);
    refused(&said, 1, &format!("(pid {})", host.pid));
    assert!(said.stderr.contains("nothing was done"), "{said:?}");
    // What a killed command leaves behind is not carried out by a host that wakes up later, nor by the next one.
    until("the file is stale", PATIENCE, || (world.verdict()["status"] == "unhealthy").then_some(()));
    refused(&world.output(&["inflight"]), 1, "has written nothing for");
    host.signal(Signal::CONT);
    until("it writes again", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
    assert_eq!(until_in_flight(&world, 1)[0]["attempt"], 1);
    host.signal(Signal::KILL);
    host.wait_exit(PATIENCE);
    refused(&world.output(&["inflight"]), 1, "is gone");
}

#[test]
fn other_files_in_the_folder_do_not_hide_a_request() {
    let world = World::new(WORK);
    let mut host = world.started();
    let folder = world.path("health.json.requests");
    assert_eq!(in_flight(&world), [] as [Value; 0], "this creates the folder");
    for n in 0..200 {
        fs::create_dir(folder.join(format!("{n}.request"))).unwrap();
        fs::write(folder.join(format!("note-{n}")), "").unwrap();
    }
    assert_eq!(in_flight(&world), [] as [Value; 0]);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 400, "they stay");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_folder_that_others_can_write_to_is_refused_on_both_sides() {
    let world = World::new(WORK);
    let mut host = world.started();
    let folder = world.path("health.json.requests");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let warned =
        host.wait_for(PATIENCE, |line| line["message"] == "cannot answer `hostler inflight` and `hostler cancel`");
    assert!(warned["error"].as_str().unwrap().contains("others may write to it"), "{warned}");
    refused(&world.output(&["inflight"]), 1, "others may write to it");
    fs::remove_dir(&folder).unwrap();
    fs::create_dir(world.path("elsewhere")).unwrap();
    symlink(world.path("elsewhere"), &folder).unwrap();
    refused(&world.output(&["inflight"]), 1, "it is not a folder");
    fs::remove_file(&folder).unwrap();
    assert_eq!(in_flight(&world), [] as [Value; 0], "and then it is used again");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(host.stop(), 0);
}
