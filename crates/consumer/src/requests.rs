//! Operator requests to one consumer. Requests share the event loop's queue of signals, so the loop does no extra work
//! while there are no requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use tokio::time::Instant;

use super::effects::Signal;
use super::in_flight::{Cancellation, DeliveryId, InFlight, Request};
use super::signals::Signals;

/// Sends requests to a consumer's event loop. One clone belongs to the consumer, and all other clones send requests to
/// that consumer.
///
/// If the consumer has not started or has ended, the channel for the answer closes without an answer. In both cases,
/// the consumer has no messages in flight.
#[derive(Clone, Default)]
pub struct Requests {
    signals: Arc<Signals<Signal>>,
    is_open: Arc<AtomicBool>,
}

impl Requests {
    /// Requests the list of messages in flight.
    pub fn list(&self) -> Receiver<Vec<InFlight>> {
        let (answer, answered) = sync_channel(1);
        self.send(Request::List(answer));
        answered
    }

    /// Requests the cancellation of a delivery. If the event loop handles the request after `until`, it cancels
    /// nothing, and closes the returned channel without an answer.
    pub fn cancel(&self, delivery: DeliveryId, until: Instant) -> Receiver<Cancellation> {
        let (answer, answered) = sync_channel(1);
        self.send(Request::Cancel { delivery, until, answer });
        answered
    }

    fn send(&self, request: Request) {
        if self.is_open.load(Ordering::Acquire) {
            self.signals.send(Signal::Requested(request));
            // The consumer may have ended between the check and the send. Nothing else would drop the request then.
            if !self.is_open.load(Ordering::Acquire) {
                self.signals.clear();
            }
        }
    }

    /// Returns the queue of signals to which requests are added.
    pub(super) fn signals(&self) -> Arc<Signals<Signal>> {
        Arc::clone(&self.signals)
    }

    /// Accepts requests until the returned value is dropped.
    pub(super) fn open(&self) -> Open {
        self.is_open.store(true, Ordering::Release);
        Open(self.clone())
    }
}

/// Accepts requests as long as this value exists. Dropping it closes the channels of all pending answers.
pub(super) struct Open(Requests);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.is_open.store(false, Ordering::Release);
        self.0.signals.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_has_not_begun_or_is_over_owes_no_answer() {
        let requests = Requests::default();
        assert!(requests.list().recv().is_err(), "it has not begun");
        let open = requests.open();
        let (list, cancel) = (requests.list(), requests.cancel(7, Instant::now()));
        assert!(list.try_recv().is_err_and(|error| error == std::sync::mpsc::TryRecvError::Empty), "it may answer yet");
        drop(open);
        assert!(list.recv().is_err() && cancel.recv().is_err());
        assert!(requests.list().recv().is_err(), "it is over");
    }
}
