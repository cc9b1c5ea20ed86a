//! `pause` and `resume`, the breaker, and the log's level by signal: a real host on the embedded queue.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::hostler::{Depth, Host, PATIENCE, SECOND, World, until};

/// A consumer `work` whose handler does what the body says, and another one. Further keys of `work` follow.
const WORK: &str = "
    [consumers.other]
    channel = 'other'
    handler = 'guests/run-word.wat'
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

fn said(world: &World, args: &[&str], expected: &str) {
    let said = world.output(args);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, expected, ""), "{args:?}");
}

/// Checks that a command for both consumers says that no host is running.
fn without_host(world: &World, args: &[&str], effect: &str) {
    let said = world.output(args);
    let lines: Vec<_> = said.stdout.lines().collect();
    let fits = |line: &str, name: &str| {
        line.starts_with(&format!("{name}: {effect}; no host is running at `")) && line.ends_with("health.json`")
    };
    assert!(lines.len() == 2 && fits(lines[0], "other") && fits(lines[1], "work"), "{said:?}");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
}

/// Entry of `work` in the health file.
fn shown(world: &World) -> Value {
    let verdict = world.verdict();
    let consumers = verdict["report"]["consumers"].as_array().cloned().unwrap_or_default();
    consumers.into_iter().find(|consumer| consumer["name"] == "work").unwrap_or_default()
}

fn until_paused(world: &World, paused: bool) {
    until("the host notices", PATIENCE, || ((shown(world)["paused"] == true) == paused).then_some(()));
}

fn logged(host: &Host, message: &str) -> usize {
    host.lines().iter().filter(|line| line["message"] == message).count()
}

#[test]
fn a_paused_consumer_takes_nothing_and_stays_healthy_until_it_is_resumed() {
    let world = World::new(&format!("{WORK}processing_timeout = '1s'\nhealthcheck_timeout = '2s'"));
    let mut host = world.started();
    let asked = Instant::now();
    said(&world, &["pause", "work"], "work: pauses\n");
    until_paused(&world, true);
    assert!(asked.elapsed() < 10 * SECOND, "{:?}", asked.elapsed());
    said(&world, &["pause", "work"], "work: is already paused\n");
    world.send("work", ["ack"]);
    world.send("other", ["ack"]);
    assert_eq!(host.settled(1)[0]["consumer"], "other");
    // For longer than it may go without a poll.
    until("it has not polled for long", PATIENCE, || (asked.elapsed() > 6 * SECOND).then_some(()));
    let verdict = world.verdict();
    assert_eq!(verdict["status"], "healthy", "{verdict}");
    assert_eq!((&shown(&world)["state"], world.depth("work").visible), (&Value::from("IDLE"), 1));

    said(&world, &["resume", "work"], "work: goes on\n");
    assert_eq!(host.settled(2)[1]["consumer"], "work");
    assert_eq!(world.verdict()["status"], "healthy");
    until_paused(&world, false);
    said(&world, &["resume", "work"], "work: is not paused\n");
    assert_eq!((logged(&host, "paused; receiving no more messages"), logged(&host, "resumed")), (1, 1));
    assert_eq!(host.stop(), 0);
}

