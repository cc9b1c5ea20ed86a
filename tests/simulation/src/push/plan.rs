//! Faults of a push broker in a scenario.

use std::time::Duration;

use fastrand::Rng;

use super::super::scenario::{Denied, Scenario, Turn, between, up_to};

const SECOND: Duration = Duration::from_secs(1);

impl Scenario {
    /// Replaces the faults of requests by those of a connection: it is lost, or the service accepts nothing for a while. A third of
    /// the services cannot hide a message for long.
    pub fn suit_push(&mut self, rng: &mut Rng) {
        (self.rates.duplicates, self.rates.stale) = (0.0, 0.0);
        self.turns.retain(|(_, turn)| !matches!(turn, Turn::Denial(..)));
        self.window = rng.usize(1..=2 * self.concurrency);
        for _ in 0..rng.usize(0..=4) {
            let place = rng.usize(0..=self.turns.len());
            let after = if rng.bool() { up_to(rng, SECOND) } else { up_to(rng, 20 * SECOND) };
            self.turns.insert(place, (after, Turn::Cut));
        }
        if rng.u32(0..4) == 0 {
            let place = rng.usize(0..=self.turns.len());
            let most = if rng.bool() { 60 * SECOND } else { self.healthcheck_timeout() + 150 * SECOND };
            let denial = up_to(rng, most);
            self.turns.insert(place, (up_to(rng, 10 * SECOND), Turn::Denial(Denied::Publishes, denial)));
        }
        if rng.u32(0..3) == 0 {
            self.max_release = between(rng, 5, 20);
        }
        let may_wait = !self.ordered && self.calm_at < 1000 * SECOND;
        for message in &mut self.messages {
            if may_wait && rng.u32(0..8) == 0 {
                message.not_before = Some(Duration::from_secs(message.sent_at.as_secs()) + between(rng, 1, 100));
            }
        }
    }
}
