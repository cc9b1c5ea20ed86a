//! What a neighbour keeps of its throughput beside a guest that does its worst.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use super::{Attempt, attempts, is_settled, send, world};
use crate::support::hostler::{Host, PATIENCE};

/// Messages for the neighbour: enough for a second or two.
const MESSAGES: usize = if cfg!(debug_assertions) { 4_000 } else { 50_000 };

/// Whoever is slower than this by the neighbour of a hostile guest has lost too much.
const KEPT: f64 = 0.8;

/// How often a pair is measured at most. The machine is not equally fast from one second to the next, whoever runs on it: the pair
/// in the middle counts.
const ROUNDS: usize = 11;

/// The neighbour's messages per second, with so many hostile messages beside.
fn rate(attempt: &Attempt, hostile: usize) -> f64 {
    let world = world(attempt);
    world.send("neighbour", std::iter::repeat_n("0", MESSAGES));
    if hostile > 0 {
        send(&world, attempt, hostile);
    }
    let host = Host::start(world.command(&["run"]));
    host.wait_for(PATIENCE, |line| is_settled(line, "neighbour"));
    let (started, mut settled) = (Instant::now(), 0);
    host.wait_for(PATIENCE * 2, |line| {
        settled += usize::from(is_settled(line, "neighbour"));
        settled == MESSAGES
    });
    MESSAGES as f64 / started.elapsed().as_secs_f64()
}

/// The one in the middle, of two the larger.
fn middle(pairs: &mut [f64]) -> f64 {
    pairs.sort_by(f64::total_cmp);
    pairs.get(pairs.len() / 2).copied().unwrap_or(0.0)
}

#[test]
fn a_neighbour_keeps_four_fifths_of_its_throughput() {
    let words = ["loop", "sleep", "clock", "random", "flood", "memory", "stack", "lines", "fork", "get"];
    let mut table = String::from("hostile guest   neighbour keeps   rounds\n");
    let mut slow = BTreeMap::new();
    for word in words {
        let attempt = attempts().into_iter().find(|attempt| attempt.word == word).unwrap();
        let mut pairs = Vec::new();
        while pairs.len() < ROUNDS && middle(&mut pairs) < KEPT {
            // Now the one first, now the other, for a machine that gets slower.
            let hostile = if pairs.len().is_multiple_of(2) { [0, 100] } else { [100, 0] };
            let [first, second] = hostile.map(|count| rate(&attempt, count));
            pairs.push(if hostile[0] == 0 { second / first } else { first / second });
        }
        let kept = middle(&mut pairs);
        let _ = writeln!(table, "{word:<14} {:>15.0} % {:>8}", kept * 100.0, pairs.len());
        if kept < KEPT {
            slow.insert(word, kept);
        }
    }
    println!("{table}");
    assert!(slow.is_empty(), "{table}");
}