#[test]
fn what_runs_is_finished() {
    let world = World::new(&format!("{WORK}concurrency = 1"));
    world.send("work", vec!["w4000"; 3]);
    let mut host = world.start();
    until("one is in flight", PATIENCE, || (world.depth("work").in_flight == 1).then_some(()));
    said(&world, &["pause", "work"], "work: pauses\n");
    host.wait_for(PATIENCE, |line| line["message"] == "paused; receiving no more messages");
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    until("nothing is in flight", PATIENCE, || (world.depth("work").in_flight == 0).then_some(()));
    assert_eq!(world.depth("work"), Depth { visible: 2, ..Depth::default() });
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_pause_holds_over_a_restart_and_may_come_before_the_start() {
    let world = World::new(WORK);
    without_host(&world, &["pause", "--all"], "starts paused");
    without_host(&world, &["pause", "--all"], "starts paused");
    let folder = world.path("health.json.paused");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("work"))), (0o700, 0o600));
    world.send("work", ["ack"]);
    for _ in 0..2 {
        let mut host = world.started();
        let told = host.wait_for(PATIENCE, |line| line["level"] == "WARN" && line["consumer"] == "work");
        assert!(told["message"].as_str().unwrap().starts_with("starts paused"), "{told}");
        assert_eq!(told["cure"], "hostler resume work");
        until_paused(&world, true);
        until("it has ticked", PATIENCE, || (shown(&world)["state"] == "IDLE").then_some(()));
        assert_eq!(host.stop(), 0);
        assert_eq!((world.depth("work").visible, logged(&host, "settled")), (1, 0));
    }
    without_host(&world, &["resume", "--all"], "no longer starts paused");
    let mut host = world.start();
    host.settled(1);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_pause_says_that_the_host_does_not_notice_it_yet() {
    let world = World::new(WORK);
    let mut host = world.started();
    host.signal(Signal::STOP);
    until("the file is stale", PATIENCE, || (world.verdict()["status"] == "unhealthy").then_some(()));
    let silent = world.output(&["pause", "work"]);
    let start = "work: pauses as soon as the host notices; ";
    assert!(silent.code == 0 && silent.stdout.starts_with(start), "{silent:?}");
    host.signal(Signal::CONT);
    until_paused(&world, true);
    assert_eq!(host.stop(), 0);
    let said = world.output(&["pause", "--file", "elsewhere/health.json", "work"]);
    assert_eq!(said.stdout, "work: starts paused; no host is running at `elsewhere/health.json`\n");
}

#[test]
fn a_second_host_on_the_same_health_file_says_so() {
    let says = |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with("another host writes this"));
    let world = World::new(WORK);
    let mut first = world.started();
    let mut second = world.start();
    second.wait_for(PATIENCE, says);
    assert_eq!((first.stop(), second.stop()), (0, 0));
    let mut third = world.started();
    assert!(!third.lines().iter().any(says), "those are gone");
    assert_eq!(third.stop(), 0);
}

