//! Ends of `hostler run`: the drain, its deadline, the second signal, and life as PID 1.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::support::hostler::{Depth, Host, PATIENCE, SECOND, World, announce, pid, until};

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

fn work(host: &str, keys: &str) -> World {
    World::new(&format!("{host}\n{WORK}{keys}"))
}

/// Waits until so many messages are in flight.
fn in_flight(world: &World, count: u64) {
    until("the messages are in flight", PATIENCE, || (world.depth("work").in_flight == count).then_some(()));
}

/// The outcome and disposition of everything that a host settled.
fn settled(host: &Host) -> Vec<(String, String)> {
    let lines = host.lines().into_iter().filter(|line| line.get("outcome").is_some());
    lines
        .map(|line| (line["outcome"].as_str().unwrap().to_owned(), line["disposition"].as_str().unwrap().to_owned()))
        .collect()
}

fn pairs(pair: (&str, &str), count: usize) -> Vec<(String, String)> {
    vec![(pair.0.to_owned(), pair.1.to_owned()); count]
}

#[test]
fn an_idle_host_ends_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let world = work("", "");
        let mut host = world.started();
        // A long poll, of 20 s, is under way.
        until("it is idle", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
        let asked = Instant::now();
        host.signal(signal);
        assert_eq!(host.wait_exit(PATIENCE), 0);
        assert!(asked.elapsed() < SECOND, "{:?}", asked.elapsed());
    }
}

#[test]
fn work_under_way_is_finished_and_nothing_more_is_taken() {
    let world = work("", "concurrency = 2");
    world.send("work", vec!["w700"; 6]);
    let mut host = world.start();
    in_flight(&world, 2);
    assert_eq!(host.stop(), 0);
    assert_eq!(settled(&host), pairs(("ack", "ack"), 2));
    assert_eq!(world.depth("work"), Depth { visible: 4, ..Depth::default() });
}

#[test]
fn a_drain_says_that_a_second_signal_ends_it() {
    let world = work("", "");
    world.send("work", ["w700"]);
    let mut host = world.start();
    in_flight(&world, 1);
    host.signal(Signal::INT);
    let says = |line: &Value| line["message"].as_str().is_some_and(|text| text.contains("second SIGINT (Ctrl-C)"));
    host.wait_for(PATIENCE, says);
    assert_eq!(host.wait_exit(PATIENCE), 0);
}

#[test]
fn a_drain_is_healthy_for_all_of_its_grace() {
    let world = work("host.shutdown_grace = '100s'", "");
    world.send("work", ["w1500"]);
    let mut host = world.start();
    in_flight(&world, 1);
    host.signal(Signal::TERM);
    let limit = until("it drains", PATIENCE, || {
        let text = fs::read_to_string(world.path("health.json")).ok()?;
        let report: Value = serde_json::from_str(&text).ok()?;
        let shown = &report["consumers"][0];
        if shown["state"] == "EXITING" { shown["healthcheck_timeout"].as_f64() } else { None }
    });
    assert_eq!(limit, 100.0, "`healthcheck_timeout` is 90 s");
    assert_eq!(host.wait_exit(PATIENCE), 0);
}

#[test]
fn work_beyond_the_grace_is_stopped_and_released() {
    let world = work("host.shutdown_grace = '1s'", "");
    // One that waits in a host call, and one that computes.
    world.send("work", ["w50000", "l"]);
    let mut host = world.start();
    in_flight(&world, 2);
    let asked = Instant::now();
    assert_eq!(host.stop(), 75);
    let took = asked.elapsed();
    assert!((Duration::from_millis(700)..2 * SECOND).contains(&took), "{took:?}");
    assert_eq!(world.depth("work"), Depth { visible: 2, ..Depth::default() });
    assert_eq!(settled(&host), pairs(("shutdown", "release"), 2));
    assert_eq!(host.wait_for(PATIENCE, |line| line["message"] == "drained")["abandoned"], 2);

    let _next = world.start();
    in_flight(&world, 2);
}

