//! Choice of messages that go back because too many wait for their groups. No I/O.

use std::collections::HashMap;
use std::time::Duration;

use hostler_types::Backoff;

use super::{Hand, Handed, Stage, leaving};

/// Delays of messages that go back, by the number of times that they already did. Until then, the server has room for others: it
/// delivers what went back before what is new.
const AWAY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

/// Numbers of messages that stay of each blocked group, so that it goes on at once after its first one. The lower ones are for
/// many groups, or large messages.
const KEPT: [usize; 3] = [16, 4, 1];

impl Hand {
    /// Takes out the newest messages, at most `max`, of groups whose first one is elsewhere, because they are about to go back. A
    /// few of each group stay. Groups whose first message is here go on, so none of them go back.
    pub(crate) fn surplus(&mut self, max: usize) -> Vec<Handed> {
        let keys = KEPT.into_iter().map(|kept| self.behind(kept)).find(|keys| !keys.is_empty()).unwrap_or_default();
        let newest = keys.iter().rev().take(max);
        newest.filter_map(|sequence| self.entries.get_mut(sequence).map(leaving)).collect()
    }

    /// Returns the messages of blocked groups that follow the first `kept` of their groups, the oldest first.
    fn behind(&self, kept: usize) -> Vec<u64> {
        let mut blocked: HashMap<&str, Option<usize>> = HashMap::new();
        let mut behind = Vec::new();
        for (sequence, entry) in &self.entries {
            let is_blocked = matches!(entry.stage, Stage::Held(..));
            let count = blocked.entry(entry.mail.subject.as_str()).or_insert_with(|| is_blocked.then_some(0));
            let Some(count) = count else { continue };
            // Attempts must be known, or the note of what goes back would be wrong.
            if *count >= kept && entry.is_waiting() && entry.uncounted.is_some() {
                behind.push(*sequence);
            }
            *count += 1;
        }
        behind
    }
}

/// Returns the delay after which a message that goes back is visible.
pub(crate) fn away(handed: &Handed) -> Duration {
    AWAY.ceiling(handed.uncounted)
}
