//! Functions about the messages of the current batch, for a function with `#[batch_handler]`.
//!
//! In tests on a developer's machine, [`testing`](crate::testing) stands in for the host.

use crate::Answer;

/// Settles the message at this place of the batch, from 0, before the handler returns. This answer counts in place of the one that
/// the handler returns for the message. Returns `false`, and does nothing, if there is no such message, if it has an answer, or if
/// it is lost.
pub fn done(index: usize, answer: impl Answer) -> bool {
    let answer = answer.answer();
    #[cfg(target_family = "wasm")]
    return crate::contract::done(index, answer);
    #[cfg(not(target_family = "wasm"))]
    crate::testing::done(index, answer)
}

/// Returns `true` once the message at this place of the batch is no longer this handler's, because its lease was lost. Another
/// handler may get it. Its answer is ignored.
#[must_use]
pub fn lost(index: usize) -> bool {
    #[cfg(target_family = "wasm")]
    return crate::contract::lost(index);
    #[cfg(not(target_family = "wasm"))]
    crate::testing::lost(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Outcome, testing};

    #[test]
    fn a_test_sees_what_is_done_and_says_what_is_lost() {
        testing::lose(1);
        assert!(done(0, ()) && done(2, Err::<(), _>(Failure::retry())));
        assert!(!done(0, Outcome::Retry), "the first answer counts");
        assert!(lost(1) && !lost(0) && !done(1, ()));
        assert_eq!(testing::take_done(), [(0, Ok(Outcome::Ack)), (2, Err(Failure::Retry))]);
        assert!(done(0, ()), "another batch");
    }
}
