//! State machine of one batch: decides what each of its messages gets when the guest ends, and when the batch leaves its
//! slot. No I/O.
//!
//! ```text
//! guest runs ─ended→ (single runs, one after another) ─→ over
//!     │ deadline, all leases lost, cancelled, drain deadline
//!     ▼
//! guest stops ─ended→ as above
//! ```
//!
//! Each message also has the state machine of its delivery. This one only decides which events the messages get.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use hostler_config::OnTrap;
use hostler_handler::{BatchEnd, Outcome};

/// Reason why the guest of a batch is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The processing timeout was reached after this run time.
    Timeout(Duration),
    /// The leases of all messages without an answer are lost.
    Lost,
    /// An operator cancelled one of the messages.
    Cancelled,
    /// The drain deadline was reached.
    Shutdown,
}

/// Consequence of the guest's end for a message that has no answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The outcome of the message.
    Outcome(Outcome),
    /// The guest was stopped before it gave an outcome.
    Stopped,
    /// The message runs again, alone.
    Again,
}

/// State of one batch. `I` is the type that identifies a delivery.
#[derive(Debug)]
pub struct Batch<I> {
    /// The messages without an answer, in order. Empty once the guest has ended.
    open: Vec<I>,
    /// Those of them whose leases are lost.
    lost: HashSet<I>,
    size: usize,
    on_trap: OnTrap,
    cause: Option<Cause>,
    guest_ended: bool,
    /// Number of messages that hold the slot, each by the state machine of its delivery.
    holding: usize,
    /// Messages that are still to run alone.
    singles: VecDeque<I>,
    /// The message that runs alone.
    single: Option<I>,
}

impl<I: Copy + Eq + Hash> Batch<I> {
    /// Creates the state of a batch whose guest starts with `members`, all of which hold the slot.
    pub fn new(members: Vec<I>, on_trap: OnTrap) -> Self {
        let size = members.len();
        Self {
            open: members,
            lost: HashSet::new(),
            size,
            on_trap,
            cause: None,
            guest_ended: false,
            holding: size,
            singles: VecDeque::new(),
            single: None,
        }
    }

    /// Returns the number of messages with which the guest started.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Records that a message has its outcome. Returns `true` if the guest must be stopped.
    pub fn answered(&mut self, id: I) -> bool {
        self.open.retain(|open| *open != id);
        self.lost.remove(&id);
        self.stops_without_leases()
    }

    /// Records that the lease of a message is lost. Returns `true` if the guest must be stopped.
    pub fn lost(&mut self, id: I) -> bool {
        if self.open.contains(&id) {
            self.lost.insert(id);
        }
        self.stops_without_leases()
    }

    /// The guest has nothing to do any more once every message without an answer has lost its lease.
    fn stops_without_leases(&mut self) -> bool {
        let is_in_vain = !self.open.is_empty() && self.lost.len() == self.open.len();
        is_in_vain && self.cause.is_none() && self.stop(Cause::Lost)
    }

    /// Records that the guest is stopped because of `cause`. The last cause counts. Returns `false` if the guest has ended.
    pub fn stop(&mut self, cause: Cause) -> bool {
        if !self.guest_ended {
            self.cause = Some(cause);
        }
        !self.guest_ended
    }

    /// Handles the end of the guest, and returns the verdict on each message without an answer. `given`: the messages that the
    /// handler got, in order. `end`: `None` if the guest ended without an answer, for example because it was stopped.
    pub fn ended(&mut self, given: &[I], end: Option<BatchEnd>) -> Vec<(I, Verdict)> {
        self.guest_ended = true;
        let open = std::mem::take(&mut self.open);
        if let Some(BatchEnd::Answers(answers)) = end {
            return answers_of(&open, given, answers);
        }
        let verdict = self.verdict(end);
        open.into_iter().map(|id| (id, verdict.clone())).collect()
    }

    /// Returns the verdict on all messages without an answer, if the handler returned no answers.
    fn verdict(&self, end: Option<BatchEnd>) -> Verdict {
        // A message that was alone has had its single run.
        let is_again = self.on_trap == OnTrap::Singly && self.size > 1;
        match (end, self.cause) {
            (Some(BatchEnd::HostLimit(limit, error)), _) => Verdict::Outcome(Outcome::HostLimit(limit, error)),
            (_, Some(Cause::Shutdown | Cause::Lost)) => Verdict::Stopped,
            // The others are not at fault.
            (_, Some(Cause::Cancelled)) => Verdict::Again,
            _ if is_again => Verdict::Again,
            (Some(BatchEnd::Trapped(reason)), _) => Verdict::Outcome(Outcome::Trapped(reason)),
            (_, Some(Cause::Timeout(after))) => Verdict::Outcome(Outcome::TimedOut(after)),
            (_, None) => Verdict::Stopped,
        }
    }

