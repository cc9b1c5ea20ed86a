//! Changes of state on their way to the `state-changed` hook: in order, and bounded, however long the hook takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::handler::{Handler, Lanes};
use crate::health::State;

/// The most changes that wait. A busy consumer changes its state thousands of times a second; a hook that cannot keep up
/// hears of what more comes as one change.
const MOST: usize = 64;

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
    /// For the hook of this handler; `None`: it has none.
    pub(super) fn watch(handler: &Arc<dyn Handler>, guests: &Lanes) -> Option<Self> {
        if !handler.observes_states() {
            return None;
        }
        let (handler, waiting) = (Arc::clone(handler), Arc::<Waiting>::default());
        let told = Arc::clone(&waiting);
        // Hooks have a deadline of their own each, and so stay in the quick lane.
        let telling = guests.quick.spawn(async move {
            loop {
                while let Some((from, to)) = told.next() {
                    handler.state_changed(from, to).await;
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

impl Waiting {
    fn put(&self, from: State, to: State) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = changes.len() >= MOST;
        match changes.back_mut() {
            Some(last) if is_full => last.1 = to,
            _ => changes.push_back((from, to)),
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

    #[test]
    fn what_a_slow_hook_has_not_heard_becomes_one_change() {
        let waiting = Waiting::default();
        let states = [State::Listening, State::Processing];
        for n in 0..2 * MOST {
            waiting.put(states[n % 2], states[(n + 1) % 2]);
        }
        waiting.put(State::Listening, State::Exiting);
        let told: Vec<_> = std::iter::from_fn(|| waiting.next()).collect();
        assert_eq!(told.len(), MOST);
        assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].0), "each begins where the one before ended: {told:?}");
        assert_eq!(told.last(), Some(&(State::Processing, State::Exiting)));
    }
}
