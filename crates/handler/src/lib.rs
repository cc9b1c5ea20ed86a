//! Message handlers as their consumer sees them: one call, its outcome, its output, and the pool in which it runs. The WASM
//! engine is a crate of its own.
//!
//! | file | job |
//! |---|---|
//! | `call` | one call: what goes in, what comes out, how it is stopped |
//! | `limit` | host limits that a call can reach |
//! | `output` | a guest's output, up to a limit |
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

/// The timeout of a lifecycle hook, both of one that observes and of one that decides about a message already stopped.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A handler, which runs on each message.
///
/// The futures run guest code. Dropping one stops its guest at the next yield, at most one epoch tick later.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Processes one message and returns its outcome. Never fails: every fault is an [`Outcome`].
    async fn handle(&self, call: &Call) -> Outcome;

    /// Returns `true` if [`Self::processing_timeout`] may return a decision.
    fn decides_timeouts(&self) -> bool {
        false
    }

    /// Decides the outcome of a message that was stopped at its processing timeout; `None`: the consumer's own rule applies.
    async fn processing_timeout(&self, _call: &Call, _elapsed: Duration) -> Option<Outcome> {
        None
    }

    /// Returns `true` if [`Self::state_changed`] does anything.
    fn observes_states(&self) -> bool {
        false
    }

    /// Notifies the handler of a change of the consumer's state.
    async fn state_changed(&self, _from: State, _to: State) {}
}