    /// Adds a message that is to run alone.
    pub fn queue_single(&mut self, id: I) {
        self.singles.push_back(id);
    }

    /// Returns the next message to run alone. `None`: there is none, or one still runs.
    pub fn next_single(&mut self) -> Option<I> {
        if self.single.is_none() {
            self.single = self.singles.pop_front();
            return self.single;
        }
        None
    }

    /// Records that a message holds the slot no longer.
    pub fn released(&mut self, id: I) {
        self.holding = self.holding.saturating_sub(1);
        self.singles.retain(|single| *single != id);
        if self.single == Some(id) {
            self.single = None;
        }
    }

    /// Returns `true` if the batch has left its slot.
    pub fn is_over(&self) -> bool {
        self.guest_ended && self.holding == 0
    }

    /// Returns `true` if the guest runs and has given no answer for this message.
    pub fn is_open(&self, id: I) -> bool {
        self.open.contains(&id)
    }
}

/// Returns the verdicts that follow from the answers of the handler: one for each message that it got, in order. Another count
/// fails every message without an answer, because nothing says which message an answer is for.
fn answers_of<I: Copy + Eq + Hash>(open: &[I], given: &[I], answers: Vec<Outcome>) -> Vec<(I, Verdict)> {
    if answers.len() != given.len() {
        let reason = BatchEnd::wrong_count(answers.len(), given.len());
        return open.iter().map(|id| (*id, Verdict::Outcome(Outcome::Failed(reason.clone())))).collect();
    }
    let mut answers: HashMap<_, _> = given.iter().zip(answers).collect();
    let mut verdict = |id| answers.remove(id).map_or(Verdict::Stopped, Verdict::Outcome);
    open.iter().map(|id| (*id, verdict(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_handler::Limit;

    const SECOND: Duration = Duration::from_secs(1);

    fn of_three(on_trap: OnTrap) -> Batch<u64> {
        Batch::new(vec![1, 2, 3], on_trap)
    }

    fn trap() -> Option<BatchEnd> {
        Some(BatchEnd::Trapped("x".into()))
    }

    #[test]
    fn each_message_gets_its_own_answer_unless_it_has_one() {
        let mut batch = of_three(OnTrap::Singly);
        assert!(!batch.answered(2));
        let (ack, retry) = (Outcome::Ack, Outcome::Retry(None));
        let end = BatchEnd::Answers(vec![ack.clone(), retry.clone(), retry.clone()]);
        let verdicts = batch.ended(&[1, 2, 3], Some(end));
        assert_eq!(verdicts, [(1, Verdict::Outcome(ack)), (3, Verdict::Outcome(retry))]);
        [1, 2].into_iter().for_each(|id| batch.released(id));
        assert!(!batch.is_over());
        batch.released(3);
        assert!(batch.is_over());
    }

    #[test]
    fn another_number_of_answers_fails_what_has_none() {
        for count in [0, 2, 4] {
            let mut batch = of_three(OnTrap::Singly);
            batch.answered(1);
            let verdicts = batch.ended(&[1, 2, 3], Some(BatchEnd::Answers(vec![Outcome::Ack; count])));
            let reason = format!("the handler returned {count} answers for 3 messages");
            let failed = Verdict::Outcome(Outcome::Failed(reason));
            assert_eq!(verdicts, [(2, failed.clone()), (3, failed)]);
        }
    }

    #[test]
    fn a_message_that_could_not_be_loaded_is_not_counted() {
        let mut batch = of_three(OnTrap::Singly);
        batch.answered(1);
        let verdicts = batch.ended(&[2, 3], Some(BatchEnd::Answers(vec![Outcome::Ack; 2])));
        assert_eq!(verdicts, [2, 3].map(|id| (id, Verdict::Outcome(Outcome::Ack))));
        // One whose lease was lost while it was being loaded has no answer.
        let verdicts = of_three(OnTrap::Singly).ended(&[1, 3], Some(BatchEnd::Answers(vec![Outcome::Ack; 2])));
        let ack = Verdict::Outcome(Outcome::Ack);
        assert_eq!(verdicts, [(1, ack.clone()), (2, Verdict::Stopped), (3, ack)]);
    }

    #[test]
    fn after_a_trap_or_a_timeout_the_rest_runs_singly_or_fails() {
        let timeout = |batch: &mut Batch<u64>| assert!(batch.stop(Cause::Timeout(SECOND)));
        let trapped = Verdict::Outcome(Outcome::Trapped("x".into()));
        let timed_out = Verdict::Outcome(Outcome::TimedOut(SECOND));
        for (on_trap, times_out, end, verdict) in [
            (OnTrap::Singly, false, trap(), Verdict::Again),
            (OnTrap::Singly, true, None, Verdict::Again),
            (OnTrap::Fail, false, trap(), trapped.clone()),
            (OnTrap::Fail, true, None, timed_out.clone()),
        ] {
            let mut batch = of_three(on_trap);
            batch.answered(1);
            if times_out {
                timeout(&mut batch);
            }
            assert_eq!(batch.ended(&[1, 2, 3], end), [(2, verdict.clone()), (3, verdict)]);
        }
        let mut alone = Batch::new(vec![1], OnTrap::Singly);
        assert_eq!(alone.ended(&[1], trap()), [(1, trapped)], "it has had its single run");
        let mut alone = Batch::new(vec![1], OnTrap::Singly);
        timeout(&mut alone);
        assert_eq!(alone.ended(&[1], None), [(1, timed_out)]);
    }

    #[test]
    fn the_host_s_limit_spares_all_and_a_shutdown_releases_all() {
        let limit = Outcome::HostLimit(Limit::Pool, "x".into());
        let end = Some(BatchEnd::HostLimit(Limit::Pool, "x".into()));
        let verdicts = of_three(OnTrap::Singly).ended(&[1, 2, 3], end);
        assert_eq!(verdicts, [1, 2, 3].map(|id| (id, Verdict::Outcome(limit.clone()))));
        let mut batch = of_three(OnTrap::Singly);
        batch.stop(Cause::Timeout(SECOND));
        batch.stop(Cause::Shutdown);
        assert_eq!(batch.ended(&[1, 2, 3], None), [1, 2, 3].map(|id| (id, Verdict::Stopped)));
    }

    #[test]
    fn a_cancelled_message_fails_no_other() {
        let mut batch = of_three(OnTrap::Fail);
        assert!(batch.stop(Cause::Cancelled));
        assert_eq!(batch.ended(&[1, 2, 3], None), [1, 2, 3].map(|id| (id, Verdict::Again)));
        assert!(!batch.stop(Cause::Cancelled), "the guest is gone");
    }

    #[test]
    fn the_guest_is_stopped_once_all_that_remains_is_lost() {
        let mut batch = of_three(OnTrap::Singly);
        assert!(!batch.lost(1));
        assert!(!batch.answered(2));
        assert!(batch.lost(3));
        assert!(!batch.lost(3), "once");
        assert_eq!(batch.ended(&[1, 2, 3], None), [1, 3].map(|id| (id, Verdict::Stopped)));
        let mut batch = of_three(OnTrap::Singly);
        assert!(!batch.lost(1) && !batch.answered(2) && batch.answered(3));
        let mut batch = of_three(OnTrap::Singly);
        assert!([1, 2, 3].into_iter().all(|id| !batch.answered(id)), "nothing is lost");
    }

    #[test]
    fn single_runs_follow_one_another_in_the_batch_s_slot() {
        let mut batch = of_three(OnTrap::Singly);
        batch.ended(&[1, 2, 3], trap());
        [1, 2, 3].into_iter().for_each(|id| batch.queue_single(id));
        assert_eq!((batch.next_single(), batch.next_single()), (Some(1), None));
        // One that waits goes back in a drain.
        batch.released(2);
        assert_eq!(batch.next_single(), None, "one still runs");
        batch.released(1);
        assert_eq!(batch.next_single(), Some(3));
        assert!(!batch.is_over());
        batch.released(3);
        assert!(batch.is_over() && batch.next_single().is_none());
    }

    /// Plays random events. Each message gets exactly one end: an answer before the end of the guest, or a verdict.
    #[test]
    fn every_message_ends_once() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let size = random.u64(1..12);
            let members: Vec<_> = (0..size).collect();
            let on_trap = if random.bool() { OnTrap::Singly } else { OnTrap::Fail };
            let mut batch = Batch::new(members.clone(), on_trap);
            let (mut answered, mut lost) = (HashSet::new(), HashSet::new());
            for _ in 0..random.usize(0..20) {
                let id = random.u64(0..size);
                let stops = match random.u8(0..4) {
                    0 if lost.insert(id) => batch.lost(id),
                    1 if answered.insert(id) => batch.answered(id),
                    _ => false,
                };
                let is_left = |id: &u64| !answered.contains(id);
                let left: Vec<_> = members.iter().copied().filter(is_left).collect();
                assert!(members.iter().all(|id| batch.is_open(*id) == is_left(id)));
                assert!(!stops || (!left.is_empty() && left.iter().all(|id| lost.contains(id))), "seed {seed}");
            }
            let end = match random.u8(0..4) {
                0 => None,
                1 => trap(),
                _ => Some(BatchEnd::Answers(vec![Outcome::Ack; random.usize(0..14)])),
            };
            let verdicts = batch.ended(&members, end);
            let told: Vec<_> = verdicts.iter().map(|(id, _)| *id).collect();
            let left: Vec<_> = members.iter().copied().filter(|id| !answered.contains(id)).collect();
            assert_eq!(told, left, "seed {seed}");
        }
    }
}
