//! The consumer that tests of a queue service run, and looks at its host.

use serde_json::Value;

use super::hostler::{Host, PATIENCE, Said, World, until};

/// A consumer `work` whose handler does what the body says.
pub const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    concurrency = 4
    lease = '20s'
    processing_timeout = '30s'
    healthcheck_timeout = '60s'
    retry = { requeues = 1, requeue_delay = '0s', delays = 1, delay = '1s' }
";

/// Returns a field of each line.
pub fn field<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().map(|line| &line[name]).collect()
}

/// Waits until so many handlers run. No lease was lost.
pub fn is_busy(host: &Host, world: &World, running: u64) {
    let shown = || world.verdict()["report"]["consumers"][0]["in_flight"].as_u64();
    until("handlers run", PATIENCE, || (shown() == Some(running)).then_some(()));
    assert!(host.lines().iter().all(|line| line["message"] != "lease lost"));
}

/// Returns the rows that a command printed with `--json`.
pub fn json(said: &Said) -> Vec<Value> {
    serde_json::from_str::<Value>(&said.stdout).unwrap_or_else(|_| panic!("{said:?}")).as_array().unwrap().clone()
}

/// Sends dead letters of `work`, each with an attribute, to the queue where a host would put them.
pub fn dead_letters(world: &World, bodies: &[&str]) {
    for body in bodies {
        let said = world.output(&["send", "work-dlq", "--body", body, "--attr", "tenant=7"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}
