//! Order in which messages of a group are released: a message that was not started must not become visible before its
//! predecessor.

use std::collections::BTreeMap;

use super::record::{Delivery, Fate, Life};

/// Predecessors of a delivery that was not started, in its group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Behind {
    /// Set if the process drains.
    drained: bool,
    /// Delay in seconds with which the predecessor is released, by the same call or an earlier one.
    delay: Option<u64>,
    /// Set if the predecessor has ended but is not settled, and this was already so when the drain began. This delivery must then
    /// wait.
    has_to_wait: bool,
    /// Set if the predecessor was settled while a call for this delivery was under way. That call is then not judged by the
    /// delay.
    is_unclear: bool,
}

impl Behind {
    /// Finds the predecessors of the delivery with this receipt. The receipt is one of the entries of a call.
    pub fn of(
        receipt: &str,
        entries: &[(&String, Option<u64>)],
        deliveries: &BTreeMap<String, Delivery>,
        fates: &BTreeMap<String, Fate>,
        this: &Life,
    ) -> Option<(String, Self)> {
        let one = deliveries.get(receipt).filter(|one| one.started_at.is_none())?;
        let group = fates.get(&one.name)?.group.as_ref();
        let mut behind = Self { drained: this.drained_at.is_some(), ..Self::default() };
        let is_before = |head: &Delivery| {
            let is_other = head.number < one.number && head.life == one.life && head.name != one.name;
            is_other && group.is_some() && fates.get(&head.name).is_some_and(|fate| fate.group.as_ref() == group)
        };
        for (other, head) in deliveries.iter().filter(|(_, head)| is_before(head) && head.lost_at.is_none()) {
            let Some((ended_at, end)) = &head.ended else { continue };
            let now = entries.iter().find(|(entry, _)| *entry == other);
            let (is_now, was_before) = (now.is_some(), head.settling && head.called_at >= one.received_at);
            let before = was_before.then_some(head.called_for.as_secs());
            let delay = now.map_or(before, |(_, seconds)| *seconds);
            behind.delay = behind.delay.max(delay);
            behind.is_unclear |= !is_now && one.answered_at.is_some_and(|at| at >= head.called_at);
            let was_done = this.drained_at.is_some_and(|drained_at| end.is_some() && *ended_at < drained_at);
            let in_hand = this
                .drained_at
                .is_some_and(|drained_at| one.received_at < drained_at && one.answered_at < Some(drained_at));
            let is_unsettled = head.asked == 0 && !is_now && head.ours_until > Some(tokio::time::Instant::now());
            behind.has_to_wait |= was_done && in_hand && is_unsettled && this.deadline_at.is_none();
        }
        Some((receipt.to_owned(), behind))
    }

    /// Returns the fault if the delivery is released for this number of seconds.
    pub fn fault(&self, one: &Delivery, seconds: u64) -> Option<String> {
        if !one.settling || one.asked > 0 || one.waits_until.is_some() || one.of_key.refusals.give_back() {
            return None;
        }
        match self.delay {
            _ if self.has_to_wait => Some("7: it goes back before the one before it in its group".into()),
            Some(delay) if seconds < delay && !self.is_unclear => {
                Some(format!("7: it goes back for {seconds} s, and the one before it in its group for {delay} s"))
            }
            // The delivery keeps the delay of its predecessor.
            Some(_) => None,
            _ if self.drained && seconds > 0 => Some("6: what was not started is released with a delay".into()),
            _ => None,
        }
    }
}
