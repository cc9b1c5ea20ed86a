//! Signals on their way to the event loop, each told at once or together with others that come right after it.
//!
//! To wake the loop's thread costs more than the loop does about a guest's end, and guests that begin together end one shortly after
//! the other. So a worker that has more guests to run tells of those that have ended when it has none left, or looks at its timers:
//! after a few guests at most, each of which gets an epoch tick at most.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// What waits for one event loop. `S` is a signal.
#[derive(Debug)]
pub(super) struct Mailbox<S> {
    waiting: Mutex<VecDeque<S>>,
    told: Notify,
    /// Whether somebody is about to tell of what waits.
    telling: AtomicBool,
}

impl<S> Default for Mailbox<S> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), told: Notify::new(), telling: AtomicBool::new(false) }
    }
}

impl<S> Mailbox<S> {
    /// Puts a signal in, and wakes the loop.
    pub(super) fn tell(&self, signal: S) {
        self.put(signal);
        self.told.notify_one();
    }

    /// Puts a signal in, and wakes the loop once this worker has done what else it has to do, unless somebody else is about to.
    pub(super) async fn tell_soon(&self, signal: S) {
        self.put(signal);
        if self.telling.swap(true, Ordering::AcqRel) {
            return;
        }
        // Tells even if its task is dropped meanwhile.
        let _telling = Telling(self);
        tokio::task::yield_now().await;
    }

    /// Waits until there is something, or was and has been taken.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// Takes all that waits, told of or not, in its order. `into` is empty, and used again so that nothing is allocated.
    pub(super) fn take(&self, into: &mut VecDeque<S>) {
        std::mem::swap(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    fn put(&self, signal: S) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(signal);
    }
}

/// Tells of what waits when it is dropped.
struct Telling<'a, S>(&'a Mailbox<S>);

impl<S> Drop for Telling<'_, S> {
    fn drop(&mut self) {
        // In this order: who puts something in from here on tells of it.
        self.0.telling.store(false, Ordering::Release);
        self.0.told.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn taken(mailbox: &Mailbox<u32>) -> Vec<u32> {
        let mut into = VecDeque::new();
        mailbox.take(&mut into);
        into.into()
    }

    async fn is_told(mailbox: &Mailbox<u32>) -> bool {
        timeout(Duration::ZERO, mailbox.told()).await.is_ok()
    }

    #[tokio::test]
    async fn what_is_told_at_once_wakes_and_comes_in_its_order() {
        let mailbox = Mailbox::default();
        assert!(!is_told(&mailbox).await);
        (0..3).for_each(|signal| mailbox.tell(signal));
        assert!(is_told(&mailbox).await);
        assert_eq!(taken(&mailbox), [0, 1, 2]);
        assert!(!is_told(&mailbox).await && taken(&mailbox).is_empty());
    }

    #[tokio::test]
    async fn what_ends_together_is_told_once_when_the_worker_has_nothing_else_to_do() {
        let mailbox = Arc::new(Mailbox::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let guests = (0..3).map(|number| {
            let (mailbox, order) = (Arc::clone(&mailbox), Arc::clone(&order));
            tokio::spawn(async move {
                order.lock().unwrap().push(number);
                mailbox.tell_soon(number).await;
            })
        });
        let guests: Vec<_> = guests.collect();
        mailbox.told().await;
        assert_eq!(*order.lock().unwrap(), [0, 1, 2], "all ran before the loop was woken");
        assert_eq!(taken(&mailbox), [0, 1, 2]);
        for guest in guests {
            guest.await.unwrap();
        }
        assert!(!is_told(&mailbox).await, "nothing was left to tell of");
    }

    #[tokio::test]
    async fn nothing_stays_untold() {
        let mailbox = Arc::new(Mailbox::default());
        // The task that was about to tell is dropped.
        let mut soon = Box::pin(mailbox.tell_soon(1));
        assert!(poll_once(soon.as_mut()).await.is_none());
        mailbox.tell_soon(2).await;
        assert!(!is_told(&mailbox).await);
        drop(soon);
        assert!(is_told(&mailbox).await);
        assert_eq!(taken(&mailbox), [1, 2]);
        // The next one tells again.
        mailbox.tell_soon(3).await;
        assert!(is_told(&mailbox).await);
        assert_eq!(taken(&mailbox), [3]);
    }

    /// Polls once.
    async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_lose_nothing() {
        let mailbox = Arc::new(Mailbox::default());
        for number in 0..10_000 {
            let mailbox = Arc::clone(&mailbox);
            tokio::spawn(async move { mailbox.tell_soon(number).await });
        }
        let mut came = Vec::new();
        while came.len() < 10_000 {
            timeout(Duration::from_secs(10), mailbox.told()).await.expect("all are told of");
            came.extend(taken(&mailbox));
        }
        came.sort_unstable();
        assert!(came.into_iter().eq(0..10_000));
    }
}
