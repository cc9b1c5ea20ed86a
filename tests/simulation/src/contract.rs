//! Calls of the queue contract, as the judge sees them.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{LeaseError, Settlement};

use super::calls::{Answered, Asked};
use super::judge::Judge;
use super::site::Line;

/// A call in progress. When dropped, reports the result to the judge, because the caller may cancel the call at any time.
pub struct UnderWay {
    line: Line,
    judge: Arc<Judge>,
    asked: Asked,
    pub answer: Option<Vec<Answered>>,
}

impl UnderWay {
    /// Reports to the judge that a call begins.
    pub fn begin(line: &Line, judge: &Arc<Judge>, asked: Asked) -> Self {
        judge.asked(line.life, &asked, false, line.shown().as_ref());
        Self { line: line.clone(), judge: Arc::clone(judge), asked, answer: None }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let of = |index: usize| self.answer.as_ref().map_or(Answered::Failed, |answer| answer[index]);
        if !self.line.is_dead() {
            self.judge.answered(self.line.life, &self.asked, &of);
        }
    }
}

/// Returns the result of an entry, by its error.
pub fn answered(error: Option<&LeaseError>) -> Answered {
    match error {
        None => Answered::Done,
        Some(LeaseError::Lost(_)) => Answered::Stale,
        Some(LeaseError::Unfit(_)) => Answered::Unfit,
        Some(LeaseError::Retry(_) | LeaseError::Refused(_)) => Answered::Failed,
    }
}

/// Returns whole seconds, rounded up, as the judge counts them.
pub fn seconds(delay: Duration) -> u64 {
    delay.as_secs() + u64::from(delay.subsec_nanos() > 0)
}

/// Returns the content of a settlement call.
pub fn asked(settlement: &Settlement) -> Asked {
    let receipt = settlement.receipt().as_str().to_owned();
    match settlement {
        Settlement::Ack(_) => Asked::Delete(vec![receipt]),
        Settlement::Release(_, delay) | Settlement::GiveBack(_, delay) => {
            Asked::Release(vec![(receipt, seconds(*delay))])
        }
        Settlement::DeadLetter { .. } => Asked::Move(vec![receipt]),
    }
}

/// Returns the receipt and the delay of a release.
pub fn delay(settlement: &Settlement) -> Option<(String, Duration)> {
    match settlement {
        Settlement::Release(receipt, delay) | Settlement::GiveBack(receipt, delay) => {
            Some((receipt.as_str().to_owned(), *delay))
        }
        Settlement::Ack(_) | Settlement::DeadLetter { .. } => None,
    }
}
