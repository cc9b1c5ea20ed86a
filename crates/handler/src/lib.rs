//! Message handlers from the view of a consumer: a call, its outcome, its output, and the pools that guests run in. The crate
//! `hostler-wasm` contains the WASM engine.
//!
//! | file | job |
//! |---|---|
//! | `call` | one call: the input, the outcome, and the ways to stop the guest |
//! | `batch` | one call with several messages, and its answers |
//! | `limit` | limits of the host that a call can reach |
//! | `output` | a guest's output, stored up to a limit |
//! | `last_words` | the reason for a program's failure, from the end of its standard error |
//! | `pools` | separate threads for guests that compute for long |

mod batch;
mod call;
mod last_words;
mod limit;
mod output;
mod pools;

pub use batch::{BatchCall, BatchEnd, Early, handle_alone, run_batch};
pub use call::{Bounds, Call, Outcome, Stop, run, run_until_stopped};
pub use limit::{Limit, with_threads};
pub use output::{Captured, Excerpt, MAX_LINES, Mark, Output, Stream};
pub use pools::{Beyond, Pools, charge};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use hostler_types::State;

/// Maximum duration of each of the lifecycle hooks `message-end`, `state-changed` and `processing-timeout`. It does not
/// apply to the hook `message-start`, which is limited by the processing timeout of the message.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A handler that processes messages.
///
/// The returned futures run guest code. When a future is dropped, its guest stops at the next yield, at most one epoch
/// tick later.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Processes one message and returns the outcome. Never fails: every fault is an [`Outcome`].
    async fn handle(&self, call: &Call) -> Outcome;

    /// Processes several messages in one call. Never fails: every fault is a [`BatchEnd`]. Called only for a consumer with
    /// batches. By default, calls [`Self::handle`] with each message that is not lost, in order.
    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        let mut answers = Vec::new();
        for (index, call) in batch.calls.iter().enumerate() {
            if batch.is_lost(index) {
                answers.push(Outcome::LeaseLost);
                continue;
            }
            let outcome = self.handle(call).await;
            batch.answer(index, outcome.clone());
            answers.push(outcome);
        }
        BatchEnd::Answers(answers)
    }

    /// Returns `true` if [`Self::processing_timeout`] may return an outcome.
    fn decides_timeouts(&self) -> bool {
        false
    }

    /// Decides the outcome of a message whose guest was stopped at the processing timeout. `None`: the consumer
    /// decides.
    async fn processing_timeout(&self, _call: &Call, _elapsed: Duration) -> Option<Outcome> {
        None
    }

    /// Returns `true` if [`Self::state_changed`] has an effect.
    fn observes_states(&self) -> bool {
        false
    }

    /// Notifies the handler that the consumer's state has changed.
    async fn state_changed(&self, _from: State, _to: State) {}
}