#[test]
fn only_work_beyond_the_grace_is_lost() {
    let world = work("host.shutdown_grace = '2s'", "");
    world.send("work", ["w50000", "w500"]);
    let mut host = world.start();
    in_flight(&world, 2);
    assert_eq!(host.stop(), 75);
    let mut expected = pairs(("ack", "ack"), 1);
    expected.extend(pairs(("shutdown", "release"), 1));
    assert_eq!(settled(&host), expected);
    assert_eq!(world.depth("work"), Depth { visible: 1, ..Depth::default() });
}

#[test]
fn a_receive_that_lands_after_the_signal_leaves_nothing_in_flight() {
    for round in 0..8 {
        let world = work("", "lease = '10m'\nconcurrency = 64");
        let mut host = world.started();
        // Signalled while messages come in, after another count of them each time.
        let mut sender = world.command(&["send", "work", "--lines", "-"]);
        let mut sender = sender.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut input = sender.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || {
            std::io::Write::write_all(&mut input, "w5\n".repeat(3_000).as_bytes()).unwrap();
        });
        host.settled(1 + 40 * round);
        assert_eq!(host.stop(), 0);
        feeding.join().unwrap();
        assert!(sender.wait().unwrap().success());
        let done = settled(&host).iter().filter(|(_, disposition)| disposition == "ack").count() as u64;
        assert!(done < 3_000, "the signal came too late to prove anything");
        assert_eq!(world.depth("work"), Depth { visible: 3_000 - done, ..Depth::default() });
    }
}

#[test]
fn an_ordered_group_goes_back_in_order() {
    let world = work("host.shutdown_grace = '1s'", "ordered = true");
    world.send("work", ["w50000", "second", "third"]);
    let mut host = world.start();
    in_flight(&world, 1);
    assert_eq!(host.stop(), 75);
    assert_eq!(settled(&host), pairs(("shutdown", "release"), 1));
    assert_eq!(world.depth("work"), Depth { visible: 3, ..Depth::default() });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let cases = [(Signal::TERM, Signal::TERM, 143), (Signal::TERM, Signal::INT, 130), (Signal::INT, Signal::INT, 130)];
    for (first, second, code) in cases {
        let world = work("", "");
        world.send("work", ["w50000"]);
        let mut host = world.start();
        in_flight(&world, 1);
        host.signal(first);
        host.wait_for(PATIENCE, |line| line["message"] == "draining");
        let asked = Instant::now();
        host.signal(second);
        assert_eq!(host.wait_exit(PATIENCE), code);
        assert!(asked.elapsed() < SECOND, "{:?}", asked.elapsed());
    }
}

#[test]
fn a_hang_up_does_not_stop_a_host_without_a_terminal() {
    let world = work("", "");
    let mut host = world.started();
    host.signal(Signal::HUP);
    let says = |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with("SIGHUP has no effect"));
    host.wait_for(PATIENCE, says);
    world.send("work", ["ack"]);
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_host_whose_terminal_hangs_up_drains() {
    let world = work("", "");
    world.send("work", ["w5000"]);
    // `script` makes the terminal, and ends with the exit code of the host. The tests may themselves run under `nohup`, and a host
    // that is started with SIGHUP ignored goes on.
    let line = format!("exec env --default-signal=HUP '{}' run 2>log", env!("CARGO_BIN_EXE_hostler"));
    let mut terminal = Host::start(world.program("script", &["--quiet", "--return", "--command", &line, "typescript"]));
    in_flight(&world, 1);
    let id = world.verdict()["report"]["pid"].as_u64().unwrap().try_into().unwrap();
    kill_process(pid(id), Signal::HUP).unwrap();
    let log = || fs::read_to_string(world.path("log")).unwrap();
    until("it drains", PATIENCE, || log().contains("\"draining\"").then_some(()));
    // A shell sends another one to its jobs, and systemd a SIGTERM, which the kernel may deliver after its SIGHUP.
    kill_process(pid(id), Signal::HUP).unwrap();
    kill_process(pid(id), Signal::TERM).unwrap();
    assert_eq!(terminal.wait_exit(PATIENCE), 0, "{}", log());
    assert_eq!(world.depth("work"), Depth::default());
}

