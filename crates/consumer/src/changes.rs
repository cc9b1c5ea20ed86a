//! Delivers state changes to the `state-changed` hook in order. The number of pending changes is bounded, even if the
//! hook is slow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use hostler_handler::{Handler, Pools};
use hostler_types::State;

/// Maximum number of pending state changes. A busy consumer changes its state thousands of times a second. If the hook
/// is too slow and this number is reached, all pending changes are merged into one. The limit is high enough to report
/// each state change separately while a consumer starts and handles its first message.
const MOST: usize = 8;

/// Queue of state changes for the hook. Dropping this value does not discard the pending changes. The hook still
/// receives them, as long as the runtime that runs guests exists.
pub(super) struct Changes {
    waiting: Arc<Waiting>,
    telling: JoinHandle<()>,
}

#[derive(Default)]
struct Waiting {
    changes: Mutex<VecDeque<(State, State)>>,
    came: Notify,
    ended: AtomicBool,
}

impl Changes {
    /// Starts delivering state changes to the `state-changed` hook of `handler`. Returns `None` if the handler has no
    /// such hook.
    pub(super) fn watch(handler: &Arc<dyn Handler>, guests: &Pools) -> Option<Self> {
        if !handler.observes_states() {
            return None;
        }
        let (handler, waiting) = (Arc::clone(handler), Arc::<Waiting>::default());
        // The hook's computing time must not count toward the computing time of the consumer's messages.
        let pools = guests.for_another();
        let told = Arc::clone(&waiting);
        let telling = guests.fast.spawn(async move {
            loop {
                while let Some((from, to)) = told.next() {
                    call(&pools, Arc::clone(&handler), from, to).await;
                }
                if told.ended.load(Ordering::Acquire) {
                    break;
                }
                told.came.notified().await;
            }
        });
        Some(Self { waiting, telling })
    }

    /// Queues a state change for the hook.
    pub(super) fn tell(&self, from: State, to: State) {
        self.waiting.put(from, to);
        self.waiting.came.notify_one();
    }

    /// Waits until the hook has received every change. No change may be queued after this call.
    pub(super) async fn all_told(&mut self) {
        self.waiting.end();
        let _ = (&mut self.telling).await;
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.waiting.end();
    }
}

/// Runs the hook in the thread pools for guests, and waits until it has ended. Like a handler, a hook that computes for
/// a long time moves to the background pool.
async fn call(pools: &Pools, handler: Arc<dyn Handler>, from: State, to: State) {
    let (over, is_over) = oneshot::channel::<()>();
    pools.spawn(async move {
        handler.state_changed(from, to).await;
        drop(over);
    });
    // The channel also closes if the hook panics.
    let _ = is_over.await;
}

impl Waiting {
    fn put(&self, from: State, to: State) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= MOST {
            let oldest = changes.front().map_or(from, |(from, _)| *from);
            changes.clear();
            // If the new state equals the oldest one, no change is left to report.
            if oldest != to {
                changes.push_back((oldest, to));
            }
        } else {
            changes.push_back((from, to));
        }
    }

    fn next(&self) -> Option<(State, State)> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.came.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(waiting: &Waiting) -> Vec<(State, State)> {
        std::iter::from_fn(|| waiting.next()).collect()
    }

    #[test]
    fn what_a_slow_hook_has_not_heard_becomes_one_change() {
        let (waiting, states) = (Waiting::default(), [State::Listening, State::Processing]);
        let change = |n: usize| waiting.put(states[n % 2], states[(n + 1) % 2]);
        (0..MOST).for_each(change);
        waiting.put(State::Listening, State::Exiting);
        assert_eq!(told(&waiting), [(State::Listening, State::Exiting)]);
        // Later changes follow the merged change. A return to the first state is not a change.
        (0..=MOST).for_each(change);
        waiting.put(State::Processing, State::Idle);
        assert_eq!(told(&waiting), [(State::Listening, State::Processing), (State::Processing, State::Idle)]);
        (0..MOST).for_each(change);
        waiting.put(State::Listening, State::Listening);
        assert_eq!(told(&waiting), []);
    }

    #[test]
    fn changes_that_a_hook_keeps_up_with_are_told_one_by_one() {
        let waiting = Waiting::default();
        waiting.put(State::Initializing, State::Initialized);
        waiting.put(State::Initialized, State::Listening);
        let all = [(State::Initializing, State::Initialized), (State::Initialized, State::Listening)];
        assert_eq!(told(&waiting), all);
    }
}
