//! Throughput of an ordinary consumer beside hostile guests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Instant;

use super::{Attempt, INSTANCES, attempts, config, send, world};
use crate::support::hostler::{Host, PATIENCE, until};
use crate::support::prometheus::{Scrape, free_address};

/// Number of timed messages of the neighbour: about half a second.
const TIMED: usize = if cfg!(debug_assertions) { 1_000 } else { 20_000 };

/// Number of all its messages: enough to keep it busy.
const MESSAGES: usize = 6 * TIMED;

/// The part of its throughput that a neighbour has to keep. A machine that is busy with other things spreads the pairs so far that no
/// more can be asked of it; `tests/proofs.sh neighbour` asks for 0.8 of a quiet one. Without pools a neighbour keeps a twentieth.
fn bound() -> f64 {
    std::env::var("HOSTLER_KEPT").ok().and_then(|text| text.parse().ok()).unwrap_or(0.5)
}

/// Minimum and maximum number of pairs to measure. The speed of the machine varies from one second to the next, so the median
/// pair counts.
const ROUNDS: [usize; 2] = [3, 21];

/// Number of messages that a consumer has finished.
fn settled(address: SocketAddr, consumer: &str) -> f64 {
    Scrape::of(address).get("hostler_messages_settled_total", &[("hostler_consumer", consumer)]).unwrap_or(0.0)
}

/// The neighbour's messages per second from now on.
fn rate(address: SocketAddr) -> f64 {
    let (started, before) = (Instant::now(), settled(address, "neighbour"));
    until("the neighbour's messages", PATIENCE, || {
        let done = settled(address, "neighbour") - before;
        (done >= TIMED as f64).then(|| done / started.elapsed().as_secs_f64())
    })
}

/// Returns the share of its throughput that the neighbour keeps beside hostile messages. One host runs without and then with them,
/// because the machine varies more between two hosts than the measured effect. The log is not read, because that would be slow.
fn kept(attempt: &Attempt) -> f64 {
    let (world, address) = (world(attempt), free_address());
    world.config(&format!("telemetry.prometheus = '{address}'\n{}", config(attempt)));
    world.send("neighbour", std::iter::repeat_n("0", MESSAGES));
    let unread = ["-c", "exec \"$0\" run 2>/dev/null", env!("CARGO_BIN_EXE_hostler")];
    let _host = Host::start(world.program("/bin/sh", &unread));
    // The first are faster than all later ones, as the queue has not yet written anything back.
    until("the first messages", PATIENCE, || (settled(address, "neighbour") >= TIMED as f64).then_some(()));
    let alone = rate(address);
    send(&world, attempt, 100);
    until("a hostile guest", PATIENCE, || {
        let hostile = [("hostler_consumer", "hostile")];
        let runs = Scrape::of(address).get("hostler_messages_in_hand", &hostile) > Some(0.0);
        (runs || settled(address, "hostile") > 0.0).then_some(())
    });
    let kept = rate(address) / alone;
    assert!(settled(address, "neighbour") < MESSAGES as f64, "the neighbour had nothing more to do");
    kept
}

/// The one in the middle, of two the larger.
fn middle(pairs: &mut [f64]) -> f64 {
    pairs.sort_by(f64::total_cmp);
    pairs.get(pairs.len() / 2).copied().unwrap_or(0.0)
}

#[test]
fn a_neighbour_keeps_its_throughput() {
    let bound = bound();
    // `ack` is the one whose state-changed hook loops.
    let words = [
        "loop", "sleep", "clock", "random", "flood", "memory", "stack", "lines", "short", "ack", "fork", "get",
        "files", "list", INSTANCES,
    ];
    let mut table = String::from("hostile guest   neighbour keeps   rounds\n");
    let mut slow = BTreeMap::new();
    for word in words {
        let attempt = attempts().into_iter().find(|attempt| attempt.word == word).unwrap();
        let mut pairs = Vec::new();
        while pairs.len() < ROUNDS[0] || (pairs.len() < ROUNDS[1] && middle(&mut pairs) < bound) {
            pairs.push(kept(&attempt));
        }
        let kept = middle(&mut pairs);
        let _ = writeln!(table, "{word:<14} {:>15.0} % {:>8}", kept * 100.0, pairs.len());
        if kept < bound {
            slow.insert(word, kept);
        }
    }
    println!("{table}");
    assert!(slow.is_empty(), "{table}");
}
