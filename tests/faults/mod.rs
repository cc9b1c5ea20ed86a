//! Real faults around a real host: of the network, of the servers, of the machine. Whatever happens, what was sent is
//! acked, dead-lettered or still queued; the host lives; its health tells the truth.

mod host;
mod network;
mod shared_file;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::hostler::{Host, PATIENCE, World, until};

/// A consumer `work` whose handler does what the body says, and whose health is looked at closely. Further keys follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    lease = '3s'
    processing_timeout = '2s'
    healthcheck_timeout = '4s'
    retry = { requeues = 20, requeue_delay = '100ms' }
";

/// Waits for a verdict; its reasons.
fn is(world: &World, status: &str) -> String {
    until(status, PATIENCE, || {
        let verdict = world.verdict();
        (verdict["status"] == status).then(|| verdict["reasons"].to_string())
    })
}

/// Waits until the queue is empty, dead letters apart.
fn is_empty(world: &World) {
    until("the queue is empty", PATIENCE, || {
        let depth = world.depth("work");
        (depth.visible + depth.delayed + depth.in_flight == 0).then_some(())
    });
}

/// As many messages were handled as were sent, and each was finished once. It was handled again only where the log tells that the
/// earlier attempt was released, or lost its lease.
pub fn accounted(sent: usize, lines: &[Value]) {
    let mut by_id = BTreeMap::<&str, Vec<&Value>>::new();
    for line in lines.iter().filter(|line| line.get("outcome").is_some()) {
        by_id.entry(line["message_id"].as_str().unwrap()).or_default().push(line);
    }
    assert_eq!(by_id.len(), sent, "handled, of what was sent");
    for lines in by_id.values() {
        let attempts: Vec<_> = lines.iter().map(|line| line["attempt"].as_u64().unwrap()).collect();
        assert!(attempts.is_sorted_by(|one, next| one < next), "{lines:?}");
        let (last, earlier) = lines.split_last().unwrap();
        // What was to be its end is none where the lease was lost before the queue answered.
        let is_over = ["ack", "dead-letter", "none"].iter().any(|end| last["disposition"] == *end);
        assert!(is_over && last["outcome"] != "lease-lost", "{lines:?}");
        let again = |line: &&&Value| line["disposition"] == "none" || line["disposition"] == "release";
        assert!(earlier.iter().all(|line| again(&line)), "{lines:?}");
    }
}

/// Drains the host; what it has logged.
fn drained(host: &mut Host) -> Vec<Value> {
    assert_eq!(host.stop(), 0);
    host.lines()
}