#[test]
fn a_host_that_was_told_to_ignore_a_hang_up_outlives_its_terminal() {
    let world = work("", "");
    world.send("work", ["w2000"]);
    let line = format!("trap '' HUP; exec '{}' run 2>log", env!("CARGO_BIN_EXE_hostler"));
    let mut terminal = Host::start(world.program("script", &["--quiet", "--return", "--command", &line, "typescript"]));
    in_flight(&world, 1);
    let id = world.verdict()["report"]["pid"].as_u64().unwrap().try_into().unwrap();
    kill_process(pid(id), Signal::HUP).unwrap();
    let log = || fs::read_to_string(world.path("log")).unwrap();
    until("it goes on", PATIENCE, || log().contains("SIGHUP has no effect").then_some(()));
    kill_process(pid(id), Signal::TERM).unwrap();
    assert_eq!(terminal.wait_exit(PATIENCE), 0, "{}", log());
}

/// Returns true if a process handles SIGTERM, by its status (proc(5): bit n-1 of `SigCgt` is signal n). SIGINT's handler is the
/// one that comes after it: a handler counts as there a moment before what it does is registered.
fn handles_term(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & (1 << 1) != 0)
}

#[test]
fn a_signal_during_the_start_ends_it_well() {
    let flights = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights/flights.wasm");
    let world = World::new(&format!("[consumers.work]\nchannel = 'work'\nhandler = '{flights}'"));
    for _ in 0..20 {
        let mut host = world.start();
        until("the handler is installed", PATIENCE, || {
            handles_term(&fs::read_to_string(format!("/proc/{}/status", host.pid)).unwrap()).then_some(())
        });
        let asked = Instant::now();
        assert_eq!(host.stop(), 0);
        assert!(asked.elapsed() < 2 * SECOND, "{:?}", asked.elapsed());
    }
}

/// `hostler run` as PID 1 of a process namespace of its own, with `/proc` as its container would see it.
fn as_pid_1(world: &World) -> Option<Host> {
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let permitted = world.program("unshare", &[&unshare[..], &["true"]].concat()).output();
    match permitted {
        Ok(output) if output.status.success() => {}
        refused => {
            announce(&format!("NOT RUN, hostler as PID 1: a process namespace cannot be made here: {refused:?}"));
            return None;
        }
    }
    let mut host =
        Host::start(world.program("unshare", &[&unshare[..], &[env!("CARGO_BIN_EXE_hostler"), "run"]].concat()));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.pid)).unwrap();
    host.pid = children.trim().parse().unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid)).unwrap();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    assert_eq!(pids.split_whitespace().last(), Some("1"), "{status}");
    Some(host)
}

#[test]
fn as_pid_1_it_works_and_drains() {
    let world = work("host.shutdown_grace = '1s'", "");
    let Some(mut host) = as_pid_1(&world) else { return };
    world.send("work", ["ack"]);
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);

    let Some(mut host) = as_pid_1(&world) else { return };
    world.send("work", ["w50000"]);
    in_flight(&world, 1);
    assert_eq!(host.stop(), 75);

    let Some(mut host) = as_pid_1(&world) else { return };
    in_flight(&world, 1);
    kill_process(pid(host.pid), Signal::TERM).unwrap();
    host.wait_for(PATIENCE, |line| line["message"] == "draining");
    host.signal(Signal::INT);
    assert_eq!(host.wait_exit(PATIENCE), 130);
}

#[test]
fn as_pid_1_it_reaps_orphans() {
    let world = work("", "");
    let Some(mut host) = as_pid_1(&world) else { return };
    let target = host.pid.to_string();
    let orphans = "for n in 1 2 3; do sleep 0.05 & echo $!; done";
    let mut shell = world.program("nsenter", &["-t", &target, "-p", "-m", "sh", "-c", orphans]);
    let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let orphans: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(shell.wait().unwrap().success());
    assert_eq!(orphans.len(), 3);
    // One that nobody waits for stays there as a zombie.
    let proc = format!("/proc/{target}/root/proc");
    assert!(Path::new(&proc).join("1").exists());
    until("the orphans are gone", PATIENCE, || {
        orphans.iter().all(|orphan| !Path::new(&proc).join(orphan).exists()).then_some(())
    });
    assert_eq!(host.stop(), 0);
}
