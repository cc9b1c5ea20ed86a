//! An operator who cancels messages, and what the judge makes of it: a cancelled delivery stops at once, and is a failure of that
//! attempt; no other delivery is stopped in its place.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use super::judge::{Judge, receipt_of};
use super::record::State;
use super::scenario::{Cancel, up_to};
use super::site::Line;

const SECOND: Duration = Duration::from_secs(1);

/// Draws the cancels in the life of each process.
pub(super) fn draw(rng: &mut Rng, busy: Duration) -> Vec<Cancel> {
    let count = if rng.u32(0..3) == 0 { rng.usize(1..=12) } else { 0 };
    let cancel = |_| {
        // Often while much is in flight, and often before the list is outdated.
        let after = if rng.bool() { up_to(rng, SECOND) } else { up_to(rng, busy / 6) };
        let hesitates = if rng.bool() { Duration::ZERO } else { up_to(rng, 5 * SECOND) };
        Cancel { after, pick: rng.usize(0..8), hesitates }
    };
    (0..count).map(cancel).collect()
}

/// Cancels as planned, until the process is gone.
pub async fn operate(line: Line, plan: Vec<Cancel>, judge: Arc<Judge>) {
    for Cancel { after, pick, hesitates } in plan {
        sleep(after).await;
        let Some(answer) = line.asked(|operator| (operator.list)()) else { return };
        let listed = answer.await.unwrap_or_default();
        let Some(meant) = listed.get(pick % listed.len().max(1)) else { continue };
        let Some(receipt) = judge.listed(line.life, &meant.message_id, meant.attempt) else { continue };
        sleep(hesitates).await;
        judge.cancels(&receipt);
        let Some(answer) = line.asked(|operator| (operator.cancel)(meant.delivery)) else { return };
        let is_stopped = answer.await;
        judge.cancelled(&receipt, is_stopped);
    }
}

impl Judge {
    /// The id of a message becomes known, as its handler starts.
    pub fn identify(&self, name: &str, id: &str) {
        self.state.lock().unwrap().ids.entry(id.to_owned()).or_insert_with(|| name.to_owned());
    }

    /// An operator sees a message in flight; the receipt of its delivery.
    pub fn listed(&self, life: usize, id: &str, attempt: u32) -> Option<String> {
        let state = self.state.lock().unwrap();
        receipt_of(&state, life, state.ids.get(id)?, attempt)
    }

    /// An operator is about to cancel a delivery: from now on it may be stopped.
    pub fn cancels(&self, receipt: &str) {
        let mut state = self.see(|| format!("an operator cancels {receipt}"));
        let Some(delivery) = state.deliveries.get_mut(receipt) else { return };
        delivery.is_cancelled = delivery.ended.is_none();
    }

    /// The answer is there: its process says that it is being stopped, or that it cannot be cancelled.
    pub fn cancelled(&self, receipt: &str, is_stopped: bool) {
        let mut state =
            self.see(|| format!("{receipt} {}", if is_stopped { "is cancelled" } else { "is not cancelled" }));
        let State { deliveries, lives, violations, .. } = &mut *state;
        let Some(delivery) = deliveries.get_mut(receipt) else { return };
        let life = &mut lives[delivery.life];
        if life.over {
            return;
        }
        match &delivery.ended {
            _ if is_stopped && !delivery.is_cancelled => {
                violations.push(format!("2: the cancel of {receipt}, which has ended, stops something else"));
            }
            // One whose key is looked up has no handler yet.
            None if delivery.started_at.is_none() && self.scenario.keyed.is_some() => {}
            None if is_stopped => violations.push(format!("5: {receipt} is cancelled and runs on")),
            // It fails, which the breaker counts; without its lease it tells the consumer nothing.
            Some((at, None))
                if is_stopped && delivery.ours_until.is_some_and(|until| until > *at + Duration::from_secs(2)) =>
            {
                life.ends.push_back((*at, true));
            }
            _ => {}
        }
        delivery.is_cancelled &= is_stopped;
    }
}
