//! Message handlers from the view of a consumer: a call, its outcome, its output, and the pools that guests run in. The crate
//! `hostler-wasm` contains the WASM engine.
//!
//! | file | job |
//! |---|---|
//! | `call` | one call: the input, the outcome, and the ways to stop the guest |
//! | `limit` | limits of the host that a call can reach |
//! | `output` | a guest's output, stored up to a limit |
//! | `last_words` | the reason for a program's failure, from the end of its standard error |
//! | `pools` | separate threads for guests that compute for long |

mod call;
mod last_words;
mod limit;
mod output;
mod pools;

pub use call::{Bounds, Call, Outcome, Stop, run, run_until_stopped};
pub use limit::{Limit, with_threads};
pub use output::{Captured, Excerpt, MAX_LINES, Mark, Output, Stream};
pub use pools::{Beyond, Pools, charge};

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
