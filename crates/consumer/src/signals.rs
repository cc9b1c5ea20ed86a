//! Signals to the event loop. A signal is sent either at once, or together with signals that follow shortly after it.
//!
//! Waking the thread of the event loop costs more than handling the end of a guest. Guests that start together also end
//! shortly after one another. Therefore, a worker thread that has more guests to run delays the wake-up. The worker
//! wakes the loop when it has no guest left to run, or when it checks its timers. A signal is therefore delayed only
//! while a few other guests run, each for at most one epoch tick. A channel would instead wake the loop as soon as the
//! first guest ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// Pending signals for one event loop. `S` is the type of the signals.
#[derive(Debug)]
pub(super) struct Signals<S> {
    waiting: Mutex<VecDeque<S>>,
    came: Notify,
    /// Set while a sender is about to wake the loop.
    waking: AtomicBool,
}

impl<S> Default for Signals<S> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), came: Notify::new(), waking: AtomicBool::new(false) }
    }
}

impl<S> Signals<S> {
    /// Sends a signal, and wakes the loop at once.
    pub(super) fn send(&self, signal: S) {
        self.put(signal);
        self.came.notify_one();
    }

    /// Sends a signal, and wakes the loop after the worker thread has run its other tasks. Returns at once if another
    /// sender is about to wake the loop.
    pub(super) async fn send_coalesced(&self, signal: S) {
        self.put(signal);
        if self.waking.swap(true, Ordering::AcqRel) {
            return;
        }
        // Wakes the loop on drop, even if this task is cancelled.
        let _waking = Waking(self);
        tokio::task::yield_now().await;
    }

    /// Waits for signals, and moves all of them into `into`, in the order of sending. `into` must be empty. Its
    /// capacity is reused. If an earlier call has already taken the signals, this call may return without any.
    /// Cancelling this call loses no signal.
    pub(super) async fn recv(&self, into: &mut VecDeque<S>) {
        self.came.notified().await;
        std::mem::swap(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    /// Drops all pending signals, because the loop has ended.
    pub(super) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        // Drop the signals after the lock is released, because dropping a signal may send another one.
        drop(waiting);
    }

    fn put(&self, signal: S) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(signal);
    }
}

/// Wakes the loop when dropped.
struct Waking<'a, S>(&'a Signals<S>);

impl<S> Drop for Waking<'_, S> {
    fn drop(&mut self) {
        // The order matters: a sender that runs after the store wakes the loop again.
        self.0.waking.store(false, Ordering::Release);
        self.0.came.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Returns the signals that are available now. `None`: `recv` would wait.
    async fn taken(signals: &Signals<u32>) -> Option<Vec<u32>> {
        let mut into = VecDeque::new();
        timeout(Duration::ZERO, signals.recv(&mut into)).await.ok().map(|()| into.into())
    }

    #[tokio::test]
    async fn signals_wake_the_loop_and_come_in_their_order() {
        let signals = Signals::default();
        assert_eq!(taken(&signals).await, None);
        (0..3).for_each(|signal| signals.send(signal));
        assert_eq!(taken(&signals).await, Some(vec![0, 1, 2]));
        assert_eq!(taken(&signals).await, None);
    }

    #[tokio::test]
    async fn guests_that_end_together_wake_the_loop_once_when_the_worker_has_nothing_else_to_do() {
        let signals = Arc::new(Signals::default());
        let guests: Vec<_> = (0..3)
            .map(|number| {
                let signals = Arc::clone(&signals);
                tokio::spawn(async move { signals.send_coalesced(number).await })
            })
            .collect();
        let mut came = VecDeque::new();
        signals.recv(&mut came).await;
        assert_eq!(came, [0, 1, 2], "all ran before the loop was woken");
        for guest in guests {
            guest.await.unwrap();
        }
        assert_eq!(taken(&signals).await, None, "nothing was left to wake it for");
    }

    #[tokio::test]
    async fn a_sender_that_is_dropped_wakes_the_loop_and_the_next_does_again() {
        let signals = Signals::default();
        let mut first = Box::pin(signals.send_coalesced(1));
        tokio::select! {
            biased;
            () = first.as_mut() => panic!("it waits for its worker"),
            () = std::future::ready(()) => {}
        }
        signals.send_coalesced(2).await;
        assert_eq!(taken(&signals).await, None);
        drop(first);
        assert_eq!(taken(&signals).await, Some(vec![1, 2]));
        signals.send_coalesced(3).await;
        assert_eq!(taken(&signals).await, Some(vec![3]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_lose_nothing() {
        let signals = Arc::new(Signals::default());
        for number in 0..10_000 {
            let signals = Arc::clone(&signals);
            tokio::spawn(async move { signals.send_coalesced(number).await });
        }
        let (mut came, mut all) = (VecDeque::new(), Vec::new());
        while all.len() < 10_000 {
            timeout(Duration::from_secs(10), signals.recv(&mut came)).await.expect("all wake the loop");
            all.extend(came.drain(..));
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..10_000));
    }
}
