//! What processes a message, as its consumer sees it: one call, its outcome, its output, and where it runs. The engine that runs WASM is
//! in a crate of its own.
//!
//! | file | job |
//! |---|---|
//! | `call` | one call: what goes in, what comes out, how it is stopped |
//! | `limit` | limits of the host that a call can run into |
//! | `output` | what a guest wrote, up to a limit |
//! | `last_words` | why a program failed, by what it wrote at last |
//! | `lanes` | guests that compute for long run apart |

mod call;
mod lanes;
mod last_words;
mod limit;
mod output;

pub use call::{Bounds, Call, Outcome, Stop, run, run_until_stopped};
pub use lanes::{Beyond, Lanes, charge};
pub use limit::{Limit, with_threads};
pub use output::{Captured, Excerpt, MAX_LINES, Mark, Output, Stream};

use std::time::Duration;

use async_trait::async_trait;

use hostler_types::State;

/// How long a lifecycle hook may take: one that observes, or that decides about a message already stopped.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What runs on each message.
///
/// The futures run guest code; dropping one stops its guest at the next yield, at most one epoch tick later.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Processes one message and says what became of it. Never fails: every fault is an [`Outcome`].
    async fn handle(&self, call: &Call) -> Outcome;

    /// Whether [`Self::processing_timeout`] may decide anything.
    fn decides_timeouts(&self) -> bool {
        false
    }

    /// What is to become of a message that was stopped at its processing timeout; `None`: the consumer's own rule.
    async fn processing_timeout(&self, _call: &Call, _elapsed: Duration) -> Option<Outcome> {
        None
    }

    /// Whether [`Self::state_changed`] does anything.
    fn observes_states(&self) -> bool {
        false
    }

    /// Tells of a change of the consumer's state.
    async fn state_changed(&self, _from: State, _to: State) {}
}
