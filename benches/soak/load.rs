//! The load: a steady stream to every channel, and bursts at seeded random times.

use fastrand::Rng;

use crate::Result;
use crate::world::{Driver, World};

/// A stream: the channel, the letter that its bodies begin with, messages at a time, and every how many seconds.
struct Stream(&'static str, char, usize, u64);

/// The stream of `tiny` is apart, as it is the driver's.
const STREAMS: [Stream; 7] = [
    Stream("slow", 's', 6, 4),
    Stream("flaky", 'f', 5, 5),
    Stream("replies", 'r', 8, 4),
    Stream("refused", 'd', 3, 5),
    Stream("traps", 't', 3, 6),
    Stream("loops", 'l', 1, 15),
    Stream("hungry", 'm', 1, 5),
];

/// FIFO groups, and how many messages each gets at a time, every how many seconds.
const GROUPS: [&str; 4] = ["0", "1", "2", "3"];
const GROUP_BATCH: usize = 6;
const GROUP_EVERY: u64 = 4;

/// Messages of a burst, and seconds from one to the next, on average.
const BURST: usize = 1_000;
const BURST_EVERY: f64 = 60.0;

/// The letters of bodies that are to be done; those of all others are to be dead-lettered.
pub const DONE: &str = "asfor";

/// Sends until the run's time is over.
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
