//! Memory and threads: what a container's limits make of a consumer, and guests that want more.

use serde_json::Value;

use super::work;
use crate::support::engine::{Container, Engine};
use crate::support::hostler::Depth;

const SMALL: [&str; 4] = ["--memory", "128m", "--pids-limit", "64"];

#[test]
fn guests_that_want_all_memory_do_not_end_the_container() {
    let Some(engine) = Engine::get() else { return };
    let keys = "concurrency = 4\nretry = { requeues = 0, delays = 0 }";
    let container = Container::run(engine, &SMALL, &work("", keys)).consuming();
    container.send("work", [vec!["m"; 200], vec!["ack"; 20]].concat());
    let settled = container.settled(220);
    let outcomes = |outcome: &str| settled.iter().filter(|line| line["outcome"] == outcome).count();
    assert_eq!((outcomes("trapped"), outcomes("ack")), (200, 20));
    let reason = |line: &&Value| line["reason"].as_str().is_some_and(|reason| reason.contains("out of memory"));
    assert_eq!(settled.iter().filter(reason).count(), 200, "{}", settled[0]);
    assert_eq!(container.depth("work"), Depth { dead_lettered: 200, ..Depth::default() });
    let state = container.state();
    assert_eq!((&state["OOMKilled"], &state["Running"]), (&false.into(), &true.into()));
    assert_eq!(container.stop().0, 0);
}

#[test]
fn what_is_not_configured_fits_the_container() {
    let Some(engine) = Engine::get() else { return };
    let keys = "retry = { requeues = 0, delays = 0 }";
    let container = Container::run(engine, &SMALL, &work("", keys)).consuming();
    container.send("work", ["m"; 64]);
    assert!(container.settled(64).iter().all(|line| line["outcome"] == "trapped"));
    assert_eq!(container.state()["OOMKilled"], false);
}

#[test]
fn what_cannot_fit_is_refused_with_the_sum() {
    let Some(engine) = Engine::get() else { return };
    let container = Container::run(engine, &SMALL, &work("", "concurrency = 64\nlimits.memory = '16MiB'"));
    assert_eq!(container.exit_code(), 64);
    let said = container.lines().iter().map(Value::to_string).collect::<String>();
    for figure in ["64", "16 MiB", "128 MiB"] {
        assert!(said.contains(figure), "{said}");
    }
}
