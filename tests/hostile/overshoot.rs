//! Delay of stopping a guest that writes to all of its memory at once, at the largest memory for which promise 5 holds.

use crate::support::guests::command;
use crate::support::hostler::{World, announce};

/// Messages of each kind.
const ROUNDS: usize = 3;

/// The most milliseconds beyond the processing timeout: `tests/proofs.sh overshoot` asks for those of the promise, on a quiet machine.
/// A busy one may take a thread's turn away for as long as it likes.
fn bound() -> Option<f64> {
    std::env::var("HOSTLER_OVERSHOOT").ok().map(|text| text.parse().unwrap())
}

#[test]
fn the_overshoot_of_bulk_operations_at_512_mib() {
    let world = World::new(&format!(
        "[consumers.work]\nchannel = 'work'\nhandler = '{}'\nconcurrency = 1\nlimits.memory = '512MiB'\n\
         processing_timeout = '1s'\nretry = {{ requeues = 0, delays = 0 }}",
        command("main-fills-memory").display()
    ));
    let mut host = world.started();
    let mut settled = 0;
    for (kind, body) in [("fill", "f"), ("copy", "c")] {
        let before = settled;
        for _ in 0..ROUNDS {
            // One at a time, so that nothing else takes the processor.
            world.send("work", [body]);
            settled += 1;
            host.settled(settled);
        }
        let lines = host.settled(settled);
        let mut late: Vec<f64> = Vec::new();
        for line in &lines[before..] {
            assert_eq!(
                (&line["outcome"], &line["disposition"]),
                (&"timed-out".into(), &"dead-letter".into()),
                "{line}"
            );
            late.push(line["duration_ms"].as_f64().unwrap() - 1_000.0);
        }
        announce(&format!("memory.{kind} of 512 MiB: stopped {late:.1?} ms after the processing timeout"));
        if let Some(bound) = bound() {
            assert!(late.iter().all(|late| *late <= bound), "memory.{kind}: {late:?} ms, and {bound} are promised");
        }
    }
    assert_eq!(host.stop(), 0);
}
