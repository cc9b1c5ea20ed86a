//! Changes of state on their way to the `state-changed` hook: in order, and few, however long the hook takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use hostler_handler::{Handler, Pools};
use hostler_types::State;

/// The most changes that wait. A busy consumer changes its state thousands of times a second; a hook that cannot keep up hears
/// of all that waits as one change. So many that a start, with its first message, is heard of in full.
const MOST: usize = 8;

/// Tells the hook. Dropping it lets the hook hear of what waits, as long as the guests' runtime lasts.
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
    /// Returns the changes for the hook of this handler; `None`: it has none.
    pub(super) fn watch(handler: &Arc<dyn Handler>, guests: &Pools) -> Option<Self> {
        if !handler.observes_states() {
            return None;
        }
        let (handler, waiting) = (Arc::clone(handler), Arc::<Waiting>::default());
        // The hook computes for as long as it does, which says nothing of the consumer's messages.
        let pools = guests.for_another();
        let told = Arc::clone(&waiting);
        let telling = guests.quick.spawn(async move {
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

    /// Tells of one more change, after those before it.
    pub(super) fn tell(&self, from: State, to: State) {
        self.waiting.put(from, to);
        self.waiting.came.notify_one();
    }

    /// Waits until the hook has heard of every change.
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

/// Calls the hook where guests run, so that one which computes for long does so apart, as a handler would.
async fn call(pools: &Pools, handler: Arc<dyn Handler>, from: State, to: State) {
    let (over, is_over) = oneshot::channel::<()>();
    pools.spawn(async move {
        handler.state_changed(from, to).await;
        drop(over);
    });
    // Also if it panics.
    let _ = is_over.await;
}

impl Waiting {
    fn put(&self, from: State, to: State) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= MOST {
            let oldest = changes.front().map_or(from, |(from, _)| *from);
            changes.clear();
            // It may have come back to where it was.
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
        // What comes after it follows it, and what leads back is no change.
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
