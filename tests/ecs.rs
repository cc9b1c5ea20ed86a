//! On ECS: the task is protected from scale-in while there is work, whatever the agent does, and logs tell the task.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::ecs::{Agent, Answer, Call};
use crate::support::hostler::{Depth, Host, PATIENCE, SECOND, World};

/// Time for which the task stays protected after its work is done, as documented in the book.
const LINGER: Duration = Duration::from_secs(10);

/// Every config begins with this, as those of [`World::new`] do.
const HEAD: &str = "
    host.health_file = 'health.json'
    queue.embedded.path = 'queue.db'
";

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

fn world(environment: Vec<(&'static str, String)>, host: &str, keys: &str) -> World {
    World::with(HEAD, environment, &format!("{host}\n{WORK}{keys}"))
}

/// An agent where all is well.
fn agent() -> Agent {
    Agent::start(|_, _| Answer::Well)
}

/// An agent that answers the metadata well, and this to calls on protection.
fn agent_that(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Agent {
    Agent::start(move |call, before| if call.method == "PUT" { answer(before) } else { Answer::Well })
}

fn bodies(calls: &[Call]) -> Vec<Value> {
    calls.iter().map(|call| call.body.clone()).collect()
}

/// The warnings that a host has logged.
fn warnings(host: &Host) -> Vec<Value> {
    host.lines().into_iter().filter(|line| line["level"] == "WARN").collect()
}

#[test]
fn a_task_is_protected_while_it_works_and_for_a_while_after() {
    let agent = agent();
    let keys = "processing_timeout = '5m'\nlease = '1m'";
    let world = world(agent.environment(), "host.shutdown_grace = '30s'", keys);
    let mut host = world.started();
    assert_eq!(agent.protections(), []);

    world.send("work", ["w3000"]);
    let on = agent.wait_for(1, PATIENCE);
    assert_eq!(host.lines().iter().filter(|line| line.get("outcome").is_some()).count(), 0, "only after its message");
    // Twice the longest that a message can be in hand: its processing, a lease, and the grace.
    assert_eq!(bodies(&on), [json!({ "ProtectionEnabled": true, "ExpiresInMinutes": 13 })]);

    host.settled(1);
    let settled = Instant::now();
    let off = agent.wait_for(2, PATIENCE);
    assert_eq!(off[1].body, json!({ "ProtectionEnabled": false }));
    let lingered = off[1].at.duration_since(settled);
    assert!((LINGER - SECOND..2 * LINGER).contains(&lingered), "{lingered:?}");

    host.wait_for(PATIENCE, |line| line["message"] == "no longer protected from scale-in");
    assert_eq!(host.stop(), 0);
    assert_eq!(agent.asked(), [true, false]);
    assert_eq!(warnings(&host), Vec::<Value>::new());
}

#[test]
fn many_quick_messages_cost_two_calls() {
    let agent = agent();
    let world = world(agent.environment(), "", "concurrency = 4");
    let mut host = world.started();
    for round in 1..=4 {
        world.send("work", vec!["w20"; 50]);
        host.settled(50 * round);
    }
    assert_eq!(agent.asked(), [true]);
    assert_eq!(host.stop(), 0);
    assert_eq!(agent.asked(), [true, false]);
    assert_eq!(agent.at_a_time(), 1);
}

#[test]
fn a_signal_while_protected_drains_as_ever_and_ends_the_protection() {
    let agent = agent();
    let world = world(agent.environment(), "", "concurrency = 2");
    let mut host = world.started();
    world.send("work", vec!["w1500"; 3]);
    agent.wait_for(1, PATIENCE);
    assert_eq!(host.stop(), 0);
    let done = host.settled(1);
    assert!(done.iter().all(|line| line["outcome"] == "ack"), "{done:?}");
    assert_eq!(world.depth("work"), Depth { visible: 3 - done.len() as u64, ..Depth::default() });
    assert_eq!(agent.asked(), [true, false]);
    // Not before all was drained.
    let lines = host.lines();
    let at = |text: &str| lines.iter().position(|line| line["message"] == text);
    assert!(at("settled") < at("no longer protected from scale-in"), "{lines:?}");
    assert!(at("no longer protected from scale-in").is_some(), "{lines:?}");
}

#[test]
fn no_fault_of_the_agent_reaches_a_message() {
    let refused = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let down = vec![("ECS_AGENT_URI", format!("http://{refused}/api/x"))];
    let says = |status: u16, body: &'static str| agent_that(move |_| Answer::Says(status, body.to_owned()));
    let agents = [
        ("reached", None),
        ("unexpected response", Some(says(200, "<html>"))),
        ("too many calls", Some(says(429, "You have reached maximum request limit."))),
        ("TASK_NOT_VALID", Some(says(200, r#"{"failure":{"Arn":"a","Detail":null,"Reason":"TASK_NOT_VALID"}}"#))),
        (
            "AccessDeniedException",
            Some(says(400, r#"{"error":{"Arn":"a","Code":"AccessDeniedException","Message":"no"}}"#)),
        ),
    ];
    for (fault, agent) in agents {
        let environment = agent.as_ref().map_or(down.clone(), Agent::environment);
        let world = world(environment, "", "");
        let mut host = world.started();
        world.send("work", ["w2500", "ack", "ack"]);
        let lines = host.settled(3);
        assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
        let asked = Instant::now();
        assert_eq!(host.stop(), 0);
        assert!(asked.elapsed() < 2 * SECOND, "{fault}: {:?}", asked.elapsed());
        // One warning, however often it was tried; and not often.
        let warnings = warnings(&host);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0]["fault"].as_str().unwrap().contains(fault), "{warnings:?}");
        let tries = agent.map_or(2, |agent| agent.asked().len());
        assert!((2..=5).contains(&tries), "{fault}: {tries}");
    }
}

#[test]
fn an_agent_that_hangs_delays_neither_messages_nor_the_end() {
    let agent = agent_that(|_| Answer::Hangs);
    let world = world(agent.environment(), "", "");
    let mut host = world.started();
    world.send("work", vec!["ack"; 20]);
    agent.wait_for(1, PATIENCE);
    host.settled(20);
    let asked = Instant::now();
    assert_eq!(host.stop(), 0);
    // Less than a call may take.
    assert!(asked.elapsed() < 4 * SECOND, "{:?}", asked.elapsed());
    assert!(!warnings(&host).is_empty());
    assert_eq!(agent.at_a_time(), 1);
}

#[test]
fn the_protection_comes_once_the_agent_is_well_again() {
    let agent = agent_that(|before| match before {
        0 => Answer::Says(500, String::new()),
        1 => Answer::Says(429, String::new()),
        _ => Answer::Well,
    });
    let world = world(agent.environment(), "", "");
    let mut host = world.started();
    world.send("work", ["w8000"]);
    let protected = host.wait_for(PATIENCE, |line| line["message"] == "protected from scale-in");
    assert_eq!(protected["minutes"], 4);
    let calls = agent.wait_for(3, PATIENCE);
    // The rest before each try is half its length at least: of 1 s, then of 2 s.
    assert!(calls[1].at - calls[0].at >= SECOND / 2, "{calls:?}");
    assert!(calls[2].at - calls[1].at >= SECOND, "{calls:?}");
    assert_eq!(warnings(&host).len(), 2, "one per kind of fault");
    assert_eq!(host.stop(), 0);
    assert_eq!(agent.asked(), [true, true, true, false]);
}

#[test]
fn it_is_off_if_the_config_says_so() {
    let agent = agent();
    let world = world(agent.environment(), "host.task_protection = 'off'", "");
    let mut host = world.started();
    world.send("work", ["w500"]);
    // The metadata is read all the same.
    assert_eq!(host.settled(1)[0]["resource"]["cloud.provider"], "aws");
    assert_eq!(host.stop(), 0);
    assert_eq!(agent.protections(), []);
}

#[test]
fn log_lines_tell_the_task() {
    let agent = agent();
    let world = world(agent.environment(), "", "");
    let mut host = world.started();
    world.send("work", ["ack"]);
    let settled = &host.settled(1)[0];
    let resource = &settled["resource"];
    for (name, value) in [
        ("aws.ecs.task.arn", json!("arn:aws:ecs:eu-west-1:111122223333:task/default/c1")),
        ("aws.ecs.cluster.arn", json!("arn:aws:ecs:eu-west-1:111122223333:cluster/default")),
        ("aws.ecs.launchtype", json!("fargate")),
        ("cloud.availability_zone", json!("eu-west-1a")),
        ("container.image.tags", json!(["1.2"])),
        ("service.name", json!("hostler")),
    ] {
        assert_eq!(resource[name], value, "{name}");
    }
    assert_eq!(host.stop(), 0);
    // Every line since it is known.
    let lines = host.lines();
    let first = lines.iter().position(|line| line["message"] == "runs in an ECS task").unwrap();
    assert!(lines[first..].iter().all(|line| line["resource"] == *resource), "{lines:?}");
    assert!(lines[..first].iter().all(|line| line.get("resource").is_none()), "{lines:?}");
}

#[test]
fn text_logs_tell_the_task_once() {
    let agent = agent();
    let world = world(agent.environment(), "telemetry.log = 'text'", "");
    let mut host = world.start();
    let text = |line: &Value, what: &str| line.as_str().is_some_and(|line| line.contains(what));
    host.wait_for(PATIENCE, |line| text(line, "consuming"));
    assert_eq!(host.stop(), 0);
    let told = host.lines().iter().filter(|line| text(line, "task/default/c1")).count();
    assert_eq!(told, 1, "{:?}", host.lines());
}

#[test]
fn outside_ecs_no_line_has_a_resource() {
    let world = world(Vec::new(), "", "");
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    assert_eq!(host.stop(), 0);
    assert!(host.lines().iter().all(|line| line.get("resource").is_none()), "{:?}", host.lines());
}

#[test]
fn metadata_that_comes_late_is_waited_for_a_little() {
    let slow = Agent::start(|_, before| match before {
        0 | 1 => Answer::Says(503, "not yet".to_owned()),
        _ => Answer::Well,
    });
    let world = world(slow.environment(), "host.task_protection = 'off'", "");
    let mut host = world.started();
    assert_eq!(host.stop(), 0);
    assert_eq!(warnings(&host), Vec::<Value>::new());
    assert!(host.lines().iter().any(|line| line["resource"]["aws.ecs.task.family"] == "thumbnails"));
}

#[test]
fn metadata_that_never_comes_is_one_warning() {
    let answers: [fn() -> Answer; 3] =
        [|| Answer::Hangs, || Answer::Says(200, "garbage".to_owned()), || Answer::Says(404, r#"{"a":1}"#.to_owned())];
    for answer in answers {
        let agent = Agent::start(move |_, _| answer());
        let world = world(agent.environment(), "host.task_protection = 'off'", "");
        let begun = Instant::now();
        let mut host = world.started();
        assert!(begun.elapsed() < 15 * SECOND, "{:?}", begun.elapsed());
        world.send("work", ["ack"]);
        assert_eq!(host.settled(1)[0]["outcome"], "ack");
        assert_eq!(host.stop(), 0);
        let warnings = warnings(&host);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].get("resource").is_none());
    }
}