#[test]
fn a_frozen_host_is_not_healthy_because_another_one_writes_its_file() {
    let world = World::new(WORK);
    let mut frozen = world.started();
    let silent = |host: &Host| {
        let of = format!("another host (pid {}) that writes this health file has written nothing for ", host.pid);
        until("it is unhealthy", PATIENCE, || world.verdict()["reasons"].to_string().contains(&of).then_some(()));
    };
    let healthy = || until("it is healthy", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
    let mut other = world.started();
    healthy();
    frozen.signal(Signal::STOP);
    silent(&frozen);
    frozen.signal(Signal::CONT);
    healthy();
    frozen.signal(Signal::STOP);
    silent(&frozen);
    // One that starts beside a frozen one finds it, too.
    assert_eq!(other.stop(), 0);
    let mut third = world.started();
    silent(&frozen);
    frozen.signal(Signal::KILL);
    frozen.wait_exit(PATIENCE);
    healthy();
    assert_eq!(third.stop(), 0);
}

/// The last report of the one that has ended is in the file until the other writes again.
#[test]
fn a_host_that_ends_leaves_the_other_one_on_its_file_healthy() {
    let world = World::new(WORK);
    let mut first = world.started();
    for _ in 0..3 {
        let mut second = world.started();
        let (pid, report) = (Value::from(second.pid), || world.verdict()["report"]["pid"].clone());
        assert_eq!(second.stop(), 0);
        let said = world.output(&["check-consumer-health"]);
        assert_eq!((said.code, said.stdout.as_str()), (0, "healthy: 2 consumers\n"), "{said:?}");
        assert_ne!(report(), pid);
    }
    // Nobody writes any more.
    assert_eq!(first.stop(), 0);
    let said = world.output(&["check-consumer-health"]);
    assert!(said.code == 1 && said.stderr.contains("is gone"), "{said:?}");
}

#[test]
fn a_report_in_the_hosts_own_name_is_not_told_as_another_host() {
    let world = World::new(WORK);
    let mut host = world.started();
    let mut report: Value = serde_json::from_slice(&fs::read(world.path("health.json")).unwrap()).unwrap();
    report["written_at"] = "2099-01-01T00:00:00.000000Z".into();
    fs::write(world.path("forged"), report.to_string()).unwrap();
    fs::rename(world.path("forged"), world.path("health.json")).unwrap();
    let says = |line: &Value, text: &str| line["message"].as_str().is_some_and(|message| message.starts_with(text));
    host.wait_for(PATIENCE, |line| says(line, "a program that is not this host wrote a report in its name"));
    assert!(!host.lines().iter().any(|line| says(line, "another host")));
    assert_eq!(host.stop(), 0);
}

#[test]
fn what_is_not_meant_is_refused_and_what_others_put_there_does_not_count() {
    let world = World::new(WORK);
    let cases: [(&[&str], i32, &str); 4] = [
        (&["pause"], 2, "<CONSUMERS>"),
        (&["pause", "wrok"], 2, "there is no consumer `wrok`; did you mean `work`?\n  known consumers: other, work"),
        (&["resume", "../health.json"], 2, "there is no consumer"),
        (&["pause", "work", "--all"], 2, "cannot be used with"),
    ];
    for (args, code, part) in cases {
        let said = world.output(args);
        assert!(said.code == code && said.stderr.contains(part), "{args:?}: {said:?}");
    }
    // A folder of somebody else, as a link: the host says so once, and works.
    fs::create_dir(world.path("elsewhere")).unwrap();
    fs::write(world.path("elsewhere/work"), "").unwrap();
    symlink(world.path("elsewhere"), world.path("health.json.paused")).unwrap();
    let mut host = world.start();
    host.wait_for(PATIENCE, |line| line["message"] == "cannot read which consumers to pause");
    world.send("work", ["ack"]);
    host.settled(1);
    let refused = world.output(&["pause", "work"]);
    assert!(refused.code == 1 && refused.stderr.contains("health.json.paused"), "{refused:?}");
    assert_eq!(host.stop(), 0);
    assert_eq!(logged(&host, "cannot read which consumers to pause"), 1);
}

#[test]
fn a_breaker_stops_a_consumer_whose_messages_fail_and_a_success_lets_it_go_on() {
    let keys = "
        concurrency = 1
        processing_timeout = '1s'
        healthcheck_timeout = '2s'
        retry = { requeues = 0, delays = 0 }
        breaker = { failures = 0.5, min = 5, pause = '4s' }
    ";
    let world = World::new(&format!("{WORK}{keys}"));
    world.send("work", (0..5).map(|_| "x1").chain(["ack"; 20]));
    let mut host = world.start();
    let opened = host.wait_for(PATIENCE, |line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("breaker open: too many messages fail"))
    });
    assert_eq!((&opened["failed"], &opened["of"], &opened["pause"]), (&5.into(), &5.into(), &"4s".into()), "{opened}");
    until("it is shown", PATIENCE, || (shown(&world)["breaker"] == "open").then_some(()));
    let opened_at = Instant::now();
    until("it has not polled for long", PATIENCE, || (opened_at.elapsed() > 5 * SECOND / 2).then_some(()));
    assert_eq!((world.verdict()["status"].as_str(), host.settled(5).len()), (Some("healthy"), 5));
    host.settled(25);
    assert_eq!((logged(&host, "breaker probing with one message"), logged(&host, "breaker closed")), (1, 1));
    until("it is shown no more", PATIENCE, || shown(&world).get("breaker").is_none().then_some(()));
    assert_eq!(host.stop(), 0);
}

#[test]
fn the_log_is_made_more_talkative_by_one_signal_and_quiet_again_by_another() {
    let world = World::new(WORK);
    let mut host = world.started();
    let changes = |host: &Host| -> Vec<Value> {
        host.lines().into_iter().filter(|line| line["message"].to_string().contains("SIGUSR")).collect()
    };
    let mut received = 0;
    for (count, (signal, verbosity, talks)) in [
        (Signal::USR1, "debug", true),
        (Signal::USR1, "trace", true),
        (Signal::USR1, "trace", true),
        (Signal::USR2, "info", false),
    ]
    .into_iter()
    .enumerate()
    {
        host.signal(signal);
        let said = until("the change is logged", PATIENCE, || changes(&host).get(count).cloned());
        assert_eq!(said["verbosity"], verbosity, "{said}");
        if !talks {
            // The level falls right after the line that says so.
            host.signal(Signal::USR2);
            until("and is said again", PATIENCE, || changes(&host).get(count + 1).cloned());
            received = logged(&host, "received");
        }
        world.send("work", ["ack"]);
        host.settled(count + 1);
        let now = logged(&host, "received");
        assert_eq!(now > received, talks, "{signal:?}");
        received = now;
    }
    assert_eq!(host.stop(), 0);
}
