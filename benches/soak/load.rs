//! Load: a steady stream to every channel, and bursts at random times determined by a seed.

use fastrand::Rng;

use crate::Result;
use crate::world::{Driver, World};

/// A stream: the channel, the first letter of its bodies, the number of messages at a time, and the interval in seconds.
struct Stream(&'static str, char, usize, u64);

/// Streams of both drivers. The stream of `tiny` depends on the driver and is not included.
const STREAMS: [Stream; 7] = [
    Stream("slow", 's', 6, 4),
    Stream("flaky", 'f', 5, 5),
    Stream("replies", 'r', 8, 4),
    Stream("refused", 'd', 3, 5),
    Stream("traps", 't', 3, 6),
    Stream("loops", 'l', 1, 15),
    Stream("hungry", 'm', 1, 5),
];

/// FIFO groups, and the number of messages per group at a time and their interval in seconds.
const GROUPS: [&str; 4] = ["0", "1", "2", "3"];
const GROUP_BATCH: usize = 6;
const GROUP_EVERY: u64 = 4;

/// Number of messages in a burst, and the average interval between bursts in seconds.
const BURST: usize = 1_000;
const BURST_EVERY: f64 = 60.0;

/// First letters of bodies that must be done. Bodies with other letters must be dead-lettered.
pub const DONE: &str = "asfor";

/// Sends messages until the end of the run.
pub fn run(world: &World, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    let steady = match world.driver {
        Driver::Embedded => 40,
        Driver::Sqs => 25,
    };
    let mut number = 0;
    let mut bodies = |letter: char, group: &str, count: usize| -> Vec<String> {
        let numbers = number..number + count;
        number = numbers.end;
        numbers.map(|number| format!("{letter}{group}{number:08}")).collect()
    };
    let mut burst = BURST_EVERY * rng.f64();
    for second in 0_u64.. {
        world.clock.wait_until(second as f64);
        if world.is_over() {
            return Ok(());
        }
        let now = world.clock.now();
        let mut tiny = steady;
        if now > burst {
            burst = now + BURST_EVERY * (0.5 + rng.f64());
            tiny += BURST;
        }
        world.send("tiny", None, &bodies('a', "0", tiny))?;
        for (at, Stream(channel, letter, count, every)) in (0..).zip(&STREAMS) {
            if (second + at).is_multiple_of(*every) {
                world.send(channel, None, &bodies(*letter, "0", *count))?;
            }
        }
        for (at, group) in (0..).zip(GROUPS) {
            if (second + at).is_multiple_of(GROUP_EVERY) {
                world.send("ordered", Some(group), &bodies('o', group, GROUP_BATCH))?;
            }
        }
    }
    Ok(())
}
