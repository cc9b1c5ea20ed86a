//! Health as the engine sees it: `.State.Health` of a container, by the image's own HEALTHCHECK.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::work;
use crate::support::engine::{Container, Engine};
use crate::support::hostler::SECOND;

/// A HEALTHCHECK as the image has it, but at a pace for tests.
const BRISK: [&str; 4] = ["--health-interval", "1s", "--health-retries", "3"];

/// The check's interval × retries above, and what the engine and a slow machine take on top.
const NOTICED: Duration = Duration::from_secs(3 + 2);

/// Stops the threads whose name begins with `hostler-guest` of a process, and holds them until it is killed: to the process,
/// its guests then hang in a system call that does not come back.
const HOLD: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT = 0x4206, 0x4207
tasks = f'/proc/{sys.argv[1]}/task'
for task in os.listdir(tasks):
    if open(f'{tasks}/{task}/comm').read().startswith('hostler-guest'):
        for request in SEIZE, INTERRUPT:
            if libc.ptrace(request, int(task), None, None) < 0:
                sys.exit(f'ptrace: {os.strerror(ctypes.get_errno())}')
print('held', flush=True)
sys.stdin.read()
";

/// Each look of the engine so far: exit code and words.
fn looks(container: &Container) -> Vec<(i64, String)> {
    let state = container.state();
    let looks = state["Health"]["Log"].as_array().unwrap().iter();
    looks.map(|look| (look["ExitCode"].as_i64().unwrap(), look["Output"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn it_is_starting_then_healthy() {
    let Some(engine) = Engine::get() else { return };
    // With the image's own interval: the first look comes after 10 s.
    let container = Container::run(engine, &[], &work("", "")).consuming();
    assert_eq!(container.state()["Health"]["Status"], "starting");
    container.health("healthy");
    assert_eq!(looks(&container)[0], (0, "healthy: 1 consumer\n".into()));
}

#[test]
fn a_stopped_process_turns_unhealthy_and_recovers() {
    let Some(engine) = Engine::get() else { return };
    let container = Container::run(engine, &BRISK, &work("", "")).consuming();
    container.health("healthy");
    container.signal("STOP");
    let took = container.health("unhealthy");
    // The health file counts as stale after 10 s.
    assert!(took < 10 * SECOND + NOTICED, "{took:?}");
    let (code, words) = looks(&container).pop().unwrap();
    assert_eq!(code, 1);
    // It may have been stopped while it wrote.
    assert!(["has written nothing for", "was locked for"].iter().any(|why| words.contains(why)), "{words}");
    container.signal("CONT");
    container.health("healthy");
    assert_eq!(container.stop().0, 0);
}

#[test]
fn a_consumer_stuck_in_processing_turns_unhealthy() {
    let Some(engine) = Engine::get() else { return };
    let keys = "concurrency = 2\nprocessing_timeout = '4s'\nhealthcheck_timeout = '5s'";
    let container = Container::run(engine, &BRISK, &work("", keys)).consuming();
    container.health("healthy");
    // More than one after the other, so that some are in progress when it is held, however slow the machine is.
    container.send("work", vec!["w3000"; 12]);
    container.in_flight("work", 2);
    let pid = container.state()["Pid"].to_string();
    let mut holder = Command::new("python3");
    let holder = holder.args(["-c", HOLD, &pid]).stdin(Stdio::piped());
    let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
    let mut held = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut held).unwrap();
    assert_eq!(held, "held\n");

    let took = container.health("unhealthy");
    assert!(took < 5 * SECOND + NOTICED, "{took:?}");
    let words = looks(&container).pop().unwrap().1;
    assert!(words.contains("work") && words.contains("PROCESSING"), "{words}");

    // What held it lets go.
    holder.kill().unwrap();
    holder.wait().unwrap();
    container.health("healthy");
}

#[test]
fn an_idle_one_and_a_full_one_stay_healthy() {
    let Some(engine) = Engine::get() else { return };
    let keys = "concurrency = 2\nprocessing_timeout = '3s'\nhealthcheck_timeout = '4s'";
    let idle = Container::run(engine, &BRISK, &work("", keys)).consuming();
    let full = Container::run(engine, &BRISK, &work("", keys)).consuming();
    // Three times the limit, with no slot ever free.
    full.send("work", vec!["w2000"; 12]);
    idle.health("healthy");
    full.health("healthy");
    full.settled(12);
    for container in [&idle, &full] {
        let looks = looks(container);
        assert!(looks.len() >= 5 && looks.iter().all(|(code, _)| *code == 0), "{looks:?}");
        assert_eq!(container.state()["Health"]["FailingStreak"], 0);
    }
    let busy = full.lines().iter().filter(|line| line["outcome"] == "ack").count();
    assert_eq!(busy, 12);
}
